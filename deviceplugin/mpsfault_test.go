package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuready/gpuready/deviceplugin/mps"
	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/built"
)

// write replaces the configuration of the plugin (config.yaml) or of the MPS daemon
// (mps.yaml).
func (m *machine) write(name, text string) {
	m.Helper()
	require.NoError(m, os.WriteFile(m.path(name), []byte("version: v1\n"+text), 0o644))
}

// unserved waits until no device is served by MPS, with a reason that contains text.
func (m *machine) unserved(text string) nodestate.State {
	m.Helper()
	return m.state(func(s nodestate.State) bool { return s.Reason == "MPSNotReady" && strings.Contains(s.Message, text) })
}

func TestStateOfAKilledMPSDaemonIsVoid(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "2").withKubelet().configured(mpsShared, "--mps-root", "/mps")
	daemon := m.mpsDaemon(mpsShared)
	m.wait(8)
	control := child(t, daemon)
	require.NoError(t, daemon.Signal(syscall.SIGKILL))
	m.wait(0)
	s := m.unserved("mps-daemon was killed")
	require.Contains(t, s.Message, "nvidia-device-plugin-mps-control-daemon")
	require.True(t, m.mps(serving(1, 2)).MPS.Resources[0].Ready, "what it said stands there still")
	_, err := m.admit("job", resource, 1)
	require.Error(t, err)

	// It is void for a plugin that starts later, too.
	m.stop()
	m.configured(mpsShared, "--mps-root", "/mps")
	m.unserved("was killed")

	next := m.mpsDaemon(mpsShared)
	m.wait(8)
	require.NotEqual(t, control, child(t, next))
	require.Equal(t, []string{"Exclusive_Process", "Exclusive_Process"}, m.modes())
}

func TestDevicesWaitForACommonConfiguration(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "2").withKubelet().configured(mpsShared)
	m.write("mps.yaml", mpsShared)
	m.mpsDaemon(mpsShared)
	// With other folders for the pipes.
	m.unserved(`its flags.mpsRoot is "/mps", not "/run/nvidia/mps"`)
	m.wait(0)
	m.write("config.yaml", "flags: {mpsRoot: /mps}\n"+mpsShared)
	m.wait(8)

	more := strings.Replace(mpsShared, "4", "8", 1)
	m.write("config.yaml", "flags: {mpsRoot: /mps}\n"+more)
	m.unserved("limits are made for 4 replicas of this GPU, not 8")
	m.wait(0)
	m.write("mps.yaml", more)
	m.wait(16)
	require.Equal(t, "12.0", m.control(resource, "get_default_active_thread_percentage"))
}

func TestNVMLErrorsDoNotEndMPS(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "3").withKubelet().configured(mpsShared, "--mps-root", "/mps")
	daemon := m.mpsDaemon(mpsShared)
	m.wait(12)
	control := child(t, daemon)
	m.sim("lose", "--gpu", "2", "--how", "gone") // and is still one of its own afterwards
	m.wait(8)
	m.sim("fail", "--events", "unknown")
	require.NoError(t, daemon.WaitOutput(soon(t), "reason=DriverFailed"))
	s := m.mps(func(s nodestate.State) bool { return s.Reason == "DriverFailed" })
	require.Equal(t, nodestate.Degraded, s.Phase)
	require.True(t, s.MPS.Resources[0].Ready, "it serves who is there")
	require.Equal(t, control, child(t, daemon))
	m.sim("fail", "--events", "none")
	m.mps(func(s nodestate.State) bool { return s.Reason != "DriverFailed" })
	m.wait(8)
	require.Equal(t, control, child(t, daemon))
	require.NotContains(t, daemon.Output(), "reason=MPSDaemonEnded")
}

func TestDisabledMPSLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "1")
	m.mpsDaemon(mpsShared)
	m.mps(serving(1, 1))
	m.write("mps.yaml", "")
	s := m.mps(func(s nodestate.State) bool { return s.Reason == "NothingShared" && len(s.MPS.Resources) == 0 })
	require.Equal(t, nodestate.Ready, s.Phase)
	require.Equal(t, []string{"Default"}, m.modes())
	m.write("mps.yaml", mpsShared)
	m.mps(serving(1, 1))
}

func TestNextProcessRestoresComputeModesOfAKilledMPSDaemon(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "3")
	daemon := m.mpsDaemon(mpsShared)
	s := m.mps(serving(1, 3))
	require.Len(t, s.MPS.Claimed, 3)
	kept := filepath.Join(m.path("/mps/shm"), "kept")
	require.NoError(t, os.WriteFile(kept, nil, 0o600))
	require.NoError(t, daemon.Signal(syscall.SIGKILL))
	_, err := daemon.Wait(soon(t))
	require.NoError(t, err)
	require.Equal(t, []string{"Exclusive_Process", "Exclusive_Process", "Exclusive_Process"}, m.modes())

	// The next process shares less.
	next := m.mpsDaemon(strings.Replace(mpsShared, "replicas: 4", "replicas: 4, devices: [1]", 1))
	m.mps(func(s nodestate.State) bool { return serving(1, 1)(s) && len(s.MPS.Claimed) == 1 })
	require.Equal(t, []string{"Default", "Exclusive_Process", "Default"}, m.modes())
	require.FileExists(t, kept, "what clients have open stays")
	require.NoError(t, next.Signal(syscall.SIGKILL))
	_, err = next.Wait(soon(t))
	require.NoError(t, err)

	// The one after that shares nothing.
	m.mpsDaemon("")
	m.mps(func(s nodestate.State) bool { return s.Reason == "NothingShared" && len(s.MPS.Claimed) == 0 })
	require.Equal(t, []string{"Default", "Default", "Default"}, m.modes())
}

func TestMPSDaemonNeedsSharedMemoryVisibleToTheHost(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "1")
	m.shareMPS()
	require.NoError(t, unix.Mount("", m.path("/mps"), "", unix.MS_PRIVATE, ""))
	m.mpsDaemon(mpsShared)
	s := m.mps(func(s nodestate.State) bool { return strings.Contains(s.Message, "Bidirectional") })
	require.EqualValues(t, "MPSDaemonFailed", s.MPS.Resources[0].Reason)
	require.Equal(t, []string{"Default"}, m.modes())
	require.NoError(t, unix.Mount("", m.path("/mps"), "", unix.MS_SHARED, ""))
	m.mps(serving(1, 1))
}

func TestMPSRootMayBeALinkOnTheHost(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "1")
	require.NoError(t, os.Mkdir(m.path("/var"), 0o755))
	require.NoError(t, os.Symlink("/mps", m.path("/var/mps"))) // the host's
	m.write("mps.yaml", mpsShared)
	m.shareMPS()
	daemon := built.Start(m, "gpu-device-plugin", []string{
		"mps-daemon", "--host-root", m.host, "--driver-root", "/driver", "--state-dir", "/state", "--listen=", "--config-file", m.path("/mps.yaml"), "--mps-root", "/var/mps",
	})
	s := m.mps(serving(1, 1))
	require.Equal(t, "/var/mps", s.MPS.Resources[0].Root, "as it is configured, and the plugin has it too")
	require.Equal(t, "25.0", m.control(resource, "get_default_active_thread_percentage"))
	require.NoError(t, daemon.Signal(syscall.SIGTERM))
	_, err := daemon.Wait(soon(t))
	require.NoError(t, err)
	out := built.Start(m, "gpu-device-plugin", []string{"mps-uninstall", "--host-root", m.host, "--mps-root", "/var/mps"})
	code, err := out.Wait(soon(t))
	require.NoError(t, err)
	require.Zero(t, code, out.Output())
	at, err := mps.Unmount(m.host, "/mps")
	require.NoError(t, err)
	require.Empty(t, at, "it is unmounted")
}

// mountedFor mounts the mounts of an allocation below a folder, as a container runtime
// does, and returns a function that maps the container's paths.
func (m *machine) mountedFor(mounts []*v1beta1.Mount) func(path string) string {
	m.Helper()
	rootfs := m.TempDir()
	for _, mount := range mounts {
		at := filepath.Join(rootfs, mount.GetContainerPath())
		require.NoError(m, os.MkdirAll(at, 0o755))
		require.NoError(m, unix.Mount(m.path(mount.GetHostPath()), at, "", unix.MS_BIND, ""))
		m.Cleanup(func() { require.NoError(m, unix.Unmount(at, unix.MNT_DETACH)) })
		if mount.GetReadOnly() {
			require.NoError(m, unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		}
	}
	return func(path string) string { return filepath.Join(rootfs, path) }
}

// tree returns the names, kinds, modes, owners and sizes of the files in a folder.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		all = append(all, fmt.Sprint(path, info.Mode(), st.Uid, st.Gid, st.Ino, info.ModTime()))
		return nil
	}))
	return all
}

// A client may be root. It can do anything here except change the host's files.
func TestAClientOfMPSConnectsAndChangesNothingOnTheHost(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "1").withKubelet().configured(mpsShared, "--mps-root", "/mps")
	m.mpsDaemon(mpsShared)
	m.wait(4)
	given, err := m.admit("hostile", resource, 1)
	require.NoError(t, err)
	sees := m.mountedFor(given.Mounts)
	pipe := sees(given.Envs["CUDA_MPS_PIPE_DIRECTORY"])
	hosts := m.path(mps.PipeDir("/mps", resource))
	before := tree(t, hosts)
	require.Greater(t, len(before), 1)

	for _, name := range []string{"", "control", "control_lock", "new"} {
		at, beside := filepath.Join(pipe, name), filepath.Join(pipe, name+"x")
		for what, try := range map[string]func() error{
			"chmod":    func() error { return os.Chmod(at, 0o777) },
			"chown":    func() error { return os.Lchown(at, 1000, 1000) },
			"times":    func() error { return os.Chtimes(at, time.Unix(0, 0), time.Unix(0, 0)) },
			"create":   func() error { return os.WriteFile(beside, []byte("full"), 0o644) },
			"fifo":     func() error { return unix.Mkfifo(beside, 0o644) },
			"link":     func() error { return os.Link(filepath.Join(pipe, "control"), beside) },
			"mkdir":    func() error { return os.Mkdir(beside, 0o755) },
			"remove":   func() error { return os.RemoveAll(at) },
			"rename":   func() error { return os.Rename(at, beside) },
			"symlink":  func() error { return os.Symlink("/etc/passwd", beside) },
			"truncate": func() error { return os.Truncate(at, 1<<20) },
			"xattr":    func() error { return unix.Setxattr(at, "trusted.x", []byte("x"), 0) },
		} {
			if name == "" && what == "rename" || name == "new" && what == "remove" {
				continue // a mount point is busy, and missing files are already removed
			}
			require.Error(t, try(), "%s of %q", what, name)
		}
	}
	require.Equal(t, before, tree(t, hosts))
	require.Equal(t, "25.0", m.controlAt(pipe, "get_default_active_thread_percentage"), "it connects")

	// The file systems that it can write to are not the host's.
	for _, mount := range given.Mounts {
		if !mount.GetReadOnly() {
			var st unix.Statfs_t
			require.NoError(t, unix.Statfs(m.path(mount.GetHostPath()), &st))
			require.EqualValues(t, unix.TMPFS_MAGIC, st.Type, mount.GetHostPath())
			require.EqualValues(t, 64<<20, int64(st.Blocks)*st.Bsize, mount.GetHostPath())
		}
	}
}

// A lock needs no write permission.
func TestAClientThatHoldsTheLockDoesNotKeepTheNextDaemonFromStarting(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "1").withKubelet().configured(mpsShared, "--mps-root", "/mps")
	daemon := m.mpsDaemon(mpsShared)
	m.wait(4)
	r, err := m.kubelet.Wait(soon(t), resource, func(r kubelettest.Resource) bool { return r.Allocatable == 4 })
	require.NoError(t, err)
	lists := r.Lists
	lock, err := os.Open(m.path(mps.PipeDir("/mps", resource)) + "/control_lock")
	require.NoError(t, err)
	defer lock.Close()
	held := make(chan error, 1)
	go func() { held <- unix.Flock(int(lock.Fd()), unix.LOCK_EX) }()
	before := child(t, daemon)
	require.NoError(t, syscall.Kill(before, syscall.SIGKILL))
	require.NoError(t, <-held)
	// The devices are unhealthy until the daemon serves again.
	_, err = m.kubelet.Wait(soon(t), resource, func(r kubelettest.Resource) bool { return r.Lists >= lists+2 && r.Allocatable == 4 })
	require.NoError(t, err, daemon.Output())
	require.NotEqual(t, before, child(t, daemon))
	require.Equal(t, "25.0", m.control(resource, "get_default_active_thread_percentage"))
}
