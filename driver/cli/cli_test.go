package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/program"
)

// call runs gpu-driver and returns its output and exit code.
func call(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, err bytes.Buffer
	code = Main(t.Context(), args, &out, &err)
	return out.String(), err.String(), code
}

func TestEachCommandHasHelpWithExamplesAndExitCodes(t *testing.T) {
	all, _, code := call(t, "--help")
	require.Zero(t, code)
	for _, command := range []string{"run", "load", "unload", "check", "build", "push", "share", "status", "probe", "modinfo"} {
		require.Contains(t, all, "\n  "+command+" ")
		text, _, code := call(t, command, "--help")
		require.Zero(t, code)
		for _, part := range []string{"Examples:\n  gpu-driver " + command, "Exit codes:\n  0  done"} {
			require.Contains(t, text, part)
		}
		for line := range strings.Lines(text) {
			require.LessOrEqual(t, len(strings.TrimRight(line, "\n")), 200, line)
		}
	}
}

func TestInvalidArgumentsAreReported(t *testing.T) {
	image := t.TempDir()
	for _, c := range []struct{ args, want string }{
		{"", "no command; see gpu-driver --help"},
		{"run --kernel-module-type closed --image-root " + image, `--kernel-module-type: kernel module type "closed": want auto, open or proprietary`},
		{"run --open-kernel-modules --kernel-module-type proprietary", "contradict each other"},
		{"run --root driver", `--root: "driver" is no absolute path`},
		{"check --image-root ./driver", `--image-root: "./driver" is no absolute path`},
		{"check -o yaml", `--output "yaml": want table or json`},
		{"check more", `check takes no arguments, but was given "more"`},
		{"modinfo", "modinfo of which file?"},
		{"run --sign-key /x --image-root " + image, "--sign-key needs --sign-certificate"},
		{"run --prebuild-repository r/x:1 --image-root " + image, `--prebuild-repository: "r/x:1" is not a repository`},
		{"run --prebuild-repository r/x --image-root " + image, "--prebuild-repository needs --driver-version and --os-tag"},
		{"push --modules /x", "push needs --"},
		{"share", "share needs --to"},
		{"build --out /x", "build needs --source and --out"},
		{"status --log-level=debug", "unknown flag --log-level"},
	} {
		_, stderr, code := call(t, strings.Fields(c.args)...)
		require.Equal(t, program.Usage, code, stderr)
		require.Contains(t, stderr, c.want)
	}
	_, stderr, code := call(t, "check", "--image-root", filepath.Join(image, "none"))
	require.Equal(t, program.Failed, code)
	require.Contains(t, stderr, "/none is not there: this image holds no driver; use one that does, or name its folder with --image-root")
	require.NoError(t, os.WriteFile(filepath.Join(image, "x.ko"), []byte("text"), 0o644))
	_, stderr, code = call(t, "modinfo", filepath.Join(image, "x.ko"))
	require.Equal(t, program.Failed, code)
	require.Contains(t, stderr, "x.ko: not a kernel module")
}

func TestImageForAnotherKernelIsRejectedFirst(t *testing.T) {
	image, run := t.TempDir(), t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(image, "lib/modules/5.14.0-1.el9.x86_64"), 0o755))
	stdout, stderr, code := call(t, "check", "--without-gpu", "--image-root", image, "-o", "json")
	require.Equal(t, exitRefused, code)
	require.Contains(t, stdout, `"refusal": "KernelMismatch"`)
	require.Contains(t, stderr, "KernelMismatch: the driver's image has no modules for kernel ")
	require.Contains(t, stderr, "but for 5.14.0-1.el9.x86_64; use the image for this kernel")

	state := filepath.Join(run, "gpuready")
	_, stderr, code = call(t, "run", "--without-gpu", "--image-root", image, "--root", filepath.Join(run, "driver"), "--state-dir", state, "--output-dir", filepath.Join(run, "validations"), "--listen=")
	require.Equal(t, exitRefused, code, stderr)
	s, err := nodestate.Read(filepath.Join(state, "driver"))
	require.NoError(t, err)
	require.Equal(t, nodestate.Failed, s.Phase)
	require.EqualValues(t, "KernelMismatch", s.Reason)
	stdout, _, code = call(t, "status", "--state-dir", state)
	require.Equal(t, exitNotReady, code)
	require.Contains(t, stdout, "phase    Failed\nreason   KernelMismatch: the driver's image")
	_, stderr, code = call(t, "probe", "--state-dir", state)
	require.Equal(t, exitNotReady, code)
	require.Contains(t, stderr, "Failed: KernelMismatch: ")
	_, stderr, code = call(t, "probe", "--state-dir", t.TempDir())
	require.Equal(t, exitNotReady, code)
	require.Contains(t, stderr, "no driver has published its state since this node was booted")
}

func TestProbeOfPeermem(t *testing.T) {
	before := kernel.Host
	t.Cleanup(func() { kernel.Host = before })
	kernel.Host.Proc = t.TempDir()
	for modules, want := range map[string]int{
		"": 0, "nvidia 1 0 - Live 0x0\n": 0, "mlx5_core 1 0 - Live 0x0\n": exitNotReady,
		"mlx5_core 1 0 - Live 0x0\nnvidia_peermem 1 0 - Live 0x0\n": 0, "nonsense\n": program.Failed,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(kernel.Host.Proc, "modules"), []byte(modules), 0o644))
		_, stderr, code := call(t, "probe_nvidia_peermem")
		require.Equal(t, want, code, "%s: %s", modules, stderr)
	}
	// The wait for the network's driver ends with the container.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	require.Zero(t, Main(ctx, []string{"reload_nvidia_peermem", "--image-root", t.TempDir(), "--network-ready", "/none"}, &stdout, &stderr), stderr.String())
}
