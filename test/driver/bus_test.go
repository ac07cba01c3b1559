package driver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/vm"
)

// TestGPUsOnTheBus boots a machine whose GPU a stand-in for nouveau has taken, and then shows other GPUs on its bus.
func TestGPUsOnTheBus(t *testing.T) {
	vm.SkipUnlessEnabled(t)
	k := vm.FetchKernel(t, vm.Linux61)
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(built.Root(), "simulator/pci"))))
	require.NoError(t, k.Make(t.Context(), dir, "modules"))
	files := vm.Files{"/etc/os-release": {Data: []byte("ID=debian\n")}}
	for _, name := range []string{"gpusim-pci.ko", "nouveau.ko"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		files["/"+name] = vm.File{Data: data}
	}
	n := boot(t, vm.Config{Kernel: k, Memory: 2048, Args: []string{"memmap=128M$0x60000000"}, Files: vm.Merge(
		k.ModuleTree(t, []string{"ecc"}, nil), image("/driver", k.Release, vm.BuildStubs(t, k, version)), files)})
	ctx := t.Context()
	const gpu = "/sys/bus/pci/devices/0001:00:00.0"
	boundTo := func() string {
		return filepath.Base(strings.TrimSpace(n.Run(ctx, "readlink", gpu+"/driver").Stdout))
	}
	takes := func() {
		require.NoError(t, n.LoadModule(ctx, "/nouveau.ko", ""))
		require.Equal(t, "nouveau", boundTo())
	}
	load := func() vm.Result { return n.Run(ctx, "gpu-driver", "load") }
	require.NoError(t, n.LoadModule(ctx, "/gpusim-pci.ko", ""))
	takes()

	// A display server has it.
	number := strings.ReplaceAll(strings.TrimSpace(n.MustRun(ctx, "cat", gpu+"/drm/card0/dev")), ":", " ")
	n.MustRun(ctx, "sh", "-c", "mkdir -p /dev/dri && mknod /dev/dri/card0 c "+number)
	server := n.Start(ctx, vm.Command{Args: []string{"sh", "-c", "exec sleep 100000 3</dev/dri/card0"}})
	for n.Run(ctx, "sh", "-c", "ls -l /proc/[0-9]*/fd | grep -q dri/card0").Code != 0 {
		_, ended := server.Output(ctx)
		require.False(t, ended)
	}
	check := n.MustRun(ctx, "gpu-driver", "check")
	require.Contains(t, check, "take     0001:00:00.0 from nouveau: not now, it is in use by pid ")
	r := load()
	require.Equal(t, 3, r.Code, "%s", r)
	require.Contains(t, r.Stderr, "gpu-driver: NouveauInTheWay: the kernel's driver nouveau has GPU 0001:00:00.0: it is in use by pid ")
	require.Contains(t, r.Stderr, "(sleep) with /dev/dri/card0. To keep it away for good: printf 'blacklist nouveau")
	require.Contains(t, r.Stderr, "update-initramfs -u")
	require.EqualValues(t, "NouveauInTheWay", n.state().Reason)
	require.Equal(t, "nouveau", boundTo())
	require.Empty(t, n.modules())
	t.Log(lastLine(r.Stderr))

	// Nobody has it.
	n.kill(server)
	r = load()
	require.Zero(t, r.Code, "%s", r)
	require.Contains(t, r.Stderr, "GPU taken from another driver")
	require.NotEqual(t, "nouveau", boundTo())
	require.NotContains(t, n.MustRun(ctx, "cat", "/proc/modules"), "nouveau ")
	require.Len(t, n.modules(), 3)
	n.unloads()

	// With vfio-pci, it stays and is named.
	n.setPCI([2]string{"0x030200", "0x2330"})
	n.MustRun(ctx, "sh", "-c", "mkdir -p /run/vfio-pci && ln -s /run/vfio-pci /sys/bus/pci/devices/0000:3b:00.0/driver")
	r = load()
	require.Equal(t, 3, r.Code, "%s", r)
	require.Contains(t, r.Stderr, "all NVIDIA GPUs on this node's PCI bus are held for virtual machines (0000:3b:00.0 by vfio-pci): no driver is loaded")

	// The memory of a GH200 stays the GPU's, unless that is configured.
	n.setPCI([2]string{"0x030200", "0x2342"})
	mode := func() string { return n.MustRun(ctx, "grep", "CoherentGPUMemoryMode", "/proc/driver/nvidia/params") }
	require.Zero(t, load().Code)
	require.Equal(t, "CoherentGPUMemoryMode: \"driver\"\n", mode())
	n.MustRun(ctx, "mkdir", "-p", "/drivers")
	require.NoError(t, n.WriteFile(ctx, "/drivers/nvidia.conf", "NVreg_CoherentGPUMemoryMode=numa\n", 0o644))
	require.Zero(t, load().Code)
	require.Equal(t, "CoherentGPUMemoryMode: \"numa\"\n", mode())
	n.unloads()
}
