package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/cuda-samples/internal/sample"
	"github.com/gpuready/gpuready/test/lab/built"
)

// runJSON runs the built program with -o json and returns its report.
func runJSON(t *testing.T, root string, exit int, args ...string) sample.Report {
	t.Helper()
	stdout, stderr, code := built.Sample(t, root, "compute", append([]string{"-o", "json"}, args...))
	require.Equal(t, exit, code, stderr)
	var r sample.Report
	require.NoError(t, json.Unmarshal([]byte(stdout), &r), stdout)
	require.Equal(t, exit == 0, r.Passed)
	return r
}

func TestEveryThreadsResultIsRight(t *testing.T) {
	root := built.DriverRoot(t, "h100-sxm", "--gpus", "1")
	stdout, stderr, exit := built.Sample(t, root, "compute", nil)
	require.Zero(t, exit, stderr)
	require.Equal(t, "fp32: n/a (simulated)\nbf16: n/a (simulated)\nTest PASSED (SIMULATED)\nDone\n", stdout)
	require.Equal(t, []sample.Figure{{Name: "fp32", Unit: "FLOP/s"}, {Name: "bf16", Unit: "FLOP/s"}}, runJSON(t, root, 0).Figures)
	require.Equal(t, []sample.Figure{{Name: "bf16", Unit: "FLOP/s"}}, runJSON(t, root, 0, "--only", "bf16").Figures)
	_, stderr, exit = built.Sample(t, root, "compute", []string{"--only", "fp64"})
	require.Equal(t, 2, exit)
	require.Contains(t, stderr, `--only is "fp64": it must be fp32 or bf16`)
}

func TestGPUWithoutBF16IsReported(t *testing.T) {
	root := built.DriverRoot(t, "t4", "--gpus", "1")
	r := runJSON(t, root, 0)
	require.Equal(t, []sample.Figure{{Name: "fp32", Unit: "FLOP/s"}}, r.Figures)
	require.Equal(t, []string{"bf16: left out: tensor cores take it from compute capability 8.0 on; this device has 7.5"}, r.Notes)
	require.Equal(t, "bf16: tensor cores take it from compute capability 8.0 on; this device has 7.5", runJSON(t, root, 5, "--only", "bf16").Error)
}

func TestAWrongResultNamesItsThread(t *testing.T) {
	root := built.DriverRoot(t, "h100-sxm", "--gpus", "1")
	built.Gpusim(t, "memfault", "--root", root, "--gpu", "0", "--kind", "flip", "--offset", "400", "--bit", "3")
	for _, name := range []string{"fp32", "bf16"} {
		r := runJSON(t, root, 3, "--only", name)
		require.Contains(t, r.Error, name+": the result of thread 100 is wrong: expected 0x")
		require.Equal(t, 1, r.WrongCount)
		require.Equal(t, []int{100}, r.Wrong[0].Index)
		require.Equal(t, name, r.Wrong[0].Pattern)
	}
}

func TestWrongComputationIsDetected(t *testing.T) {
	root := built.DriverRoot(t, "h100-sxm", "--gpus", "2")
	built.Gpusim(t, "wrong", "--root", root, "--gpu", "1", "--every", "3000")
	for _, name := range []string{"fp32", "bf16"} {
		r := runJSON(t, root, 3, "--only", name, "--device", "1")
		require.Contains(t, r.Error, name+": the result of thread ")
		require.Positive(t, r.WrongCount)
		runJSON(t, root, 0, "--only", name, "--device", "0")
	}
}
