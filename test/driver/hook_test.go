package driver

import (
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/vm"
)

// TestHookHidesThatDeviceFilesAreCreated runs the hook of containers with a GPU on common kernels with
// the driver's module loaded. Only then does the file that it hides exist.
func TestHookHidesThatDeviceFilesAreCreated(t *testing.T) {
	vm.SkipUnlessEnabled(t)
	for _, series := range vm.AllSeries {
		k := vm.FetchKernel(t, series)
		t.Run("Linux-"+k.Release, func(t *testing.T) {
			t.Parallel()
			m := vm.Boot(t, vm.Config{Kernel: k, Files: vm.Merge(
				k.ModuleTree(t, []string{"ecc"}, nil),
				vm.BuildStubs(t, k, version).Below("/modules"),
				vm.Files{
					"/usr/bin/gpu-cdi-hook": vm.Program(built.Path(t, "gpu-cdi-hook")),
					"/bundle/config.json":   {Data: []byte(`{"ociVersion":"1.0.2","root":{"path":"rootfs"}}`)},
					"/bundle/rootfs/proc":   {Mode: fs.ModeDir | 0o755},
				},
			)})
			m.Run(t.Context(), "modprobe", "ecc")
			require.NoError(t, m.LoadModule(t.Context(), "/modules/nvidia.ko", ""))
			out := m.MustRun(t.Context(), "unshare", "-m", "sh", "-ec", `
				mount --make-rprivate /
				mount --bind /bundle/rootfs /bundle/rootfs
				mount -t proc proc /bundle/rootfs/proc
				before=$(wc -l </proc/self/mountinfo)
				echo '{"bundle":"/bundle"}' | gpu-cdi-hook disable-device-node-modification
				grep -h ModifyDeviceFiles /bundle/rootfs/proc/driver/nvidia/params /proc/driver/nvidia/params
				echo $(($(wc -l </proc/self/mountinfo) - before))`)
			require.Equal(t, "ModifyDeviceFiles: 0\nModifyDeviceFiles: 1\n1\n", out, "in the container, on the host, and one mount for it")
		})
	}
}
