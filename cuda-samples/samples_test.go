// Package samples tests the common behaviour of all CUDA samples, with the built programs
// on simulated drivers. It finds each sample by its folder.
package samples

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

	"github.com/gpuready/gpuready/test/lab/built"
)

// small holds arguments that make a slow sample fast.
var small = map[string][]string{
	"vectoradd": {"--elements", "1000"},
	"reduction": {"--elements", "5000"},
	"gemm":      {"--m", "20", "--n", "12", "--k", "24"},
}

func names(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("*/main.go")
	require.NoError(t, err)
	var all []string
	for _, path := range found {
		all = append(all, filepath.Dir(path))
	}
	require.Contains(t, all, "vectoradd")
	return all
}

type result struct {
	stdout, stderr string
	exit           int
}

// start runs the built program against a driver root; root "": without a driver.
func start(t *testing.T, name, root string, args []string, env ...string) result {
	t.Helper()
	cmd := exec.Command(built.Path(t, name), args...)
	if root != "" {
		libs, err := filepath.Glob(filepath.Join(root, "usr/lib/*/libcuda.so.1"))
		require.NoError(t, err)
		require.Len(t, libs, 1)
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+filepath.Dir(libs[0]))
	}
	cmd.Env = append(cmd.Env, env...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	_ = cmd.Run() // the exit code tells
	return result{out.String(), log.String(), cmd.ProcessState.ExitCode()}
}

// object returns the JSON object on stdout, which has to be the only one.
func (r result) object(t *testing.T) map[string]any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(r.stdout))
	var o map[string]any
	require.NoError(t, d.Decode(&o), "%s%s", r.stdout, r.stderr)
	require.False(t, d.More(), r.stdout)
	return o
}

func TestEverySampleKeepsTheContract(t *testing.T) {
	whole := built.DriverRoot(t, "h100-sxm", "--gpus", "2")
	older := built.DriverRoot(t, "t4")
	cut := built.DriverRoot(t, "a100-80gb", "--gpus", "1")
	built.Gpusim(t, "mig", "--root", cut, "--gpu", "0", "--layout", "3g.40gb")
	mig := uuids(t, cut)[0]
	for _, name := range names(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			second := start(t, name, whole, append(small[name], "--json", "--device", "1"))
			require.Zero(t, second.exit, second.stderr)
			o := second.object(t)
			require.Equal(t, name, o["sample"])
			require.NotEmpty(t, o["version"])
			require.Equal(t, true, o["passed"])
			require.Equal(t, true, o["simulated"])
			require.NotContains(t, o, "error")
			require.Equal(t, "13.0", o["cuda"])
			require.Equal(t, "SIMULATED NVIDIA H100 80GB HBM3", o["device"])
			require.Equal(t, uuids(t, whole)[1], o["uuid"])
			require.Regexp(t, `^[0-9a-f]{4}:[0-9a-f]{2}:00\.0$`, o["pci"])
			require.Equal(t, "9.0", o["capability"])
			require.EqualValues(t, 1, o["runs"])
			for _, phase := range []string{"init", "context", "compile"} {
				require.Contains(t, o["seconds"], phase)
			}
			for _, key := range []string{"figures", "peers"} {
				list, _ := o[key].([]any)
				for _, one := range list {
					require.NotContains(t, one, "value", "a simulated driver has no speed")
				}
			}

			a := start(t, name, older, append(small[name], "-o", "json"))
			require.Zero(t, a.exit, a.stderr)
			require.Equal(t, "7.5", a.object(t)["capability"])

			a = start(t, name, cut, append(small[name], "--json"), "CUDA_VISIBLE_DEVICES="+mig)
			require.Zero(t, a.exit, a.stderr)
			require.Equal(t, mig, a.object(t)["uuid"])

			a = start(t, name, older, small[name])
			require.Zero(t, a.exit, a.stderr)
			require.True(t, strings.HasSuffix(a.stdout, "Test PASSED (SIMULATED)\nDone\n"), a.stdout)
		})
	}
}

func TestEverySampleReportsWhyItFailed(t *testing.T) {
	root := built.DriverRoot(t, "t4")
	lost := built.DriverRoot(t, "t4")
	built.Gpusim(t, "lose", "--root", lost, "--gpu", "0")
	for _, name := range names(t) {
		upper := strings.ToUpper(name)
		for _, c := range []struct {
			what, root string
			args       []string
			env        string
			exit       int
			says       string
		}{
			{"no driver", "", nil, "", 1, "no CUDA driver library"},
			{"no device", root, nil, "CUDA_VISIBLE_DEVICES=-1", 1, "cuInit: error 100 (CUDA_ERROR_NO_DEVICE); no GPU is visible here"},
			{"another device", root, []string{"--device", "7"}, "", 1, `device "7" is not visible here; visible: 0 (GPU-`},
			{"by the environment", root, nil, upper + "_DEVICE=7", 1, `device "7" is not visible here`},
			{"a lost GPU", lost, nil, "", 1, "error "},
			{"no time", root, []string{"--timeout", "1ns"}, "", 4, "no result in time"},
			{"unknown flag", root, []string{"--frobnicate"}, "", 2, "unknown flag --frobnicate; see " + name + " --help"},
			{"unknown output", root, nil, upper + "_OUTPUT=xml", 2, `--output is "xml"`},
			{"no duration", root, nil, upper + "_TIMEOUT=soon", 2, upper + "_TIMEOUT, for --timeout: "},
		} {
			t.Run(name+"/"+c.what, func(t *testing.T) {
				t.Parallel()
				if c.what == "no driver" {
					built.SkipWithCUDA(t)
				}
				a := start(t, name, c.root, c.args, c.env)
				require.Equal(t, c.exit, a.exit, a.stderr)
				require.True(t, strings.HasPrefix(a.stderr, name+": "), a.stderr)
				require.Contains(t, a.stderr, c.says)
				if c.exit == 2 {
					require.Empty(t, a.stdout)
					return
				}
				require.True(t, strings.HasSuffix(a.stdout, "Test FAILED\n"), a.stdout)
				o := start(t, name, c.root, append(c.args, "--json"), c.env).object(t)
				require.Equal(t, false, o["passed"])
				require.Contains(t, o["error"], c.says)
				if c.what == "no time" {
					require.Contains(t, a.stderr, "no result in time; next: "+o["next"].(string))
				}
			})
		}
	}
}

func TestEveryHelpNamesFlagsEnvironmentAndExitCodes(t *testing.T) {
	for _, name := range names(t) {
		a := start(t, name, "", []string{"--help"})
		require.Zero(t, a.exit)
		require.Empty(t, a.stderr)
		for _, flag := range []string{"device", "timeout", "for", "every", "output", "json"} {
			require.Contains(t, a.stdout, "--"+flag+" ")
			require.Contains(t, a.stdout, "["+strings.ToUpper(name)+"_"+strings.ToUpper(flag)+"]")
		}
		require.Contains(t, a.stdout, "Exit codes:\n  0  passed\n  1  ")
		for line := range strings.Lines(a.stdout) {
			require.LessOrEqual(t, len([]rune(strings.TrimSuffix(line, "\n"))), 100, line)
		}
		require.Equal(t, a, start(t, name, "", []string{"help"}))
		version := start(t, name, "", []string{"--version"})
		require.True(t, strings.HasPrefix(version.stdout, name+" "))
		require.Equal(t, version, start(t, name, "", []string{"version"}))
		require.Equal(t, name, start(t, name, "", []string{"version", "-o", "json"}).object(t)["program"])
		require.Equal(t, 2, start(t, name, "", []string{"version", "x"}).exit)
	}
}

func TestEverySampleIsBuiltShippedAndDescribed(t *testing.T) {
	for path, form := range map[string]string{
		"Makefile": `(?m)^SAMPLES .*\b%s\b`,
		"deployments/images/cuda-samples/Containerfile": `(?m)^COPY .*\b%s\b`,
		"deployments/images/validator/Containerfile":    `(?m)^COPY .*\b%s\b`,
		"docs/preflight.md":                             `(?m)^### %s$`,
	} {
		text, err := os.ReadFile(filepath.Join("..", path))
		require.NoError(t, err)
		for _, name := range names(t) {
			require.Regexp(t, fmt.Sprintf(form, name), string(text), path)
		}
	}
}

// uuids returns the UUIDs of the CUDA devices of a driver root: MIG devices where there are any.
func uuids(t *testing.T, root string) []string {
	t.Helper()
	smi := filepath.Join(root, "usr/bin/nvidia-smi")
	cmd := exec.Command(smi, "-L")
	libs, err := filepath.Glob(filepath.Join(root, "usr/lib/*/libcuda.so.1"))
	require.NoError(t, err)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(libs[0]))
	out, err := cmd.Output()
	require.NoError(t, err)
	var gpus, migs []string
	for line := range strings.Lines(string(out)) {
		_, uuid, found := strings.Cut(line, "UUID: ")
		switch uuid = strings.TrimRight(uuid, ")\n"); {
		case found && strings.HasPrefix(uuid, "MIG-"):
			migs = append(migs, uuid)
		case found:
			gpus = append(gpus, uuid)
		}
	}
	if len(migs) > 0 {
		return migs
	}
	return gpus
}
