package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/cuda-samples/internal/sample"
	"github.com/gpuready/gpuready/test/lab/built"
)

// report is the part of the output of -o json that is tested here.
type report struct {
	sample.Report
	Elements int    `json:"elements"`
	Version  string `json:"cudaVersion"`
}

// start runs the built program against a driver root.
func start(t *testing.T, root string, args []string, env ...string) (stdout, stderr string, exit int) {
	t.Helper()
	cmd := exec.Command(built.Path(t, "vectoradd"), args...)
	libs, err := filepath.Glob(filepath.Join(root, "usr/lib/*/libcuda.so.1"))
	require.NoError(t, err)
	if len(libs) > 0 {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+filepath.Dir(libs[0]))
	}
	cmd.Env = append(cmd.Env, env...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	_ = cmd.Run() // the exit code tells
	return out.String(), log.String(), cmd.ProcessState.ExitCode()
}

func TestItPrintsTheClassicLines(t *testing.T) {
	stdout, stderr, exit := start(t, built.DriverRoot(t, "t4"), nil)
	require.Zero(t, exit, stderr)
	require.Empty(t, stderr)
	require.Equal(t, `[Vector addition of 50000 elements]
Copy input data from the host memory to the CUDA device
CUDA kernel launch with 196 blocks of 256 threads
Copy output data from the CUDA device to the host memory
Test PASSED (SIMULATED)
Done
`, stdout)
}

func TestReportNamesTheDevice(t *testing.T) {
	root := built.DriverRoot(t, "h100-sxm", "--gpus", "3")
	answer := func(args []string, env ...string) report {
		stdout, stderr, exit := start(t, root, append([]string{"-o", "json", "--elements", "1000"}, args...), env...)
		require.Zero(t, exit, stderr)
		var r report
		require.NoError(t, json.Unmarshal([]byte(stdout), &r))
		require.True(t, r.Passed)
		require.True(t, r.Simulated)
		require.Equal(t, "SIMULATED NVIDIA H100 80GB HBM3", r.Device)
		require.Equal(t, "13.0", r.CUDA)
		require.Equal(t, "13.0", r.Version)
		require.Equal(t, 1000, r.Elements)
		for _, phase := range []string{"init", "context", "compile", "copyToDevice", "kernel", "copyToHost", "verify"} {
			require.Positive(t, r.Seconds[phase], phase)
		}
		return r
	}
	first, third := answer(nil), answer([]string{"--device", "2"})
	require.NotEqual(t, first.UUID, third.UUID)
	require.Equal(t, third.UUID, answer([]string{"--device", third.UUID}).UUID)
	require.Equal(t, third.UUID, answer(nil, "CUDA_VISIBLE_DEVICES=2").UUID)
	require.Equal(t, third.UUID, answer(nil, "CUDA_VISIBLE_DEVICES="+third.UUID).UUID)
	require.Equal(t, third.UUID, answer(nil, "VECTORADD_DEVICE=2").UUID)
	require.Equal(t, first.UUID, answer([]string{"--device=0"}, "VECTORADD_DEVICE=2").UUID)

	stdout, stderr, exit := start(t, root, []string{"--device", "3"})
	require.Equal(t, 1, exit)
	require.Contains(t, stderr, `device "3" is not visible here; visible: 0 (`+first.UUID)
	require.Contains(t, stdout, "Test FAILED")
}

func TestFailuresNameTheCallAndWhatToDo(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, root string)
		env     []string
		stderr  string
	}{
		"no library": {func(t *testing.T, root string) { require.NoError(t, os.RemoveAll(filepath.Join(root, "usr/lib"))) }, nil,
			"vectoradd: no CUDA driver library: "},
		"no device": {nil, []string{"CUDA_VISIBLE_DEVICES=-1"},
			"vectoradd: cuInit: error 100 (CUDA_ERROR_NO_DEVICE); no GPU is visible here: is the container given one"},
		"mismatch": {func(t *testing.T, root string) {
			built.Gpusim(t, "up", "--root", root, "--profile", "t4", "--module-version", "550.1.1")
		}, nil, "vectoradd: cuInit: error 803 (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH); libcuda and the kernel module are of different driver versions"},
		"hang": {nil, []string{"VECTORADD_TIMEOUT=1ns"}, "vectoradd: no result in time; "},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "no library" {
				built.SkipWithCUDA(t)
			}
			root := built.DriverRoot(t, "t4")
			if c.prepare != nil {
				c.prepare(t, root)
			}
			want := 1
			if name == "hang" {
				want = 4
			}
			for _, args := range [][]string{nil, {"-o", "json"}} {
				stdout, stderr, exit := start(t, root, args, c.env...)
				require.Equal(t, want, exit, stderr)
				require.True(t, strings.HasPrefix(stderr, c.stderr), stderr)
				require.Equal(t, 1, strings.Count(stderr, "\n"), "one line")
				if args == nil {
					require.True(t, strings.HasSuffix(stdout, "Test FAILED\n"), stdout)
					continue
				}
				var r report
				require.NoError(t, json.Unmarshal([]byte(stdout), &r))
				require.False(t, r.Passed)
				want := r.Error
				if name == "hang" {
					want += "; next: " + r.Next
				}
				require.Equal(t, strings.TrimSuffix(strings.TrimPrefix(stderr, "vectoradd: "), "\n"), want)
			}
		})
	}
}

func TestForStopsAtTheFirstFailure(t *testing.T) {
	root := built.DriverRoot(t, "t4")
	stdout, stderr, exit := start(t, root, []string{"--for", "50ms", "--every", "5ms", "--elements", "1000"})
	require.Zero(t, exit, stderr)
	require.Equal(t, 1, strings.Count(stdout, "Copy output"), "it is told once")
	require.Equal(t, 1, strings.Count(stdout, "Test PASSED"))

	cmd := exec.Command(built.Path(t, "vectoradd"), "-o", "json", "--for", "1h", "--every", "5ms", "--elements", "1000")
	libs, err := filepath.Glob(filepath.Join(root, "usr/lib/*/libcuda.so.1"))
	require.NoError(t, err)
	cmd.Env = []string{"LD_LIBRARY_PATH=" + filepath.Dir(libs[0])}
	var out bytes.Buffer
	cmd.Stdout = &out
	require.NoError(t, cmd.Start())
	built.Gpusim(t, "lose", "--root", root, "--gpu", "0")
	require.Error(t, cmd.Wait())
	var r report
	require.NoError(t, json.Unmarshal(out.Bytes(), &r))
	require.False(t, r.Passed)
	require.NotEmpty(t, r.Error)
}

func TestWrongUsageIsExplained(t *testing.T) {
	for want, args := range map[string][]string{
		"--elements is 0: it must be from 1 to":      {"--elements", "0"},
		"--elements is 2147483648: it must be":       {"--elements", "2147483648"},
		`--output is "xml": it must be text or json`: {"-o", "xml"},
		"--timeout is -1s: it must be positive":      {"--timeout", "-1s"},
		"--for is -1s, --every is 1s: they must not": {"--for", "-1s"},
		`unexpected argument "now"`:                  {"now"},
		"unknown flag --fast":                        {"--fast"},
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 2, vectoradd().Start(t.Context(), args, func(string) string { return "" }, &stdout, &stderr))
		require.Empty(t, stdout.String())
		require.Contains(t, stderr.String(), want)
		require.Contains(t, stderr.String(), "see vectoradd --help")
	}
	var stdout, stderr bytes.Buffer
	require.Equal(t, 2, vectoradd().Start(t.Context(), nil, func(string) string { return "many" }, &stdout, &stderr))
	require.Regexp(t, "VECTORADD_(ELEMENTS|TIMEOUT|OUTPUT|FOR|EVERY)|--output", stderr.String())
	stdout.Reset()
	require.Zero(t, vectoradd().Start(t.Context(), []string{"--help"}, os.Getenv, &stdout, &stderr))
	for _, part := range []string{"Exit codes:", "[VECTORADD_ELEMENTS]", "CUDA_VISIBLE_DEVICES="} {
		require.Contains(t, stdout.String(), part)
	}
}

func TestEveryElementIsChecked(t *testing.T) {
	a, b := numbers(1000, 1), numbers(1000, 2)
	sum := make([]float32, len(a))
	for i := range sum {
		sum[i] = a[i] + b[i]
	}
	require.NoError(t, verify(a, b, sum))
	for i := range sum {
		right := sum[i]
		sum[i] = right * 2
		wrong := new(sample.WrongError)
		require.ErrorAs(t, verify(a, b, sum), &wrong)
		require.Equal(t, 1, wrong.Count)
		require.Equal(t, []sample.Wrong{{Index: []int{i}, Want: fmt.Sprint(right), Got: fmt.Sprint(right * 2)}}, wrong.Wrong)
		sum[i] = right
	}
}
