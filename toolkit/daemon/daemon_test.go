package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/apply"
	"github.com/gpuready/gpuready/toolkit/setup"
	"github.com/gpuready/gpuready/toolkit/spec"
)

func TestLateDriverIsPickedUp(t *testing.T) {
	for _, root := range []string{"", setup.ContainerRoot} {
		t.Run("root "+root, func(t *testing.T) {
			m := newMachine(t, gputest.Node("h100-sxm", 8))
			stop, log := m.run()
			s := m.await("waiting", phase(nodestate.Waiting))
			require.Equal(t, setup.ReasonNoDriver, s.Reason)
			_, err := os.Stat(m.dir + "/run/cdi")
			require.ErrorIs(t, err, fs.ErrNotExist, "without a driver nothing is made")
			m.install(root, 8)
			s = m.await("ready", phase(nodestate.Ready))
			require.Len(t, devices(s, cdi.KindGPU), 8)
			require.Equal(t, []string{"all"}, devices(s, cdi.KindManagement))
			require.Len(t, devices(s, cdi.KindNVIDIA), 17)
			files, err := cdi.Load(m.toolkit().Root)
			require.NoError(t, err)
			for i := range 8 {
				require.NoError(t, cdi.Check(m.toolkit().Root, files, cdi.GPUName(gputest.GPU(i))))
			}
			before := m.snapshot()
			require.NoError(t, stop())
			require.Equal(t, before, m.snapshot(), "the end of the daemon changes nothing")
			require.Equal(t, 1, strings.Count(log.String(), "toolkit Waiting"))
		})
	}
}

func TestMIGLayoutChangesAreFollowed(t *testing.T) {
	m := newMachine(t, gputest.Node("a100-80gb", 2))
	m.install("", 2)
	caps := "config 1\nmonitor 2\n"
	for gi := range 8 {
		caps += fmt.Sprintf("gpu0/gi%d/access %d\ngpu0/gi%d/ci0/access %d\n", gi, 10+2*gi, gi, 11+2*gi)
	}
	require.NoError(t, os.MkdirAll(m.dir+"/proc/driver/nvidia-caps", 0o755))
	require.NoError(t, os.WriteFile(m.dir+"/proc/driver/nvidia-caps/mig-minors", []byte(caps), 0o644))
	m.run()
	m.await("two GPUs", func(s nodestate.State) bool { return len(devices(s, cdi.KindGPU)) == 2 })
	m.source.Update(func(s *gpu.Snapshot) { s.Devices[0] = gputest.WithMIG(s.Devices[0], "1g.10gb", "2g.20gb") })
	s := m.await("two MIG devices more", func(s nodestate.State) bool { return len(devices(s, cdi.KindGPU)) == 4 })
	require.Equal(t, nodestate.Ready, s.Phase, s.Message)
	require.Contains(t, devices(s, cdi.KindNVIDIA), "0:1")
	_, err := os.Stat(m.dir + "/dev/nvidia-caps/nvidia-cap13")
	require.NoError(t, err, "the nodes of capabilities are made")
	m.source.Update(func(s *gpu.Snapshot) { s.Devices[0].MIGEnabled, s.Devices[0].MIG = false, nil })
	m.await("two GPUs again", func(s nodestate.State) bool { return len(devices(s, cdi.KindGPU)) == 2 })
	_, err = os.Lstat(m.dir + "/dev/char/234:13")
	require.NoError(t, err)
	require.NoError(t, os.Remove(m.dir+"/dev/nvidia-caps/nvidia-cap13")) // as the driver does
	require.Eventually(t, func() bool {
		_, err := os.Lstat(m.dir + "/dev/char/234:13")
		return errors.Is(err, fs.ErrNotExist)
	}, patience, time.Millisecond, "a link to nothing is removed")
}

func TestKindOfAnotherOwnerIsNotWritten(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	m.install("", 1)
	_, log := m.run()
	m.await("three kinds", func(s nodestate.State) bool { return s.Toolkit != nil && len(s.Toolkit.Specs) == 3 })
	other := m.dir + "/etc/cdi/nvidia.yaml"
	require.NoError(t, os.MkdirAll(m.dir+"/etc/cdi", 0o755))
	require.NoError(t, os.WriteFile(other+".tmp", []byte("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: all\n  containerEdits:\n    env: [A=b]\n"), 0o644))
	require.NoError(t, os.Rename(other+".tmp", other))
	s := m.await("two kinds", func(s nodestate.State) bool { return s.Toolkit != nil && len(s.Toolkit.Specs) == 2 })
	require.Equal(t, nodestate.Ready, s.Phase)
	require.Contains(t, s.Message, "/etc/cdi/nvidia.yaml")
	require.Contains(t, log.String(), "ours is not written")
	_, err := os.Stat(m.dir + "/run/cdi/" + spec.FileName(cdi.KindNVIDIA))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, os.Remove(other))
	m.await("three kinds again", func(s nodestate.State) bool { return s.Toolkit != nil && len(s.Toolkit.Specs) == 3 })
}

func TestRemovedFilesAreRestored(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	m.install("", 1)
	_, log := m.run()
	m.await("ready", phase(nodestate.Ready))
	for _, p := range []string{"/run/cdi/k8s.gpuready.io-gpu.yaml", "/usr/local/nvidia/gpuready/gpu-cdi-hook", "/dev/nvidiactl"} {
		created := "created path=" + p
		if strings.HasPrefix(p, "/run/cdi") {
			created = "created path=/var" + p
		}
		require.Equal(t, 1, strings.Count(log.String(), created), log.String())
		require.NoError(t, os.Remove(m.dir+p))
		require.Eventually(t, func() bool { return strings.Count(log.String(), created) == 2 }, patience, time.Millisecond, p)
		_, err := os.Stat(m.dir + p)
		require.NoError(t, err)
	}
}

func TestReplacedDriverRequiresANewProcess(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	m.install("", 1)
	d := New(m.toolkit(), slog.New(slog.DiscardHandler), NewMetrics(prometheus.NewRegistry()))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	m.await("ready", phase(nodestate.Ready))
	m.library("", "libnvidia-ml")
	require.ErrorIs(t, <-ended, ErrReplaced)
}

// The library appears between the search for it and the opening of NVML, and is replaced
// later.
func TestDriverThatAppearsDuringOpenIsWatchedToo(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	d := New(m.toolkit(), slog.New(slog.DiscardHandler), NewMetrics(prometheus.NewRegistry()))
	m.install("", 1)
	defer func() { require.NoError(t, d.close(t.Context())) }()
	require.NoError(t, d.open(t.Context(), "/", ""))
	require.False(t, d.replaced(d.library("/")))
	m.library("", "libnvidia-ml")
	require.True(t, d.replaced(d.library("/")))
	require.ErrorIs(t, d.reconcile(t.Context(), everything), ErrReplaced)
}

// An error due to the replacement of the driver is not a failure.
func TestFailureDuringAnUpgradeIsNotPublished(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	m.install("", 1)
	d := New(m.toolkit(), slog.New(slog.DiscardHandler), NewMetrics(prometheus.NewRegistry()))
	defer func() { require.NoError(t, d.close(t.Context())) }()
	require.NoError(t, d.reconcile(t.Context(), everything))
	require.NoError(t, d.close(t.Context()))
	m.failOpen(fmt.Errorf("%w: another library is loaded", ErrReplaced))
	require.ErrorIs(t, d.reconcile(t.Context(), everything), ErrReplaced)
	require.Equal(t, nodestate.Ready, m.await("the state", phase(nodestate.Ready)).Phase)
}

func TestNVMLFailureIsPublishedAndRecoversByEvent(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	m.install("", 1)
	m.failOpen(fmt.Errorf("nvmlInit: %w", gpu.ErrVersionMismatch))
	m.run()
	s := m.await("failed", phase(nodestate.Failed))
	require.Equal(t, setup.ReasonVersionMismatch, s.Reason)
	require.Contains(t, s.Message, "reboot")
	_, err := os.Stat(m.dir + "/run/cdi")
	require.ErrorIs(t, err, fs.ErrNotExist)
	m.failOpen(nil)
	m.mknod("/dev/nvidia-modeset", 195, 254) // as the driver does when it is loaded
	m.await("ready", phase(nodestate.Ready))
}

func TestWithoutLibcudaNothingIsWritten(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	m.install("", 1)
	cuda := m.dir + libDir + "/libcuda.so." + version
	require.NoError(t, os.Rename(cuda, m.dir+"/aside"))
	m.run()
	s := m.await("failed", phase(nodestate.Failed))
	require.Equal(t, setup.ReasonNoCUDA, s.Reason)
	require.Contains(t, s.Message, "libcuda.so."+version+" below /")
	_, err := os.Stat(m.dir + "/run/cdi")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, os.Rename(m.dir+"/aside", cuda))
	m.await("ready", phase(nodestate.Ready))
}

func TestMachineWithoutAGPUIsQuietAndReady(t *testing.T) {
	m := newMachine(t, gpu.Snapshot{})
	require.NoError(t, os.RemoveAll(m.dir+"/sys/bus/pci/devices/0000:10:00.0"))
	d := New(m.toolkit(), slog.New(slog.DiscardHandler), NewMetrics(prometheus.NewRegistry()))
	require.EqualError(t, d.Ready(), "starting")
	require.NoError(t, d.reconcile(t.Context(), everything))
	require.NoError(t, d.Ready())
	require.Equal(t, setup.ReasonNoGPU, m.await("waiting", phase(nodestate.Waiting)).Reason)

	m = newMachine(t, gpu.Snapshot{}) // with a GPU, but no driver
	d = New(m.toolkit(), slog.New(slog.DiscardHandler), NewMetrics(prometheus.NewRegistry()))
	require.NoError(t, d.reconcile(t.Context(), everything))
	require.ErrorContains(t, d.Ready(), "NoDriver")
}

func TestAPlatformThatIsNotServedGetsNoSpecification(t *testing.T) {
	for name, prepare := range map[string]func(m *machine){
		"WSL2": func(m *machine) {
			require.NoError(t, os.RemoveAll(m.dir+"/sys/bus/pci/devices/0000:10:00.0"))
			require.NoError(t, os.WriteFile(m.dir+"/dev/dxg", nil, 0o644))
		},
		"Jetson, whose NVML works": func(m *machine) {
			m.install("", 1)
			require.NoError(t, os.RemoveAll(m.dir+"/sys/bus/pci/devices/0000:10:00.0"))
			require.NoError(t, os.MkdirAll(m.dir+"/etc", 0o755))
			require.NoError(t, os.WriteFile(m.dir+"/etc/nv_tegra_release", nil, 0o644))
		},
		"vGPU host, whose driver has no libcuda": func(m *machine) {
			m.install("", 1)
			require.NoError(t, os.Remove(m.dir+libDir+"/libcuda.so."+version))
			require.NoError(t, os.MkdirAll(m.dir+"/sys/module/nvidia_vgpu_vfio", 0o755))
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, gputest.Node("t4", 1))
			prepare(m)
			d := New(m.toolkit(), slog.New(slog.DiscardHandler), NewMetrics(prometheus.NewRegistry()))
			defer func() { require.NoError(t, d.close(t.Context())) }()
			require.NoError(t, d.reconcile(t.Context(), everything))
			s := m.await("failed", phase(nodestate.Failed))
			require.Equal(t, setup.ReasonPlatform, s.Reason, s.Message)
			require.NotContains(t, s.Message, "install")
			_, err := os.Stat(m.dir + "/run/cdi")
			require.ErrorIs(t, err, fs.ErrNotExist)
			_, _, err = m.toolkit().Once(t.Context(), true)
			reason, _ := m.conf.Explain(err)
			require.Equal(t, setup.ReasonPlatform, reason)
		})
	}
}

func TestNodeWithoutAGPUGetsNoSpecification(t *testing.T) {
	m := newMachine(t, gpu.Snapshot{Driver: gpu.Driver{Version: version}})
	m.install("", 0)
	changes, w, err := m.toolkit().Once(t.Context(), false)
	require.NoError(t, err)
	s := m.conf.State(w, nil)
	require.Equal(t, nodestate.Ready, s.Phase)
	require.Equal(t, setup.ReasonNoGPU, s.Reason)
	require.False(t, slices.ContainsFunc(changes, func(c apply.Change) bool { return strings.HasSuffix(c.Path, ".yaml") }))
}

func TestReadOnlyAndFullDirectoriesGiveOneMessage(t *testing.T) {
	for _, c := range []struct {
		name, path, options string
		flags               uintptr
		reason              gpu.Reason
		want                string
	}{
		{"read-only CDI directory", "/run/cdi", "", syscall.MS_RDONLY, setup.ReasonReadOnly, "--cdi-output-dir"},
		{"full CDI directory", "/run/cdi", "size=4k", 0, setup.ReasonDiskFull, "make room"},
		{"read-only /usr/local", "/usr/local", "", syscall.MS_RDONLY, setup.ReasonReadOnly, "--toolkit-install-dir"},
		{"full /usr/local", "/usr/local", "size=4k,nr_inodes=2", 0, setup.ReasonDiskFull, "make room"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t, gputest.Node("h100-sxm", 8))
			m.install("", 8)
			m.tmpfs(c.path, c.options, c.flags)
			_, w, err := m.toolkit().Once(t.Context(), false)
			require.Error(t, err)
			s := m.conf.State(w, err)
			require.Equal(t, nodestate.Failed, s.Phase)
			require.Equal(t, c.reason, s.Reason, s.Message)
			require.Contains(t, s.Message, c.want)
			entries, err := os.ReadDir(m.dir + c.path)
			require.NoError(t, err)
			for _, e := range entries {
				require.NotContains(t, e.Name(), ".tmp")
				if filepath.Ext(e.Name()) == ".yaml" { // one that fitted is complete
					data, err := os.ReadFile(filepath.Join(m.dir+c.path, e.Name()))
					require.NoError(t, err)
					_, err = cdi.Parse(data)
					require.NoError(t, err)
				}
			}
		})
	}
}

// In a container, a folder of the host that is gone leaves the read-only file system of the image.
func TestReplacedFolderIsNotCalledReadOnly(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	m.install("", 1)
	m.tmpfs("/run/cdi", "", syscall.MS_RDONLY)
	require.NoError(t, os.Mkdir(m.dir+"/mounted", 0o755))
	require.NoError(t, syscall.Mount(m.dir+"/mounted", m.dir+"/run/cdi", "", syscall.MS_BIND, ""))
	m.run()
	m.await("ready", phase(nodestate.Ready))
	require.NoError(t, syscall.Unmount(m.dir+"/run/cdi", syscall.MNT_DETACH))
	require.NoError(t, os.Remove(m.dir+"/dev/nvidiactl")) // the next scan
	s := m.await("failed", phase(nodestate.Failed))
	require.Equal(t, setup.ReasonFolderReplaced, s.Reason, s.Message)
	require.Contains(t, s.Message, "was replaced on the host")
}

func TestApplyMakesThePlannedChangesOnce(t *testing.T) {
	m := newMachine(t, gputest.Node("h100-sxm", 8))
	m.install("", 8)
	before := m.snapshot()
	planned, _, err := m.toolkit().Once(t.Context(), true)
	require.NoError(t, err)
	require.Equal(t, before, m.snapshot(), "a plan changes nothing")
	done, _, err := m.toolkit().Once(t.Context(), false)
	require.NoError(t, err)
	var want, got strings.Builder
	require.NoError(t, apply.Print(&want, sorted(planned)))
	require.NoError(t, apply.Print(&got, sorted(done)))
	require.Equal(t, want.String(), got.String())
	require.Contains(t, want.String(), "+kind: k8s.gpuready.io/gpu")

	after := m.snapshot()
	done, _, err = m.toolkit().Once(t.Context(), false)
	require.NoError(t, err)
	require.Empty(t, done)
	require.Equal(t, after, m.snapshot())
}

func sorted(changes []apply.Change) []apply.Change {
	slices.SortFunc(changes, func(a, b apply.Change) int { return strings.Compare(a.Path, b.Path) })
	return changes
}

func TestUninstallRestoresTheHost(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	m.install("", 1)
	before := m.snapshot()
	tk := m.toolkit()
	_, w, err := tk.Once(t.Context(), false)
	require.NoError(t, err)
	require.NoError(t, tk.Publish(m.conf.State(w, nil)))
	planned, left, err := tk.Uninstall(true)
	require.NoError(t, err)
	require.Empty(t, left)
	removed, left, err := tk.Uninstall(false)
	require.NoError(t, err)
	require.Empty(t, left)
	require.Equal(t, planned, removed)
	require.Equal(t, before, m.snapshot())
}
