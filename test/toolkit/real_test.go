package toolkit

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/test/lab/binaries"
	"github.com/gpuready/gpuready/test/lab/built"

	"github.com/gpuready/gpuready/test/lab/node"
	devices "github.com/gpuready/gpuready/toolkit/node"
	"github.com/gpuready/gpuready/toolkit/spec"
)

// TestRealLibrariesReachAContainer has the toolkit find NVIDIA's own user space in a driver root laid
// out by Debian's packages, and gives it to a container. There is no driver in the kernel, so NVML
// lists no GPU. The GPU in the specification is invented and its device nodes lead nowhere, which the
// programs in the container report in NVIDIA's words.
func TestRealLibrariesReachAContainer(t *testing.T) {
	if os.Getenv("GPUREADY_REAL_DRIVER") == "" {
		t.Skip("make e2e-driver-real fetches NVIDIA's own driver")
	}
	cache, err := binaries.DefaultCache()
	require.NoError(t, err)
	packages, err := binaries.EnsureDebian(t.Context(), cache, binaries.NVIDIADriver, os.Stderr) // a node has no network
	require.NoError(t, err)
	if !node.Enter(t) {
		return
	}
	version := driverRootOf(t, packages)
	out, err := exec.CommandContext(t.Context(), built.Path(t, "gpu-toolkit"), "apply", "--driver-root", node.DriverRoot).CombinedOutput()
	require.Error(t, err)
	t.Logf("%s", out)
	require.Contains(t, string(out), "the kernel module is not loaded (NVML error 9)")

	s := gputest.Node("t4", 1)
	uuid := string(s.Devices[0].UUID)
	writeSpecs(t, version, uuid, spec.Input{Snapshot: s})
	run := func(args ...string) (string, int) {
		t.Helper()
		out, exit, err := node.RunContainer(t.Context(), node.Container{
			Args: args, CDIDevices: []string{cdi.KindGPU + "=" + uuid},
			Files: map[string]string{"/bin/busybox": "/bin/busybox", "/sbin/ldconfig": "/sbin/ldconfig", "/usr/bin/vectoradd": built.Path(t, "vectoradd")},
		})
		require.NoError(t, err)
		return out, exit
	}
	const libraries = "/usr/lib/x86_64-linux-gnu/nvidia/current"
	known, exit := run("/sbin/ldconfig", "-p")
	require.Zero(t, exit, known)
	for _, l := range []struct{ file, soname string }{
		{"libcuda.so", "libcuda.so.1"},
		{"libnvidia-ml.so", "libnvidia-ml.so.1"},
		{"libnvidia-cfg.so", "libnvidia-cfg.so.1"},
		{"libnvidia-nvvm.so", "libnvidia-nvvm.so.4"},
		{"libnvidia-ptxjitcompiler.so", "libnvidia-ptxjitcompiler.so.1"},
		{"libnvidia-encode.so", "libnvidia-encode.so.1"},
		{"libnvcuvid.so", "libnvcuvid.so.1"},
	} {
		linked, exit := run("/bin/busybox", "readlink", "-f", libraries+"/"+l.soname)
		require.Zero(t, exit, linked)
		require.Equal(t, libraries+"/"+l.file+"."+version+"\n", linked)
		require.Contains(t, known, "\t"+l.soname+" (libc6,x86-64) => "+libraries+"/"+l.soname+"\n")
		sums, exit := run("/bin/busybox", "sha256sum", libraries+"/"+l.soname)
		require.Zero(t, exit, sums)
		data, err := os.ReadFile(filepath.Join(packages, libraries, l.file+"."+version))
		require.NoError(t, err)
		require.Contains(t, sums, fmt.Sprintf("%x", sha256.Sum256(data)))
	}
	linked, exit := run("/bin/busybox", "readlink", "-f", libraries+"/libcuda.so")
	require.Zero(t, exit, linked)
	require.Equal(t, libraries+"/libcuda.so."+version+"\n", linked)

	reported, exit := run("/usr/bin/nvidia-smi")
	t.Log(reported)
	require.Equal(t, 9, exit, "it is 12 where libnvidia-ml is not found")
	require.Contains(t, reported, "couldn't communicate with the NVIDIA driver")
	reported, exit = run("/usr/bin/vectoradd")
	t.Log(reported)
	require.NotZero(t, exit)
	require.Contains(t, reported, "CUDA_ERROR_NO_DEVICE")
}

// driverRootOf installs the files of packages in the node's driver root, and returns the driver's
// version. It makes the link that Debian's alternatives would make.
func driverRootOf(t *testing.T, packages string) (version string) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(packages)))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "usr/bin"), 0o755))
	require.NoError(t, os.Symlink("../lib/nvidia/current/nvidia-smi", filepath.Join(dir, "usr/bin/nvidia-smi")))
	require.NoError(t, unix.Mount(dir, node.DriverRoot, "", unix.MS_BIND, ""))
	found, err := filepath.Glob(filepath.Join(dir, "usr/lib/*/nvidia/current/libcuda.so.*.*"))
	require.NoError(t, err)
	require.Len(t, found, 1)
	return strings.TrimPrefix(filepath.Base(found[0]), "libcuda.so.")
}

// writeSpecs writes the toolkit's CDI specifications for the driver root and a snapshot.
func writeSpecs(t *testing.T, version, uuid string, in spec.Input) {
	t.Helper()
	const hook = "/usr/local/nvidia/gpuready/gpu-cdi-hook"
	program, err := os.ReadFile(built.Path(t, "gpu-cdi-hook"))
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(hook), 0o755))
	require.NoError(t, built.WriteProgram(hook, program, 0o755))
	for _, n := range []devices.Node{{Path: "/dev/nvidiactl", Major: 195, Minor: 255}, {Path: "/dev/nvidia0", Major: 195}, {Path: "/dev/nvidia-uvm", Major: 511}} {
		_ = os.Remove(n.Path) // NVIDIA's libraries create some when they are called
		require.NoError(t, unix.Mknod(n.Path, unix.S_IFCHR|0o666, int(unix.Mkdev(n.Major, n.Minor))))
		in.Nodes.All = append(in.Nodes.All, n)
	}
	root, err := host.Open("/")
	require.NoError(t, err)
	defer root.Close()
	in.Files, err = spec.Find(root, node.DriverRoot, version)
	require.NoError(t, err)
	in.DriverRoot, in.DevRoot, in.Hook = node.DriverRoot, "/", hook
	out := spec.Build(in)
	require.Empty(t, out.Warnings)
	require.NoError(t, os.MkdirAll("/var/run/cdi", 0o755))
	for _, s := range out.Specs {
		data, err := cdi.Encode(s)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join("/var/run/cdi", spec.FileName(s.Kind)), data, 0o644))
		if s.Kind == cdi.KindGPU {
			require.Contains(t, string(data), "hostPath: "+node.DriverRoot+"/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so."+version)
			require.Contains(t, string(data), uuid)
		}
	}
}
