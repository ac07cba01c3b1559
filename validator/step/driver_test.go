package step

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/library/librarytest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/validator/check"
)

const (
	version = "580.95.05"
	libDir  = "usr/lib64"
)

// driverMachine is a machine with a driver, and its in-memory NVML.
type driverMachine struct {
	*machine
	source *gputest.Source
}

func newDriverMachine(t *testing.T, gpus int) *driverMachine {
	t.Helper()
	m := &driverMachine{machine: newMachine(t), source: gputest.New(gputest.Node("a100-80gb", gpus))}
	m.AllowSimulated = true
	for i := range gpus {
		m.PCI(fmt.Sprintf("0000:%02x:00.0", 0x10+i), "0x10de", "0x030200", "")
		m.Device(fmt.Sprintf("nvidia%d", i), 195, i)
		m.link(fmt.Sprintf("nvidia%d", i), fmt.Sprintf("195:%d", i))
	}
	for name, link := range map[string]string{"nvidiactl": "195:255", "nvidia-uvm": "510:0"} {
		m.link(name, link)
	}
	m.Device("nvidiactl", 195, 255)
	m.Device("nvidia-uvm", 510, 0)
	m.File("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  "+version+"  Tue Sep 16 00:00:00 UTC 2025\nGCC version: 12\n")
	m.File("proc/devices", "Character devices:\n  1 mem\n195 nvidia\n510 nvidia-uvm\n\nBlock devices:\n  8 sd\n")
	m.library("libnvidia-ml.so", version)
	m.library("libcuda.so", version)
	m.library("libnvidia-ptxjitcompiler.so", version)
	return m
}

func (m *driverMachine) path(name string) string { return m.Root.Path(name) }

func (m *driverMachine) remove(name string) {
	m.t.Helper()
	require.NoError(m.t, os.RemoveAll(m.path(name)))
}

// library writes an ELF header, which names the machine.
func (m *driverMachine) library(name, version string) {
	m.t.Helper()
	head := make([]byte, 64)
	copy(head, "\x7fELF\x02\x01\x01")
	head[18] = map[string]byte{"amd64": 62, "arm64": 183}[runtime.GOARCH]
	m.File(filepath.Join(libDir, name+"."+version), string(head))
	link := m.path(filepath.Join(libDir, name+".1"))
	_ = os.Remove(link)
	require.NoError(m.t, os.Symlink(name+"."+version, link))
}

// link creates the link below /dev/char that the kernel's devtmpfs would.
func (m *driverMachine) link(name, numbers string) {
	m.t.Helper()
	require.NoError(m.t, os.MkdirAll(m.path("dev/char"), 0o755))
	require.NoError(m.t, os.Symlink("../"+name, m.path("dev/char/"+numbers)))
}

func (m *driverMachine) check() (check.Driver, check.Outcome) {
	m.t.Helper()
	return CheckDriver(m.t.Context(), m.Node, func(ctx context.Context, node check.Node) (check.Reading, error) {
		require.Equal(m.t, "/", node.DriverRoot)
		s, err := m.source.Snapshot(ctx)
		real, linkErr := filepath.EvalSymlinks(m.path(libDir + "/libnvidia-ml.so.1"))
		if err == nil {
			err = linkErr
		}
		return check.Reading{Snapshot: s, Library: real}, err
	})
}

func TestADriverThatWorksIsProven(t *testing.T) {
	m := newDriverMachine(t, 2)
	d, o := m.check()
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
	require.Empty(t, o.Notes)
	require.Equal(t, "2 × NVIDIA A100-SXM4-80GB, driver 580.95.05, CUDA 13.0", o.Proof.Summary)
	require.Equal(t, 2, o.Proof.GPUs)
	require.Equal(t, "/", o.Proof.Driver.Root)
	require.Equal(t, []string{m.path(libDir)}, d.LibDirs)
	require.Len(t, d.Units(), 2)
}

func TestLibrariesAreFoundInEveryLayout(t *testing.T) {
	for _, l := range librarytest.Layouts(t) {
		m := newMachine(t)
		l.Make(t, m.Root.Path("/run/nvidia/driver"))
		node := m.Node
		node.DriverRoot = "/run/nvidia/driver"
		for at := range l.Files {
			if filepath.Base(at) != "libnvidia-ml.so."+l.Version {
				continue
			}
			found, err := findLibraries(node, node.Root.Path(node.DriverRoot+at))
			require.NoError(t, err)
			require.Equal(t, filepath.Base(found.cuda), cmp.Or(map[string]string{"tegra-r36": "libcuda.so.1.1"}[l.Name], "libcuda.so."+l.Version), l.Name)
			require.Equal(t, "libnvidia-ptxjitcompiler.so."+l.Version, filepath.Base(found.jit), l.Name)
			for lib, kind := range l.Files {
				if strings.Contains(lib, "libnvidia-glcore.so."+l.Version) && kind == "" {
					require.True(t, slices.ContainsFunc(found.dirs, func(dir string) bool { _, err := os.Stat(dir + "/" + filepath.Base(lib)); return err == nil }), "%s: %s is not in %v", l.Name, lib, found.dirs)
				}
			}
		}
	}
}

// Debian's packages, and others, split a driver over several folders.
func TestLibrariesOfADriverMayBeApart(t *testing.T) {
	m := newDriverMachine(t, 1)
	move := func(names ...string) {
		require.NoError(t, os.MkdirAll(m.path("usr/local/nvidia/lib64"), 0o755))
		for _, name := range names {
			for _, suffix := range []string{".1", "." + version} {
				require.NoError(t, os.Rename(m.path(filepath.Join(libDir, name+suffix)), m.path("usr/local/nvidia/lib64/"+name+suffix)))
			}
		}
	}
	move("libcuda.so", "libnvidia-ptxjitcompiler.so")
	d, o := m.check()
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
	require.Empty(t, o.Notes)
	require.Equal(t, []string{m.path(libDir), m.path("usr/local/nvidia/lib64")}, d.LibDirs)
}

// A driver of the same version may be another build, or have been loaded again.
func TestEachLoadingOfTheDriverIsAnother(t *testing.T) {
	m := newDriverMachine(t, 1)
	loaded := m.path("sys/module/nvidia")
	load := func(build string) {
		m.File("sys/module/next/srcversion", build+"\n") // beside the other, so that its number is not used again
		m.remove("sys/module/nvidia")
		require.NoError(t, os.Rename(m.path("sys/module/next"), loaded))
	}
	files := func() string {
		d, o := m.check()
		require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
		return d.Files()
	}
	bare := files()
	load("533BB7E5866E52F63B9ACCB")
	first := files()
	require.NotEqual(t, bare, first)
	require.NoError(t, os.Chtimes(loaded, time.Unix(1, 0), time.Unix(1, 0)))
	require.Equal(t, first, files(), "the folder's times are those of a look at it")
	m.File("sys/module/nvidia/srcversion", "9A0CC2E1D5866E52F63B9AC\n")
	require.NotEqual(t, first, files(), "another build")
	load("533BB7E5866E52F63B9ACCB")
	again := files()
	require.NotEqual(t, first, again, "the same build, loaded again")
	m.remove("sys/module/nvidia/srcversion")
	require.NotEqual(t, again, files(), "a module without it")

	m.source.Update(func(s *gpu.Snapshot) { s.Driver.Simulated = true })
	simulated := files()
	load("533BB7E5866E52F63B9ACCB")
	require.Equal(t, simulated, files(), "a simulated driver has no module: this is the host's")
}

func TestEachFaultIsNamed(t *testing.T) {
	noDriver := fmt.Errorf("loading: %w", gpu.ErrNoDriver)
	cases := []struct {
		name    string
		breakIt func(m *driverMachine)
		reason  gpu.Reason
		says    string
	}{
		{"GPU without any driver", func(m *driverMachine) {
			m.remove("usr")
			m.remove("proc")
			m.source.Fail(noDriver)
		}, reasonLibraryMissing, "the PCI bus shows 2 NVIDIA GPUs, but there is no libnvidia-ml.so.1 below /"},
		{"module without libraries", func(m *driverMachine) {
			m.remove("usr")
			m.source.Fail(noDriver)
		}, reasonLibraryMissing, "the kernel module 580.95.05 is loaded, but"},
		{"libraries without module", func(m *driverMachine) {
			m.remove("proc")
			m.source.Fail(noDriver)
		}, reasonModuleMissing, "/usr/lib64/libnvidia-ml.so.580.95.05 is there, but the nvidia kernel module is not loaded"},
		{"NVML answers, yet no module", func(m *driverMachine) { m.remove("proc/driver") },
			reasonModuleMissing, "/proc/driver/nvidia/version is not there"},
		{"library newer than module", func(m *driverMachine) {
			m.library("libnvidia-ml.so", "590.10")
			m.source.Fail(fmt.Errorf("init: %w", gpu.ErrVersionMismatch))
		}, reasonVersionMismatch, "libraries are of version 590.10, the kernel module is 580.95.05"},
		{"library newer than module, not said by NVML", func(m *driverMachine) { m.library("libnvidia-ml.so", "590.10") },
			reasonVersionMismatch, "libraries are of version 590.10, the kernel module is 580.95.05"},
		{"no permission", func(m *driverMachine) { m.source.Fail(fmt.Errorf("open /dev/nvidiactl: %w", gpu.ErrNoPermission)) },
			reasonNoPermission, "open /dev/nvidiactl: no permission"},
		{"NVML fails", func(m *driverMachine) { m.source.Fail(errors.New("nvmlInit: Unknown Error (999)")) },
			reasonNVMLFailed, "Unknown Error (999)"},
		{"no libcuda", func(m *driverMachine) { m.remove(libDir + "/libcuda.so." + version) },
			reasonCUDALibrary, "there is no libcuda.so.1 in /usr/lib64"},
		{"libcuda of another version", func(m *driverMachine) { m.library("libcuda.so", "570.1") },
			reasonLibraryMismatch, "libcuda is of version 570.1, libnvidia-ml of version 580.95.05"},
		{"a JIT compiler of another version", func(m *driverMachine) { m.library("libnvidia-ptxjitcompiler.so", "570.1") },
			reasonLibraryMismatch, "libnvidia-ptxjitcompiler is of version 570.1, libnvidia-ml of version 580.95.05"},
		{"nouveau has the GPU", func(m *driverMachine) {
			m.remove("usr")
			m.remove("proc")
			require.NoError(m.t, os.Symlink("../../../../bus/pci/drivers/nouveau", m.path("sys/bus/pci/devices/0000:10:00.0/driver")))
			m.source.Fail(noDriver)
		}, reasonNouveau, "the PCI bus shows 2 NVIDIA GPUs, and 0000:10:00.0 is in the hands of nouveau"},
		{"no GPU found", func(m *driverMachine) { m.source.Update(func(s *gpu.Snapshot) { s.Devices, s.Links = nil, nil }) },
			reasonNoUsableGPU, "finds no GPU; the PCI bus shows 2 NVIDIA GPUs"},
		{"every GPU lost", func(m *driverMachine) {
			m.source.Update(func(s *gpu.Snapshot) {
				for i := range s.Devices {
					s.Devices[i].Fault = gpu.Fault{Reason: gpu.ReasonLost, Message: "fell off"}
				}
			})
		}, reasonNoUsableGPU, "GPULost: fell off"},
		{"GPUs that await attestation", func(m *driverMachine) {
			m.source.Update(func(s *gpu.Snapshot) { s.Driver.AwaitsAttestation = true })
		}, reasonAttestation, "confidential computing is on, and the GPUs accept no work"},
		{"uvm not loaded", func(m *driverMachine) { m.File("proc/devices", "Character devices:\n195 nvidia-frontend\n") },
			reasonUVMMissing, "nvidia-uvm"},
		{"node missing", func(m *driverMachine) { m.remove("dev/nvidia1") }, reasonDeviceNode, "/dev/nvidia1 is not there"},
		{"control node missing", func(m *driverMachine) { m.remove("dev/nvidiactl") }, reasonDeviceNode, "/dev/nvidiactl is not there"},
		{"wrong minor", func(m *driverMachine) { m.Device("nvidia1", 195, 0) }, reasonDeviceNodeWrong, "/dev/nvidia1 is character device 195:0, the driver expects 195:1"},
		{"wrong major", func(m *driverMachine) { m.Device("nvidia-uvm", 511, 0) }, reasonDeviceNodeWrong, "511:0, the driver expects 510:0"},
		{"a file for a node", func(m *driverMachine) { m.remove("dev/nvidia0"); m.File("dev/nvidia0", "") }, reasonDeviceNodeWrong, "no character device"},
		{"simulated", func(m *driverMachine) {
			m.AllowSimulated = false
			m.source.Update(func(s *gpu.Snapshot) { s.Driver.Simulated = true })
		}, reasonSimulatedRefused, "nothing can be vouched for"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m := newDriverMachine(t, 2)
			c.breakIt(m)
			_, o := m.check()
			require.Equal(t, check.Failed, o.Kind)
			require.Equal(t, c.reason, o.NotReady.Reason, o.NotReady.Message)
			require.Contains(t, o.NotReady.Message, c.says)
			require.NotEmpty(t, o.NotReady.Action)
		})
	}
}

func TestANodeWithoutGPUHasNothingToProve(t *testing.T) {
	m := newDriverMachine(t, 0)
	m.remove("usr")
	m.remove("proc")
	m.PCI("0000:00:02.0", "0x8086", "0x030000", "") // of another vendor
	m.PCI("0000:00:03.0", "0x10de", "0x020000", "") // no display controller
	m.PCI("0000:00:04.0", "0x10de", "0x030000", "") // given to virtual machines
	require.NoError(t, os.Symlink("../../../../bus/pci/drivers/vfio-pci", m.path("sys/bus/pci/devices/0000:00:04.0/driver")))
	m.source.Fail(gpu.ErrNoDriver)
	_, o := m.check()
	require.Equal(t, check.Absent, o.Kind)
	require.Equal(t, check.ReasonNoGPU, o.NotReady.Reason)
}

// A node that gpuready does not serve is neither one without a GPU nor one that needs a driver.
func TestAPlatformThatIsNotServedFailsWithItsOwnAdvice(t *testing.T) {
	noDriver := func(m *driverMachine) {
		m.remove("usr")
		m.remove("proc")
		m.source.Fail(gpu.ErrNoDriver)
	}
	for _, c := range []struct {
		name    string
		gpus    int
		prepare func(m *driverMachine)
		says    string
	}{
		{"WSL2", 0, func(m *driverMachine) { noDriver(m); m.File("dev/dxg", "") }, "a guest of Windows (WSL2)"},
		{"Jetson", 0, func(m *driverMachine) { noDriver(m); m.File("sys/devices/soc0/family", "Tegra\n") }, "a Jetson (Tegra)"},
		{"a Jetson whose NVML works", 0, func(m *driverMachine) { m.File("etc/nv_tegra_release", "# R38\n") }, "a Jetson (Tegra)"},
		// The vGPU manager comes with NVML and without libcuda.
		{"a vGPU host", 2, func(m *driverMachine) {
			m.remove(libDir + "/libcuda.so." + version)
			m.Load("nvidia_vgpu_vfio")
		}, "a host of vGPUs"},
		{"a vGPU host, without injection", 2, func(m *driverMachine) {
			m.Injection = "expected"
			m.Load("nvidia_vgpu_vfio")
			m.source.Fail(gpu.ErrNoPermission)
		}, "a host of vGPUs"},
		{"expected GPUs", 0, func(m *driverMachine) { noDriver(m); m.File("dev/dxg", ""); m.ExpectGPUs = 1 }, "a guest of Windows (WSL2)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newDriverMachine(t, c.gpus)
			require.NoError(t, os.MkdirAll(m.path("sys/bus/pci/devices"), 0o755))
			c.prepare(m)
			_, o := m.check()
			require.Equal(t, check.Failed, o.Kind)
			require.Equal(t, reasonPlatform, o.NotReady.Reason, o.NotReady.Message)
			require.Contains(t, o.NotReady.Message, c.says)
			require.NotContains(t, o.NotReady.Action, "install")
		})
	}
}

func TestASimulatedDriverIsServedOnAnyPlatform(t *testing.T) {
	m := newDriverMachine(t, 2)
	m.remove("sys/bus/pci/devices")
	require.NoError(t, os.MkdirAll(m.path("sys/bus/pci/devices"), 0o755))
	m.File("dev/dxg", "")
	m.source.Update(func(s *gpu.Snapshot) { s.Driver.Simulated = true })
	_, o := m.check()
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
}

func TestALostGPULeavesItsNeighboursProven(t *testing.T) {
	m := newDriverMachine(t, 3)
	m.source.FailDevice(gputest.GPU(1), gpu.Fault{Reason: gpu.ReasonLost, Message: "fell off"})
	m.PCI("0000:40:00.0", "0x10de", "0x030200", "")
	d, o := m.check()
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
	require.Equal(t, 2, o.Proof.GPUs)
	require.Contains(t, o.Proof.Summary, "2 of 3 × NVIDIA A100")
	require.Len(t, d.Units(), 2)
	require.Len(t, o.Notes, 2)
	require.Contains(t, o.Notes[0], "is not usable: GPULost: fell off")
	for _, c := range []struct {
		expected int
		strict   bool
		says     string
	}{
		{2, false, ""},
		{3, false, "2 of 3 expected GPUs are usable: GPU 1 ("},
		{0, true, "not every GPU is usable (--strict): GPU 1 ("},
	} {
		m.ExpectGPUs, m.Strict = c.expected, c.strict
		if _, o := m.check(); c.says == "" {
			require.Equal(t, check.Passed, o.Kind)
		} else {
			require.Equal(t, reasonGPUsMissing, o.NotReady.Reason)
			require.Contains(t, o.NotReady.Message, c.says)
			require.Contains(t, o.NotReady.Message, "fell off; the GPU at 0000:40:00.0 is on the PCI bus, but not known to the driver")
		}
	}
	require.Contains(t, o.Notes[1], "0000:40:00.0 is on the PCI bus, but not known to the driver")
}

func TestPartialProblemsAreNotes(t *testing.T) {
	m := newDriverMachine(t, 2)
	m.remove("dev/char/195:1")
	m.remove("dev/char/510:0")
	require.NoError(t, os.Symlink("../nvidiactl", m.path("dev/char/510:0")))
	m.remove(libDir + "/libnvidia-ptxjitcompiler.so.1")
	_, o := m.check()
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
	require.Len(t, o.Notes, 2)
	require.Contains(t, o.Notes[0], "there is no libnvidia-ptxjitcompiler.so.1 in /usr/lib64")
	require.Contains(t, o.Notes[1], "DeviceLinkMissing: /dev/char/510:0, /dev/char/195:1: after systemctl daemon-reload")
}

func TestASimulatedRootMayHaveFilesForNodes(t *testing.T) {
	m := newDriverMachine(t, 1)
	m.source.Update(func(s *gpu.Snapshot) { s.Driver.Simulated = true })
	m.remove("dev/nvidia0")
	m.File("dev/nvidia0", "")
	_, o := m.check()
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
	require.True(t, o.Simulated())
}

func TestAModuleHiddenFromASimulatedGPUsContainerIsNoFailure(t *testing.T) {
	m := newDriverMachine(t, 1)
	m.remove("proc")
	_, o := m.check()
	require.Equal(t, reasonModuleMissing, o.NotReady.Reason)
	m.source.Update(func(s *gpu.Snapshot) { s.Driver.Simulated = true })
	_, o = m.check()
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
}

func TestALateContainerDriverRootIsFound(t *testing.T) {
	m := newDriverMachine(t, 1)
	require.Equal(t, "/", m.FindDriverRoot().DriverRoot)
	inside := filepath.Join(m.Root.Dir(), check.ContainerRoot)
	require.NoError(t, os.MkdirAll(filepath.Join(inside, "dev"), 0o755))
	require.NoError(t, os.Rename(m.path("usr"), filepath.Join(inside, "usr")))
	found := m.FindDriverRoot()
	require.Equal(t, check.ContainerRoot, found.DriverRoot)
	require.Equal(t, "/", found.DevRoot)
	require.NoError(t, os.WriteFile(filepath.Join(inside, "dev/nvidiactl"), nil, 0o644))
	require.Equal(t, check.ContainerRoot, m.FindDriverRoot().DevRoot)
	m.DriverRoot, m.DevRoot = "/opt/driver", "/opt"
	found = m.FindDriverRoot()
	require.Equal(t, "/opt/driver", found.DriverRoot, "what was asked for is not second-guessed")
	require.Equal(t, "/opt", found.DevRoot)
}

func FuzzProcFiles(f *testing.F) {
	f.Add("Character devices:\n195 nvidia\n\nBlock devices:\n")
	f.Fuzz(func(t *testing.T, text string) {
		for name, major := range characterMajors(text) {
			if major < 0 || strings.ContainsAny(name, " \n") {
				t.Errorf("%q %d", name, major)
			}
		}
	})
}

func TestMissingInjectionIsTheOnlyFinding(t *testing.T) {
	toolkit := func(m *driverMachine, s nodestate.State) {
		s.Component, s.BootID = nodestate.Toolkit, "00000000-0000-4000-8000-000000000000"
		require.NoError(m.t, nodestate.Write(m.StatePath(nodestate.Toolkit), s))
	}
	inject := func(i nodestate.Injection) *nodestate.ToolkitInfo { return &nodestate.ToolkitInfo{Injection: &i} }
	for _, c := range []struct {
		name    string
		prepare func(m *driverMachine)
		says    string
	}{
		{"no permission", func(m *driverMachine) { m.source.Fail(gpu.ErrNoPermission) }, "the toolkit has reported nothing since the node booted"},
		{"the host's driver, of which nothing is seen here", func(m *driverMachine) {
			m.remove(libDir)
			m.source.Fail(gpu.ErrNoDriver)
			toolkit(m, nodestate.State{Phase: nodestate.Failed, Reason: "NoNRI", Message: "no socket"})
		}, "the toolkit says Failed: no socket"},
		{"only the toolkit knows", func(m *driverMachine) {
			m.remove(libDir)
			m.remove("proc/driver/nvidia/version")
			m.source.Fail(gpu.ErrNoDriver)
			toolkit(m, nodestate.State{Phase: nodestate.Ready, Toolkit: inject(nodestate.Injection{Working: true, Generation: "a"})})
		}, "it passed this container by"},
		{"only the toolkit knows, and cannot inject", func(m *driverMachine) {
			m.remove(libDir)
			m.remove("proc/driver/nvidia/version")
			m.source.Fail(gpu.ErrNoDriver)
			toolkit(m, nodestate.State{Phase: nodestate.Degraded, Driver: &nodestate.DriverInfo{Root: "/run/nvidia/driver", Version: version}, Toolkit: inject(nodestate.Injection{Message: "NRI is off in containerd"})})
		}, "NRI is off in containerd"},
		{"only the driver's container knows", func(m *driverMachine) {
			m.remove(libDir)
			m.remove("proc/driver/nvidia/version")
			m.source.Fail(gpu.ErrNoDriver)
			s := nodestate.State{Component: nodestate.Driver, BootID: m.BootID, Phase: nodestate.Ready, Driver: &nodestate.DriverInfo{Root: "/run/nvidia/driver", Version: version}}
			require.NoError(m.t, nodestate.Write(m.StatePath(nodestate.Driver), s))
		}, "the toolkit has reported nothing since the node booted"},
		{"injection broken", func(m *driverMachine) {
			toolkit(m, nodestate.State{Phase: nodestate.Ready, Toolkit: inject(nodestate.Injection{Message: "NRI is off in containerd"})})
		}, "NRI is off in containerd"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newDriverMachine(t, 1)
			m.Injection, m.StateDir, m.BootID = "expected", "/states", "00000000-0000-4000-8000-000000000000"
			c.prepare(m)
			_, o := m.check()
			require.Equal(t, check.Failed, o.Kind)
			require.Equal(t, check.ReasonInjection, o.NotReady.Reason, o.NotReady.Message)
			require.Contains(t, o.NotReady.Message, c.says)
			require.Contains(t, o.NotReady.Action, "gpuready.io/management=true")
		})
	}
}

func TestAContainerWithoutInjectionIsQuietWhereThereIsNoGPU(t *testing.T) {
	m := newDriverMachine(t, 0)
	m.Injection = "expected"
	m.remove(libDir)
	m.remove("proc/driver/nvidia/version")
	m.source.Fail(gpu.ErrNoDriver)
	_, o := m.check()
	require.Equal(t, check.Absent, o.Kind)
}
