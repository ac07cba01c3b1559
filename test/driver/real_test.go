package driver

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/binaries"
	"github.com/gpuready/gpuready/test/lab/built"

	"github.com/gpuready/gpuready/test/lab/vm"
)

// skipUnlessReal skips a test that fetches NVIDIA's packages, which we may not distribute, unless the
// environment enables it.
func skipUnlessReal(t testing.TB) {
	t.Helper()
	if os.Getenv("GPUREADY_REAL_DRIVER") == "" {
		t.Skip("make e2e-driver-real fetches NVIDIA's own driver")
	}
}

// fetch returns the folder with unpacked packages of Debian, and the cache that holds it.
func fetch(t testing.TB, s binaries.DebianSet) (root, cache string) {
	t.Helper()
	cache, err := binaries.DefaultCache()
	require.NoError(t, err)
	root, err = binaries.EnsureDebian(t.Context(), cache, s, os.Stderr)
	require.NoError(t, err)
	return root, cache
}

// source is a folder with sources of NVIDIA's modules.
type source struct {
	top     string // holds dir; gpu-driver is run there
	dir     string // below top
	version string
	cache   string
}

// fetchSource unpacks the sources in a package of Debian: "nvidia-kernel".
func fetchSource(t testing.TB, s binaries.DebianSet, name string) source {
	t.Helper()
	root, cache := fetch(t, s)
	src := source{top: t.TempDir(), dir: "modules/" + name, cache: cache}
	out, err := exec.CommandContext(t.Context(), "tar", "-C", src.top, "-xf", filepath.Join(root, "usr/src", name+".tar.xz")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	text, err := os.ReadFile(filepath.Join(src.top, src.dir, "Kbuild"))
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), `-DNV_VERSION_STRING=\"`)
	src.version, _, _ = strings.Cut(rest, `\"`)
	require.NotEmpty(t, src.version)
	return src
}

// build runs gpu-driver build for a kernel whose headers are below a root. The returned folder has the
// content of an image's /driver/lib/modules/<release>. The cache keeps it: the first build takes some
// minutes.
func (s source) build(t testing.TB, headers, release string, args ...string) (dir, printed string, err error) {
	t.Helper()
	out := t.TempDir()
	cmd := exec.CommandContext(t.Context(), built.Path(t, "gpu-driver"), append([]string{"build", "--source", s.dir, "--kernel", release,
		"--headers-root", headers, "--out", out, "--cache", filepath.Join(s.cache, "driver")}, args...)...)
	cmd.Dir = s.top
	text, err := cmd.CombinedOutput()
	return filepath.Join(out, "lib/modules", release), string(text), err
}

// modules returns the modules for a kernel, as Kbuild links them.
func (s source) modules(t testing.TB, k *vm.Kernel) vm.Modules {
	t.Helper()
	dir, printed, err := s.build(t, k.Root(), k.Release)
	require.NoError(t, err, printed)
	t.Log(lastLine(printed))
	m := read(t, dir)
	require.Len(t, m, 3)
	return m
}

// standin returns the module that shows NVIDIA's modules a PCI bus with a nonexistent device, and the
// kernel argument that it needs.
func standin(t testing.TB, k *vm.Kernel) (m vm.Modules, argument string) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(built.Root(), "simulator/pci"))))
	require.NoError(t, k.Make(t.Context(), dir, "modules"))
	data, err := os.ReadFile(filepath.Join(dir, "gpusim-pci.ko"))
	require.NoError(t, err)
	return vm.Modules{"gpusim-pci.ko": data}, "memmap=128M$0x60000000"
}

// realMemory is the memory of a machine that loads NVIDIA's modules, in MiB.
const realMemory = 3072

// TestRealModules has gpu-driver load NVIDIA's own modules, on a machine without a GPU and on one whose
// PCI bus shows the numbers of one. Nothing that they report about a GPU is real.
func TestRealModules(t *testing.T) {
	vm.SkipUnlessEnabled(t)
	skipUnlessReal(t)
	k := vm.FetchKernel(t, vm.Linux61)
	modules := fetchSource(t, binaries.NVIDIASources, "nvidia-kernel").modules(t, k)
	pci, argument := standin(t, k)
	n := boot(t, vm.Config{
		Kernel: k, Memory: realMemory, Args: []string{argument},
		Files: vm.Merge(k.ModuleTree(t, []string{"ecc"}, nil), image("/driver", k.Release, modules), persistenced(t), pci.Below("/")),
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
	n.failsToInitialise()
	require.Contains(t, n.MustRun(ctx, "cat", "/proc/driver/nvidia/params"), "EnableMSI: 0")
	reportsPersistenced(n)
	n.unloads()
}

// failsToInitialise runs load: the modules stay, and report that the stand-in is no GPU.
func (n *node) failsToInitialise(args ...string) string {
	n.t.Helper()
	ctx := n.t.Context()
	r := n.driver("load", args...)
	n.t.Log(r.Stderr)
	require.Equal(n.t, 3, r.Code, "%s", r)
	require.Contains(n.t, r.Stderr, "DeviceInitFailed: GPU "+standinAddress+": the driver cannot initialise it: ")
	require.Equal(n.t, nodestate.Failed, n.state().Phase)
	require.Contains(n.t, n.MustRun(ctx, "cat", "/proc/driver/nvidia/version"), "NVRM version: NVIDIA UNIX x86_64 Kernel Module")
	require.Contains(n.t, n.MustRun(ctx, "cat", "/proc/devices"), "nvidia-uvm")
	require.Len(n.t, n.modules(), 3)
	return r.Stderr
}

const standinAddress = "0001:00:00.0"

// persistenced returns Debian's nvidia-persistenced and its libraries in an image's folder, laid out as
// by NVIDIA's installer.
func persistenced(t testing.TB) vm.Files {
	t.Helper()
	root, _ := fetch(t, binaries.NVIDIADaemons)
	files := vm.Files{"/driver/var/run": {Link: "/run"}, "/driver/etc/passwd": {Data: []byte("root:x:0:0:root:/root:/bin/sh\n")}}
	for _, dir := range []string{"lib/x86_64-linux-gnu", "lib64", "usr/lib/x86_64-linux-gnu", "usr/bin"} {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		require.NoError(t, err)
		for _, e := range entries {
			if path := filepath.Join(root, dir, e.Name()); !e.IsDir() && (dir != "usr/bin" || e.Name() == "nvidia-persistenced") {
				files[filepath.Join("/driver", dir, e.Name())] = fileOf(t, path)
			}
		}
	}
	found, err := filepath.Glob(filepath.Join(root, "usr/lib/x86_64-linux-gnu/nvidia/current/*"))
	require.NoError(t, err)
	require.NotEmpty(t, found)
	for _, path := range found {
		files[filepath.Join("/driver/usr/lib/x86_64-linux-gnu", filepath.Base(path))] = fileOf(t, path)
	}
	return files
}

// fileOf returns a file outside, or a link, as a file of a machine.
func fileOf(t testing.TB, path string) vm.File {
	t.Helper()
	target, err := os.Readlink(path)
	if err != nil {
		return vm.Program(path)
	}
	return vm.File{Link: target}
}

// reportsPersistenced has gpu-driver run start NVIDIA's own nvidia-persistenced where it must fail.
// While the driver has a GPU that it cannot initialise, gpu-driver starts no daemon and reports
// DeviceInitFailed. So the GPU is removed from the driver, as by an administrator. The PCI bus still
// has it, and the daemon is started.
func reportsPersistenced(n *node) {
	ctx := n.t.Context()
	n.MustRun(ctx, "sh", "-c", "echo "+standinAddress+" >/sys/bus/pci/drivers/nvidia/unbind")
	p := n.Start(ctx, vm.Command{Args: []string{"gpu-driver", "run", "--listen="}})
	n.until(p, "driver daemon ended")
	n.until(p, "msg=ready")
	r, _ := p.Output(ctx)
	var reported []string
	for line := range strings.Lines(r.Stderr) {
		if strings.Contains(line, "nvidia-persistenced") {
			reported = append(reported, line)
		}
	}
	n.t.Log(strings.Join(reported, ""))
	n.t.Log(n.Run(ctx, "sh", "-c", "cat /run/nvidia/validations/.driver-daemons-status; cat /run/nvidia/gpuready/driver/state.json"))
	require.Contains(n.t, r.Stderr, "nvidia-persistenced failed to initialize. Check syslog for more details.")
	require.Contains(n.t, r.Stderr, "Failed to query NVIDIA devices. Please ensure that the NVIDIA device files (/dev/nvidia*) exist")
	require.Contains(n.t, r.Stderr, `msg="driver daemon ended" component=driver name=nvidia-persistenced message="exit status 1" again=1s`)
	require.Equal(n.t, "Ready\n", n.MustRun(ctx, "cat", "/run/nvidia/validations/.driver-daemons-status"))
	s := n.state()
	require.Equal(n.t, nodestate.Ready, s.Phase)
	require.Contains(n.t, s.Message, "nvidia-persistenced does not run: exit status 1; it said: ")
	require.Contains(n.t, s.Message, "Failed to query NVIDIA devices.")
	status := n.MustRun(ctx, "gpu-driver", "status")
	n.t.Log(status)
	require.Contains(n.t, status, s.Message)
	n.ends(p)
}

// linker returns the machine's own linker with the libraries that it needs.
func linker(t testing.TB) vm.Files {
	t.Helper()
	const ld = "/usr/bin/ld"
	real, err := filepath.EvalSymlinks(ld)
	require.NoError(t, err)
	files := vm.Files{ld: vm.Program(real)}
	out, err := exec.CommandContext(t.Context(), "ldd", ld).Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(out)) { // "libz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x…)", "/lib64/ld-linux-x86-64.so.2 (0x…)"
		for word := range strings.FieldsSeq(line) {
			if strings.HasPrefix(word, "/") {
				files[word] = vm.Program(word)
			}
		}
	}
	return files
}
