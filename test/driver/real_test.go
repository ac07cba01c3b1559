package driver

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/built"
	"github.com/gpuready/gpuready/test/cluster/binaries"
	"github.com/gpuready/gpuready/test/debian"
	"github.com/gpuready/gpuready/test/machine"
)

// realModules are NVIDIA's own modules as Debian's package has them, built for a kernel by
// gpu-driver build: some minutes the first time, and 70 MB that are not ours to distribute.
func realModules(t *testing.T, k *machine.Kernel) machine.Modules {
	t.Helper()
	cache, err := binaries.DefaultCache()
	require.NoError(t, err)
	root, err := debian.Ensure(t.Context(), cache, debian.Set{
		Release: "bookworm", Sections: "main contrib non-free non-free-firmware", Security: true, Packages: []string{"nvidia-kernel-source"},
	}, os.Stderr)
	require.NoError(t, err)
	work, out := t.TempDir(), t.TempDir()
	run := func(name string, args ...string) {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = work
		printed, err := cmd.CombinedOutput()
		t.Logf("%s", printed[max(0, len(printed)-2000):])
		require.NoError(t, err)
	}
	run("tar", "-xf", filepath.Join(root, "usr/src/nvidia-kernel.tar.xz"))
	run(built.Path(t, "gpu-driver"), "build", "--source", "modules/nvidia-kernel", "--kernel", k.Release, "--headers-root", k.Root(),
		"--out", out, "--cache", filepath.Join(cache, "driver"))
	at := filepath.Join(out, "lib/modules", k.Release)
	modules := machine.Modules{}
	for _, name := range []string{"nvidia", "nvidia-uvm", "nvidia-modeset"} {
		modules[name+".ko"], err = os.ReadFile(filepath.Join(at, name+".ko"))
		require.NoError(t, err)
	}
	return modules
}

// TestRealModules has gpu-driver load NVIDIA's own modules, on a machine without a GPU and
// on one whose PCI bus shows the numbers of one. Nothing that they say of a GPU is real.
func TestRealModules(t *testing.T) {
	machine.SkipUnlessEnabled(t)
	if os.Getenv("GPUREADY_REAL_DRIVER") == "" {
		t.Skip("make e2e-driver-real builds NVIDIA's own modules")
	}
	k := machine.FetchKernel(t, machine.Linux61)
	modules := realModules(t, k)
	standin := t.TempDir()
	require.NoError(t, os.CopyFS(standin, os.DirFS(filepath.Join(built.Root(), "simulator/pci"))))
	require.NoError(t, k.Make(t.Context(), standin, "modules"))
	n := boot(t, machine.Config{
		Kernel: k, Memory: 3072, Args: []string{"memmap=128M$0x60000000"},
		Files: machine.Merge(
			k.ModuleTree(t, []string{"ecc"}, nil),
			image("/driver", k.Release, modules),
			machine.Files{"/gpusim-pci.ko": machine.Program(filepath.Join(standin, "gpusim-pci.ko"))},
		),
	})
	ctx := t.Context()
	info := n.MustRun(ctx, "gpu-driver", "modinfo", "/driver/lib/modules/"+k.Release+"/nvidia.ko")
	t.Log(info[:min(len(info), 600)])
	n.refuses("NoDevice", "NVRM: No NVIDIA GPU found.")
	require.Empty(t, n.modules())

	require.NoError(t, n.LoadModule(ctx, "/gpusim-pci.ko", ""))
	t.Log(n.MustRun(ctx, "gpu-driver", "check"))
	n.MustRun(ctx, "mkdir", "-p", "/drivers")
	require.NoError(t, n.WriteFile(ctx, "/drivers/nvidia.conf", "NVreg_EnableMSI=0\n", 0o644))
	r := n.driver("load")
	t.Log(r.Stderr)
	require.Equal(t, 3, r.Code)
	require.Contains(t, r.Stderr, "DeviceInitFailed: GPU 0001:00:00.0: the driver cannot initialise it: ")
	require.Equal(t, nodestate.Failed, n.state().Phase)
	require.Contains(t, n.MustRun(ctx, "cat", "/proc/driver/nvidia/version"), "NVRM version: NVIDIA UNIX x86_64 Kernel Module")
	require.Contains(t, n.MustRun(ctx, "cat", "/proc/driver/nvidia/params"), "EnableMSI: 0")
	require.Contains(t, n.MustRun(ctx, "cat", "/proc/devices"), "nvidia-uvm")
	require.Len(t, n.modules(), 3)
	n.unloads()
}
