package main

import (
	"encoding/json"
	"math/bits"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/cuda-samples/internal/sample"
	"github.com/gpuready/gpuready/test/lab/built"
)

// runJSON runs the built program with -o json and returns its report.
func runJSON(t *testing.T, root string, exit int, args []string, env ...string) sample.Report {
	t.Helper()
	stdout, stderr, code := built.Sample(t, root, "bandwidth", append([]string{"-o", "json"}, args...), env...)
	require.Equal(t, exit, code, stderr)
	var r sample.Report
	require.NoError(t, json.Unmarshal([]byte(stdout), &r), stdout)
	require.Equal(t, exit == 0, r.Passed)
	require.True(t, r.Simulated)
	return r
}

func TestASimulatedSpeedHasNoValue(t *testing.T) {
	root := built.DriverRoot(t, "t4", "--gpus", "1")
	stdout, stderr, exit := built.Sample(t, root, "bandwidth", nil)
	require.Zero(t, exit, stderr)
	require.Equal(t, `copy: n/a (simulated)
triad: n/a (simulated)
hostToDevice: n/a (simulated)
deviceToHost: n/a (simulated)
Test PASSED (SIMULATED)
Done
`, stdout)
	r := runJSON(t, root, 0, nil)
	require.Equal(t, []sample.Figure{{Name: "copy", Unit: "B/s"}, {Name: "triad", Unit: "B/s"},
		{Name: "hostToDevice", Unit: "B/s"}, {Name: "deviceToHost", Unit: "B/s"}}, r.Figures)
	require.Empty(t, r.Peers, "there is one GPU")
	for _, phase := range []string{"init", "context", "compile", "copy", "triad", "hostToDevice", "deviceToHost"} {
		require.Positive(t, r.Seconds[phase], phase)
	}
}

func TestEachPairOfGPUsIsMeasuredBothWays(t *testing.T) {
	root := built.DriverRoot(t, "h100-sxm", "--gpus", "3")
	r := runJSON(t, root, 0, nil)
	require.Len(t, r.Peers, 6)
	pairs := map[[2]string]bool{}
	for _, p := range r.Peers {
		require.NotEqual(t, p.From, p.To)
		require.True(t, p.Access)
		require.Zero(t, p.Value)
		require.Equal(t, "B/s", p.Unit)
		pairs[[2]string{p.From, p.To}] = true
	}
	require.Len(t, pairs, 6)

	stdout, stderr, exit := built.Sample(t, root, "bandwidth", nil)
	require.Zero(t, exit, stderr)
	require.Contains(t, stdout, `peer to peer, from row to column, n/a (simulated); * through the host's memory:
       0    1    2
  0    -  n/a  n/a
  1  n/a    -  n/a
  2  n/a  n/a    -
0 is `+r.UUID+" at "+r.PCI+"\n")

	require.Empty(t, runJSON(t, root, 0, []string{"--device", "1"}).Peers)
	require.Len(t, runJSON(t, root, 0, []string{"--device", "1", "--peers"}).Peers, 6)
	require.Empty(t, runJSON(t, root, 0, []string{"--peers=false"}).Peers)
	require.Empty(t, runJSON(t, root, 0, nil, "BANDWIDTH_PEERS=false").Peers)
	require.Len(t, runJSON(t, root, 0, nil, "CUDA_VISIBLE_DEVICES=2,0").Peers, 2)
}

func TestWrongDataFailsTheRun(t *testing.T) {
	const index = 1234
	for name, c := range map[string]struct {
		kind, gpu string
		seed      uint32 // of the words that are wrong
		err       string
	}{
		"the device sees it": {"stuck", "0", 1, "copy: word 1234 on "},
		"the host sees it":   {"flip", "0", 6, "deviceToHost: word 1234 on "},
		"a peer has it":      {"stuck", "1", 100, "peer: word 1234 on "},
	} {
		t.Run(name, func(t *testing.T) {
			root := built.DriverRoot(t, "h100-sxm", "--gpus", "2")
			bit := bits.TrailingZeros32(^word(index, c.seed)) // one that is not set
			built.Gpusim(t, "memfault", "--root", root, "--gpu", c.gpu, "--kind", c.kind,
				"--offset", strconv.Itoa(4*index), "--bit", strconv.Itoa(bit))
			r := runJSON(t, root, 3, nil)
			require.Contains(t, r.Error, c.err)
			require.Equal(t, 1, r.WrongCount)
			require.Equal(t, []sample.Wrong{{Index: []int{index}, Pattern: strings.SplitN(c.err, ":", 2)[0],
				Want: hex(word(index, c.seed)), Got: hex(word(index, c.seed) | 1<<bit)}}, r.Wrong)
		})
	}
}

func TestSizesAreChecked(t *testing.T) {
	root := built.DriverRoot(t, "t4")
	for _, args := range [][]string{{"--bytes", "1Ki"}, {"--bytes", "17Gi"}, {"--bytes", "many"}, {"now"}} {
		_, stderr, exit := built.Sample(t, root, "bandwidth", args)
		require.Equal(t, 2, exit, stderr)
	}
	r := runJSON(t, root, 0, []string{"--bytes", "64Ki"})
	require.Len(t, r.Figures, 4)
	require.Contains(t, runJSON(t, root, 1, []string{"--bytes", "16Gi"}).Error, "CUDA_ERROR_OUT_OF_MEMORY")
}

func TestLinkPeakExcludesEncoding(t *testing.T) {
	for name, c := range map[string]struct {
		speed, width string
		want         float64
	}{
		"generation 5": {"32.0 GT/s PCIe\n", "16\n", 63.0},
		"generation 4": {"16.0 GT/s PCIe\n", "16\n", 31.5},
		"generation 1": {"2.5 GT/s PCIe\n", "8\n", 2.0},
		"generation 6": {"64.0 GT/s PCIe\n", "16\n", 118.0},
		"not known":    {"Unknown\n", "0\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "current_link_speed"), []byte(c.speed), 0o644))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "current_link_width"), []byte(c.width), 0o644))
			require.InDelta(t, c.want, pcieRate(dir)/1e9, 0.02)
		})
	}
	require.Zero(t, pcieRate(t.TempDir()), "no such device")
}

func TestParseCPUList(t *testing.T) {
	of := func(list string) (all []int) {
		set := parseCPUList(list)
		for i := range 1024 {
			if set.IsSet(i) {
				all = append(all, i)
			}
		}
		return all
	}
	require.Equal(t, []int{0, 1, 2, 8, 10, 11}, of("0-2,8,10-11"))
	require.Empty(t, of(""))
	require.Empty(t, of("a-3,5-b"))
	require.Empty(t, of("5000-5001"), "more than the set holds")
}
