package main_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/validator/preflight"
)

// preflightRig is the built gpu-validator in a folder beside samples of the test's own.
type preflightRig struct {
	*rig
	bin string
}

// speaks is a sample that passes with the figures, by the contract of samples.
const speaks = `u=${CUDA_VISIBLE_DEVICES%%%%,*}; echo "{\"passed\": true, \"simulated\": true, \"uuid\": \"$u\", \"figures\": [%s]}"`

func newPreflight(t *testing.T, profile string, gpus int, args ...string) *preflightRig {
	t.Helper()
	p := &preflightRig{rig: newRig(t), bin: t.TempDir()}
	built.Gpusim(t, append([]string{"up", "--root", p.path(driverRoot), "--profile", profile, "--gpus", fmt.Sprint(gpus)}, args...)...)
	built.Copy(t, filepath.Join(p.bin, "gpu-validator"), "gpu-validator")
	for name, figures := range map[string]string{
		"vectoradd": "", "reduction": "", "gemm": "", "memtest": "",
		"bandwidth": `{\"name\": \"copy\", \"unit\": \"B/s\"}`, "compute": `{\"name\": \"fp32\", \"unit\": \"FLOP/s\"}`,
	} {
		p.sample(name, fmt.Sprintf(speaks, figures))
	}
	return p
}

// sample replaces a sample.
func (p *preflightRig) sample(name, script string) {
	p.t.Helper()
	built.Script(p.t, filepath.Join(p.bin, name), script)
}

func (p *preflightRig) gpusim(command string, gpu int, args ...string) {
	p.t.Helper()
	built.Gpusim(p.t, append([]string{command, "--root", p.path(driverRoot), "--gpu", fmt.Sprint(gpu)}, args...)...)
}

// runPreflight runs a preflight. Its timeout is ample: the tests are not about its duration.
func (p *preflightRig) runPreflight(args ...string) (exit int, stdout, stderr string) {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), filepath.Join(p.bin, "gpu-validator"),
		append([]string{"preflight", "--host-root", p.root, "--allow-simulated", "--timeout", "2m"}, args...)...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "GORACE=atexit_sleep_ms=0"}
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		require.IsType(p.t, &exec.ExitError{}, err)
	}
	return cmd.ProcessState.ExitCode(), string(out), said.String()
}

func (p *preflightRig) result(want int, args ...string) preflight.Result {
	p.t.Helper()
	exit, out, said := p.runPreflight(append(args, "-o", "json")...)
	require.Equal(p.t, want, exit, out+said)
	var r preflight.Result
	require.NoError(p.t, json.Unmarshal([]byte(out), &r))
	return r
}

func TestAPreflightOfASimulatedNode(t *testing.T) {
	p := newPreflight(t, "h100-sxm", 3)
	page := filepath.Join(t.TempDir(), "gpus.html")
	exit, out, said := p.runPreflight("--html", page)
	require.Zero(t, exit, out+said)
	require.Contains(t, out, "3 × SIMULATED NVIDIA H100 80GB HBM3")
	require.Contains(t, out, "copy: n/a (simulated)\nfp32: n/a (simulated)\n")
	require.Contains(t, out, "gpu-validator: preflight PASSED (SIMULATED)\n")
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(html), "There is no GPU under this driver.")

	exit, out, said = p.runPreflight("--html", filepath.Join(page, "not-a-folder"))
	require.Equal(t, 1, exit)
	require.Contains(t, out, "preflight PASSED (SIMULATED)", "what was found is shown all the same")
	require.Contains(t, said, "--html: ")

	r := p.result(0)
	require.Len(t, r.GPUs, 3)
	for _, g := range r.GPUs {
		require.NotNil(t, g.Condition)
		require.Len(t, g.Condition.NVLinks.Up, 18)
		require.Len(t, g.Runs, 6)
	}
	kept, err := os.ReadDir(p.path("/var/lib/gpuready/preflight"))
	require.NoError(t, err)
	require.Len(t, kept, 3)

	built.Gpusim(t, "up", "--root", p.path(driverRoot), "--profile", "h100-sxm", "--gpus", "3", "--seed", "other")
	r = p.result(0)
	require.Equal(t, 3, strings.Count(strings.Join(r.Notes, "\n"), " was exchanged: "), r.Notes)

	p.writeState(nodestate.State{Component: nodestate.DevicePlugin, Phase: nodestate.Ready, DevicePlugin: &nodestate.DevicePluginInfo{Serve: nodestate.ServeDRA}})
	require.Contains(t, strings.Join(p.result(0).Notes, "\n"), "this looks at the host's GPUs and makes no claim")
}

// No machine of the simulator has a finding: all are healthy, whatever NVML does not know of them.
func TestAPreflightOfEverySimulatedMachine(t *testing.T) {
	for profile, gpus := range map[string]int{
		"a100-80gb": 8, "a10g": 1, "b200": 8, "b300": 8, "dgx-2": 16, "gb10": 1, "gb200": 4, "gh200": 1, "h20": 8, "h200-sxm": 8,
		"l40s": 4, "mixed": 4, "rtx-pro-6000": 4, "t4": 1, "v100-sxm2": 8, "vgpu": 1,
	} {
		t.Run(profile, func(t *testing.T) {
			p := newPreflight(t, profile, gpus)
			r := p.result(0)
			require.Len(t, r.GPUs, gpus)
			for _, g := range r.GPUs {
				require.Empty(t, g.Findings)
				require.NotNil(t, g.Condition)
				require.Equal(t, map[string]int{"gb200": 10, "gh200": 10}[profile], g.Condition.C2CLinks)
			}
		})
	}
}

func TestAPreflightRefusesASimulatedDriver(t *testing.T) {
	p := newPreflight(t, "t4", 1)
	exit, out, _ := p.runPreflight("--allow-simulated=false")
	require.Equal(t, 10, exit)
	require.Contains(t, out, "SimulatedDriverRefused")
	require.NoDirExists(t, p.path("/var/lib"))
}

func TestAPreflightOfMIGDevices(t *testing.T) {
	p := newPreflight(t, "a100-80gb", 2)
	p.gpusim("mig", 1, "--layout", "1g.10gb,2g.20gb")
	r := p.result(0)
	var ran []string
	for _, g := range r.GPUs {
		ran = append(ran, fmt.Sprintf("%s %s %d", g.Index, g.Profile, len(g.Runs)))
	}
	require.Equal(t, []string{"0  6", "1  0", "1:0 2g.20gb 6", "1:1 1g.10gb 6"}, ran)
}

// TestThePreflightNamesTheBrokenGPU breaks the second of three GPUs.
func TestThePreflightNamesTheBrokenGPU(t *testing.T) {
	only := func(p *preflightRig, then string) string {
		return `if [ "$CUDA_VISIBLE_DEVICES" = ` + string(p.gpusOf()[1].UUID) + " ]; then " + then + "; fi\n" + fmt.Sprintf(speaks, "")
	}
	for name, c := range map[string]struct {
		exit   int
		reason gpu.Reason
		do     func(p *preflightRig)
	}{
		"ECC error":      {40, gpu.ReasonECC, func(p *preflightRig) { p.gpusim("ecc", 1, "--uncorrected", "1") }},
		"a row to remap": {40, gpu.ReasonResetNeeded, func(p *preflightRig) { p.gpusim("remap", 1) }},
		"XID in a sample": {40, gpu.ReasonXID, func(p *preflightRig) {
			p.sample("gemm", only(p, built.Path(p.t, "gpusim")+" xid --root "+p.path(driverRoot)+" --gpu 1 --xid 48"))
		}},
		"wrong product": {41, "WrongResult", func(p *preflightRig) {
			p.sample("gemm", only(p, `echo '{"passed": false, "error": "element 3, 4"}'; exit 3`))
		}},
		"bad memory": {41, "MemoryWrong", func(p *preflightRig) {
			p.sample("memtest", only(p, `echo '{"passed": false, "error": "x", "wrongCount": 1, "wrong": [{"address": "0x7f00", "want": "0xff", "got": "0xfe"}]}'; exit 3`))
		}},
		"a call that failed": {40, "SampleFailed", func(p *preflightRig) { p.sample("compute", only(p, `exit 1`)) }},
		"no result":          {43, "NoResultInTime", func(p *preflightRig) { p.sample("compute", only(p, `exit 4`)) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPreflight(t, "h100-sxm", 3)
			c.do(p)
			r := p.result(c.exit)
			var reasons []gpu.Reason
			for _, f := range r.GPUs[1].Findings {
				reasons = append(reasons, f.Reason)
			}
			require.Contains(t, reasons, c.reason)
			for _, i := range []int{0, 2} {
				require.Empty(t, r.GPUs[i].Findings, "GPU %d", i)
			}
		})
	}
}

// TestAHangingGPUDelaysNoOther lets a sample hang on the second of three GPUs.
func TestAHangingGPUDelaysNoOther(t *testing.T) {
	t.Parallel()
	p := newPreflight(t, "h100-sxm", 3)
	p.sample("vectoradd", `[ "$CUDA_VISIBLE_DEVICES" != `+string(p.gpusOf()[1].UUID)+" ] || sleep 1000\n"+fmt.Sprintf(speaks, ""))
	r := p.result(43, "--timeout", "30s")
	require.Len(t, r.GPUs[1].Runs, 1, "nothing more is tried on it")
	require.Equal(t, gpu.Reason("NoResultInTime"), r.GPUs[1].Findings[0].Reason)
	for _, i := range []int{0, 2} {
		require.Len(t, r.GPUs[i].Runs, 6)
		require.Empty(t, r.GPUs[i].Findings)
	}
}

// TestTheRealSamplesFindABrokenGPU breaks the second of three GPUs in the
// driver, for the real samples to find.
func TestTheRealSamplesFindABrokenGPU(t *testing.T) {
	for name, c := range map[string]struct {
		exit    int
		reasons []gpu.Reason
		says    string
		damage  []string
	}{
		"nothing":           {exit: 0},
		"a bit that sticks": {41, []gpu.Reason{"WrongResult", "MemoryWrong"}, "memtest: 1 word is bad: 0x410000001000: ", []string{"memfault", "--kind", "stuck-at-1", "--offset", "4096", "--bit", "7"}},
		"arithmetic":        {41, []gpu.Reason{"WrongResult"}, "vectoradd: element ", []string{"wrong", "--every", "1000"}},
		"heat":              {40, []gpu.Reason{"ClocksHeldDown"}, "HWThermalSlowdown", []string{"degrade", "--throttle", "hw-thermal"}},
		"lanes":             {40, []gpu.Reason{"PCIeLinkDegraded"}, "×8, and most GPUs of its product here have ×16", []string{"degrade", "--pcie-width", "8"}},
		"NVLinks":           {40, []gpu.Reason{"NVLinkDown"}, "16 of 18 NVLinks are up; down: 2, 5", []string{"degrade", "--links-down", "2,5"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPreflight(t, "h100-sxm", 3)
			for _, sample := range []string{"vectoradd", "reduction", "gemm", "bandwidth", "memtest", "compute"} {
				require.NoError(t, os.Remove(filepath.Join(p.bin, sample)))
				require.NoError(t, os.Symlink(built.Path(t, sample), filepath.Join(p.bin, sample)))
			}
			if c.damage != nil {
				p.gpusim(c.damage[0], 1, c.damage[1:]...)
			}
			r := p.result(c.exit)
			var text strings.Builder
			var reasons []gpu.Reason
			for i, g := range r.GPUs {
				for _, f := range g.Findings {
					require.Equal(t, 1, i, f.Message)
					reasons = append(reasons, f.Reason)
					fmt.Fprintln(&text, f.Message)
				}
			}
			require.Empty(t, r.Findings)
			require.Subset(t, reasons, c.reasons)
			require.Contains(t, text.String(), c.says)
		})
	}
}

func TestAPreflightWithoutASampleIsNotRun(t *testing.T) {
	p := newPreflight(t, "t4", 1)
	require.NoError(t, os.Remove(filepath.Join(p.bin, "gemm")))
	exit, out, said := p.runPreflight()
	require.Equal(t, 43, exit)
	require.Contains(t, out, "SampleMissing: the sample gemm is neither beside gpu-validator nor in PATH")
	require.Contains(t, said, "install it on the node")
}

func TestAPreflightRefusesInvalidFlags(t *testing.T) {
	p := newPreflight(t, "t4", 1)
	path := filepath.Join(t.TempDir(), "t.yaml")
	require.NoError(t, os.WriteFile(path, []byte("outlier: 7"), 0o644))
	for _, args := range [][]string{{"--thresholds", path}, {"-o", "yaml"}, {"--timeout", "1s"}, {"all"}, {"--results-dir", "here"}} {
		exit, _, said := p.runPreflight(args...)
		require.Equal(t, 2, exit, said)
	}
	_, _, said := p.runPreflight("--thresholds", path)
	require.Contains(t, said, path+": outlier: want a share between 0 and 1, have 7")
	exit, out, _ := p.runPreflight("--help")
	require.Zero(t, exit)
	require.Contains(t, out, "PREFLIGHT_TIMEOUT")
	require.Contains(t, out, "40 to 43")
}

// gpusOf returns the GPUs as named by a preflight.
func (p *preflightRig) gpusOf() []preflight.GPU {
	p.t.Helper()
	return p.result(0, "--results-dir", "").GPUs
}
