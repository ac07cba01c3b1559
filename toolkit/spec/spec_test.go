package spec

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/library"
	"github.com/gpuready/gpuready/toolkit/hook/joined"
	"github.com/gpuready/gpuready/toolkit/node"
)

var update = flag.Bool("update", false, "write the golden files")

const version = "580.95.05"

// driver creates a driver root with the files of a small installation, below the directory
// dir, which stands for the host.
func driver(t *testing.T, dir, driverRoot string) *host.Root {
	t.Helper()
	lib := dir + driverRoot + "/usr/lib/" + map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	require.NoError(t, os.MkdirAll(lib+"/vdpau", 0o755))
	for _, l := range []string{"libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so"} {
		cmd := exec.Command("gcc", "-x", "c", "-", "-shared", "-fPIC", "-Wl,-soname,"+l+".1", "-o", lib+"/"+l+"."+version)
		cmd.Stdin = strings.NewReader("int x;")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		require.NoError(t, os.Symlink(l+"."+version, lib+"/"+l+".1"))
	}
	require.NoError(t, os.Symlink("libcuda.so.1", lib+"/libcuda.so"))
	for _, f := range []string{
		lib + "/libnvidia-gpusim.so." + version, // a simulator's state, named so that it is mounted
		lib + "/libother.so.1.2",
		dir + driverRoot + "/usr/bin/nvidia-smi",
		dir + driverRoot + "/lib/firmware/nvidia/" + version + "/gsp_ga10x.bin",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(f), 0o755))
		require.NoError(t, os.WriteFile(f, []byte("x"), 0o755))
	}
	root, err := host.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return root
}

// nodes returns the nodes that a driver creates for a snapshot, and MIG's minor numbers.
func nodes(s gpu.Snapshot) node.Nodes {
	caps := node.Caps{"config": 1, "monitor": 2}
	all := []node.Node{{Path: "/dev/nvidiactl", Major: 195, Minor: 255}, {Path: "/dev/nvidia-uvm", Major: 511}, {Path: "/dev/nvidia-uvm-tools", Major: 511, Minor: 1}, {Path: "/dev/nvidia-modeset", Major: 195, Minor: 254}, {Path: "/dev/nvidia-nvswitch0", Major: 240}}
	for _, d := range s.Devices {
		all = append(all, node.Node{Path: fmt.Sprintf("/dev/nvidia%d", d.Minor), Major: 195, Minor: uint32(d.Minor)})
		for _, m := range d.MIG {
			minor := uint32(3 + 100*d.Minor + 10*m.GPUInstance)
			caps[node.Instance(d.Minor, m.GPUInstance)] = minor
			caps[node.Compute(d.Minor, m.GPUInstance, m.ComputeInstance)] = minor + 1
		}
	}
	for _, n := range caps {
		all = append(all, node.Node{Path: node.CapPath(n), Major: 234, Minor: n})
	}
	return node.Nodes{All: all, Caps: caps}
}

func encode(t *testing.T, out Output) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, s := range out.Specs {
		data, err := cdi.Encode(s)
		require.NoError(t, err)
		b.WriteString("# " + FileName(s.Kind) + "\n")
		b.Write(data)
	}
	for _, w := range out.Warnings {
		b.WriteString("# warning: " + w + "\n")
	}
	return b.Bytes()
}

func TestGolden(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("library folders in the golden files are those of amd64")
	}
	for _, c := range []struct {
		name, profile       string
		gpus                int
		driverRoot, devRoot string
		whole               bool // or condensed
	}{
		{"t4 with a host driver", "t4", 1, "/", "/", true},
		{"h100 with a driver container", "h100-sxm", 8, "/run/nvidia/driver", "/run/nvidia/driver", false},
		{"a100 in MIG mode with libraries of a driver container and nodes of the host", "a100-mig", 2, "/run/nvidia/driver", "/", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := driver(t, t.TempDir(), c.driverRoot)
			files, err := Find(root, c.driverRoot, version)
			require.NoError(t, err)
			s := gputest.Node(c.profile, c.gpus)
			all := nodes(s)
			out := Build(Input{Files: files, Snapshot: s, Nodes: all, DriverRoot: c.driverRoot, DevRoot: c.devRoot, Hook: "/usr/local/nvidia/gpuready/gpu-cdi-hook"})
			require.Empty(t, out.Warnings)
			got := encode(t, out)
			if !c.whole {
				reference, err := os.ReadFile("testdata/simulated/" + wholeMachine + ".yaml")
				require.NoError(t, err)
				got = condense(t, got, reference)
			}
			checkGolden(t, "testdata/"+strings.ReplaceAll(c.name, " ", "-")+".yaml", got)
		})
	}
}

func device(t *testing.T, out Output, kind, name string) []string {
	t.Helper()
	for _, s := range out.Specs {
		for _, d := range s.Devices {
			if s.Kind == kind && d.Name == name {
				return paths(d.ContainerEdits)
			}
		}
	}
	return nil
}

func paths(e specs.ContainerEdits) []string {
	var paths []string
	for _, n := range e.DeviceNodes {
		paths = append(paths, n.Path)
	}
	return paths
}

func TestEachGPUHasItsOwnNodeAndNoOther(t *testing.T) {
	s := gputest.Node("a100-80gb", 8)
	all := nodes(s)
	out := Build(Input{Snapshot: s, Nodes: all, Hook: "/hook"})
	for i := range 8 {
		want := []string{fmt.Sprintf("/dev/nvidia%d", i)}
		require.Equal(t, want, device(t, out, cdi.KindGPU, string(gputest.GPU(i))))
		require.Equal(t, want, device(t, out, cdi.KindNVIDIA, fmt.Sprint(i)))
	}
	require.Len(t, device(t, out, cdi.KindNVIDIA, cdi.All), 8)
	require.NotContains(t, device(t, out, cdi.KindManagement, cdi.All), "/dev/nvidia-nvswitch0")
	require.Contains(t, device(t, out, cdi.KindManagement, cdi.All), "/dev/nvidia-caps/nvidia-cap1")
	require.Nil(t, device(t, out, cdi.KindGPU, "0"), "what the plugin allocates has one name")
}

func TestUnusableDevicesAreLeftOutWithAWarning(t *testing.T) {
	s := gputest.Node("a100-mig", 2)
	all := nodes(s)
	delete(all.Caps, node.Instance(0, s.Devices[0].MIG[1].GPUInstance))
	var kept []node.Node
	gone := node.CapPath(all.Caps[node.Compute(0, s.Devices[0].MIG[2].GPUInstance, 0)])
	for _, n := range all.All {
		if n.Path != "/dev/nvidia1" && n.Path != gone {
			kept = append(kept, n)
		}
	}
	out := Build(Input{Snapshot: s, Nodes: node.Nodes{All: kept, Caps: all.Caps}, DevRoot: "/run/nvidia/driver", Hook: "/hook"})
	require.Len(t, out.Warnings, 3)
	require.Contains(t, out.Warnings[0], "no capability gpu0/gi2/access")
	require.Contains(t, out.Warnings[1], "/run/nvidia/driver"+gone)
	require.Contains(t, out.Warnings[2], "/run/nvidia/driver/dev/nvidia1")
	require.Nil(t, device(t, out, cdi.KindGPU, string(s.Devices[1].UUID)))
	require.Len(t, device(t, out, cdi.KindGPU, string(s.Devices[0].UUID)), 5, "the GPU itself and two whole MIG devices")
	require.Len(t, device(t, out, cdi.KindNVIDIA, "0:0"), 3)
	require.Nil(t, device(t, out, cdi.KindNVIDIA, "0:1"))

	require.Empty(t, Build(Input{Nodes: all}).Specs, "without a GPU there is nothing to specify")
	s.Devices[0].MIG[0].UUID = "MIG-GPU-x/1/0"
	out = Build(Input{Snapshot: s, Nodes: all})
	require.Contains(t, strings.Join(out.Warnings, "\n"), "MIG-GPU-x/1/0")
}

func TestBrokenGPUNeverGetsAnothersNode(t *testing.T) {
	s := gputest.Node("a100-80gb", 3)
	all := nodes(s)
	s.Devices[2].Fault = gpu.Fault{Reason: gpu.ReasonLost, Message: "fell off the bus"}
	out := Build(Input{Snapshot: s, Nodes: all})
	require.Equal(t, []string{"/dev/nvidia2"}, device(t, out, cdi.KindGPU, string(gputest.GPU(2))), "it keeps the node that it is known to have")
	s.Devices[2].Minor = 0 // not readable any more
	out = Build(Input{Snapshot: s, Nodes: all})
	require.Nil(t, device(t, out, cdi.KindGPU, string(gputest.GPU(2))))
	require.Equal(t, []string{"/dev/nvidia0"}, device(t, out, cdi.KindGPU, string(gputest.GPU(0))))
	require.Contains(t, out.Warnings[0], "fell off the bus")
}

// Runtimes pass the container's environment to a hook that has none.
func TestEveryHookHasAnEnvironmentAndIsOneThatWeHave(t *testing.T) {
	root := driver(t, t.TempDir(), "/")
	files, err := Find(root, "/", version)
	require.NoError(t, err)
	s := gputest.Node("t4", 1)
	all := nodes(s)
	out := Build(Input{Files: files, Snapshot: s, Nodes: all, Hook: "/opt/gpu-cdi-hook"})
	require.NotEmpty(t, out.Specs)
	for _, s := range out.Specs {
		var names []string
		for _, h := range s.ContainerEdits.Hooks {
			require.NotEmpty(t, h.Env)
			require.Equal(t, "createContainer", h.HookName)
			require.Equal(t, "/opt/gpu-cdi-hook", h.Path)
			each, ok := joined.Hooks(h.Args[1:])
			require.True(t, ok, h.Args)
			for _, args := range each {
				names = append(names, args[0])
			}
		}
		require.Len(t, s.ContainerEdits.Hooks, 1, "a container waits for one process")
		want := []string{"create-symlinks", "enable-cuda-compat", "update-ldcache", "disable-device-node-modification"}
		if s.Kind == cdi.KindManagement {
			want = []string{"create-symlinks", "update-ldcache"}
		}
		require.Equal(t, want, names)
	}
}

func TestDriverWithoutCUDAIsRefused(t *testing.T) {
	dir := t.TempDir()
	root := driver(t, dir, "/run/nvidia/driver")
	libs, err := filepath.Glob(dir + "/run/nvidia/driver/usr/lib/*/libcuda.so*")
	require.NoError(t, err)
	for _, l := range libs {
		require.NoError(t, os.Remove(l))
	}
	_, err = Find(root, "/run/nvidia/driver", version)
	require.ErrorIs(t, err, ErrNoCUDA)
	require.ErrorContains(t, err, "below /run/nvidia/driver")
}

func TestDriverRootReachedByLinks(t *testing.T) {
	dir := t.TempDir()
	driver(t, dir+"/real", "/run/nvidia/driver")
	require.NoError(t, os.Symlink("real", dir+"/host"))
	require.NoError(t, os.MkdirAll(dir+"/real/var", 0o755))
	require.NoError(t, os.Symlink("/run", dir+"/real/var/run"))
	root, err := host.Open(dir + "/host")
	require.NoError(t, err)
	defer root.Close()
	files, err := Find(root, "/var/run/nvidia/driver", version)
	require.NoError(t, err)
	require.NotEmpty(t, files.Mounts)
	for _, m := range files.Mounts {
		require.Equal(t, "/run/nvidia/driver"+m.Container, m.Host)
	}
}

func TestOwner(t *testing.T) {
	ours := "/var/run/cdi/gpuready-nvidia.com-gpu.yaml"
	require.Empty(t, Owner([]cdi.File{{Path: ours, Kind: cdi.KindNVIDIA}, {Path: "/etc/cdi/x.yaml", Kind: "x.y/z"}}, cdi.KindNVIDIA, ours))
	theirs := []cdi.File{{Path: "/etc/cdi/nvidia.yaml", Kind: cdi.KindNVIDIA, Err: os.ErrInvalid}}
	require.Equal(t, "/etc/cdi/nvidia.yaml", Owner(theirs, cdi.KindNVIDIA, ours))
	require.Empty(t, Owner(theirs, cdi.KindGDS, ours))
}

func TestHarmfulCopiesOfOurFileAreReported(t *testing.T) {
	ours := "/var/run/cdi/k8s.gpuready.io-gpu.yaml"
	copied := func(path string, priority int, names ...string) []cdi.File {
		s := &specs.Spec{Kind: cdi.KindGPU}
		for _, n := range names {
			s.Devices = append(s.Devices, specs.Device{Name: n})
		}
		return []cdi.File{{Path: ours, Kind: cdi.KindGPU, Priority: 1, Spec: s}, {Path: path, Kind: cdi.KindGPU, Priority: priority, Spec: s}}
	}
	for _, c := range []struct {
		name     string
		priority int
		devices  []string
		want     string
	}{
		{"in our directory", 1, []string{"a", "b"}, "/x/copy.yaml defines k8s.gpuready.io/gpu=a as " + ours + " does"},
		{"in one that comes later", 2, []string{"b"}, "/x/copy.yaml hides k8s.gpuready.io/gpu=b of"},
		{"in one that comes first: ours is taken", 0, []string{"a", "b"}, ""},
		{"of devices that are gone", 1, []string{"gone"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Conflict(copied("/x/copy.yaml", c.priority, c.devices...), cdi.KindGPU, ours, 1, []string{"a", "b"})
			if c.want == "" {
				require.Empty(t, got)
			}
			require.Contains(t, got, c.want)
		})
	}
}

func TestAGPUWithoutAMinorNumberIsLeftOut(t *testing.T) {
	s := gputest.Node("t4", 2)
	all := nodes(s)
	s.Devices[1].Minor = -1
	out := Build(Input{Snapshot: s, Nodes: all, Hook: "/hook"})
	require.Len(t, out.Warnings, 1)
	require.Contains(t, out.Warnings[0], "tells its minor number")
	for _, spec := range out.Specs {
		require.NotContains(t, fmt.Sprint(spec.Devices), s.Devices[1].UUID)
	}
}

func TestDuplicateNamesAreWrittenOnce(t *testing.T) {
	s := gputest.Node("t4", 2)
	all := nodes(s)
	s.Devices[1].Index = 0
	out := Build(Input{Snapshot: s, Nodes: all, Hook: "/hook"})
	require.Equal(t, []string{`device "0" is left out: the driver gives the name to two`}, out.Warnings)
	for _, spec := range out.Specs {
		_, err := cdi.Encode(spec)
		require.NoError(t, err)
	}
}

// A driver's container has links that are absolute below its own root.
func TestLinksStayInsideADriverRoot(t *testing.T) {
	dir := t.TempDir()
	at := dir + "/run/nvidia/driver"
	root := driver(t, dir, "/run/nvidia/driver")
	for link, target := range map[string]string{
		"/usr/bin/nvidia-debugdump":      "/opt/nvidia/debugdump",
		"/usr/bin/nvidia-persistenced":   "/etc/alternatives/missing",
		"/etc/vulkan/icd.d":              "/usr/share/vulkan",
		"/tmp/nvidia-mps":                "/etc",
		"/run/nvidia-persistenced":       "/../../../../outside",
		"/usr/share/vulkan/outside.json": "/",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(at+link), 0o755))
		require.NoError(t, os.Symlink(target, at+link))
	}
	for _, p := range []string{at + "/opt/nvidia/debugdump", dir + "/opt/nvidia/debugdump", at + "/usr/share/vulkan/nvidia_icd.json", dir + "/outside/socket"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.WriteFile(p, []byte("x"), 0o755))
	}
	files, err := Find(root, "/run/nvidia/driver", version)
	require.NoError(t, err)
	found := map[string]string{}
	for _, m := range files.Mounts {
		found[m.Container] = m.Host
	}
	require.Equal(t, "/run/nvidia/driver/opt/nvidia/debugdump", found["/usr/bin/nvidia-debugdump"])
	require.Equal(t, "/run/nvidia/driver/usr/share/vulkan/nvidia_icd.json", found["/etc/vulkan/icd.d/nvidia_icd.json"])
	for _, absent := range []string{"/usr/bin/nvidia-persistenced", "/tmp/nvidia-mps", "/run/nvidia-persistenced/socket"} {
		require.NotContains(t, found, absent)
	}
}

func BenchmarkFind(b *testing.B) {
	dir := b.TempDir()
	lib := dir + "/usr/lib64"
	require.NoError(b, os.MkdirAll(lib, 0o755))
	require.NoError(b, os.MkdirAll(dir+"/etc", 0o755))
	var cache library.Cache
	for i := range 3000 {
		name := fmt.Sprintf("libfoo%d.so.1.2.3", i)
		cache.Entries = append(cache.Entries, library.Entry{Name: name, Path: "/usr/lib64/" + name, Flags: library.Flags()})
		require.NoError(b, os.WriteFile(lib+"/"+name, []byte("x"), 0o755))
		require.NoError(b, os.Symlink(name, fmt.Sprintf("%s/libfoo%d.so.1", lib, i)))
	}
	for _, name := range []string{"cuda", "nvidia-ml", "nvcuvid", "nvidia-encode", "EGL_nvidia", "GLX_nvidia", "nvoptix", "nvidia-glcore", "nvidia-opencl"} {
		require.NoError(b, os.WriteFile(lib+"/lib"+name+".so."+version, []byte("x"), 0o755))
	}
	require.NoError(b, os.WriteFile(dir+library.CachePath, cache.Bytes(), 0o644))
	root, err := host.Open(dir)
	require.NoError(b, err)
	defer root.Close()
	for b.Loop() {
		_, err := Find(root, "/", version)
		require.NoError(b, err)
	}
}

// TestDriverRootIsMountedNonRecursively: read-only is a flag of one mount, so a mount of a
// driver container's directory must not be recursive.
func TestDriverRootIsMountedNonRecursively(t *testing.T) {
	roots := rapid.SampledFrom([]string{"", "/", "/run/nvidia/driver", "/run/nvidia/driver/", "/opt/a b/driver"})
	rapid.Check(t, func(t *rapid.T) {
		driverRoot, devRoot := roots.Draw(t, "driver root"), roots.Draw(t, "dev root")
		s := gputest.Node("t4", 1)
		all := nodes(s)
		out := Build(Input{Snapshot: s, Nodes: all, DriverRoot: driverRoot, DevRoot: devRoot, Hook: "/hook"})
		for _, kind := range out.Specs {
			for _, d := range kind.Devices {
				for _, m := range d.ContainerEdits.Mounts {
					require.Equal(t, cdi.KindManagement, kind.Kind, m.HostPath)
					require.Equal(t, m.HostPath, m.ContainerPath)
					require.NotContains(t, []string{"/", "/dev"}, m.HostPath, "what the host has itself")
					require.Equal(t, []string{"ro", "nosuid", "nodev", "bind", "private"}, m.Options)
				}
			}
		}
	})
}
