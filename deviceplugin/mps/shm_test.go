package mps

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host/mount"
	"github.com/gpuready/gpuready/test/lab/node"
)

// container is a host at /run/host with a daemons' folder that is a mount, shared with
// others or not. It must be called inside a node.
func container(t *testing.T, propagation uintptr) site {
	t.Helper()
	at := "/run/host/run/nvidia/mps"
	require.NoError(t, os.MkdirAll(at, 0o755))
	require.NoError(t, unix.Mount(at, at, "", unix.MS_BIND, ""))
	require.NoError(t, unix.Mount("", at, "", propagation, ""))
	s := site{hostRoot: "/run/host", mpsRoot: "/run/nvidia/mps"}
	require.NoError(t, s.resolveRoot())
	require.NoError(t, s.mkdir(ShmDir(s.real)))
	return s
}

func TestSharedMemoryIsBoundedAndMountedOnce(t *testing.T) {
	if !node.Enter(t) {
		return
	}
	s := container(t, unix.MS_SHARED)
	dir := s.local(ShmDir(s.real))
	var all sync.WaitGroup
	var once shm
	for range 8 {
		all.Go(func() { require.NoError(t, once.mountOnce(s)) })
	}
	all.Wait()
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &st))
	const attributes = unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC
	require.EqualValues(t, attributes, st.Flags&(attributes|unix.ST_RDONLY))
	require.EqualValues(t, 64<<20, int64(st.Blocks)*st.Bsize)
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.ModeDir|os.ModeSticky|0o777, info.Mode())
	require.ErrorIs(t, os.WriteFile(filepath.Join(dir, "full"), make([]byte, 65<<20), 0o644), unix.ENOSPC)

	// Another process finds the files that clients have open.
	var later shm
	require.NoError(t, later.mountOnce(s))
	require.FileExists(t, filepath.Join(dir, "full"))
	at, err := Unmount(s.hostRoot, s.mpsRoot)
	require.NoError(t, err)
	require.Equal(t, []string{"/run/nvidia/mps/shm"}, at)
	require.NoFileExists(t, filepath.Join(dir, "full"), "it was there once")
	at, err = Unmount(s.hostRoot, s.mpsRoot)
	require.NoError(t, err)
	require.Empty(t, at)

	// A foreign mount is used, made writable for all users, and not unmounted.
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m,mode=755"))
	require.NoError(t, later.mountOnce(s))
	info, err = os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.ModeDir|os.ModeSticky|0o777, info.Mode())
	at, err = Unmount(s.hostRoot, s.mpsRoot)
	require.NoError(t, err)
	require.Empty(t, at)
}

// A daemon writes a line to its logs for each connection of a client.
func TestLogsAreBoundedAndEmptiedInTime(t *testing.T) {
	if !node.Enter(t) {
		return
	}
	s := container(t, unix.MS_SHARED)
	s.resource = "nvidia.com/gpu"
	dir := s.local(LogDir(s.real, s.resource))
	require.NoError(t, s.mkdir(LogDir(s.real, s.resource)))
	file := filepath.Join(dir, "control.log")
	require.NoError(t, s.mountLogs())
	require.ErrorIs(t, os.WriteFile(file, make([]byte, 17<<20), 0o644), unix.ENOSPC)
	require.NoError(t, s.mountLogs())
	require.NoFileExists(t, file, "the next daemon could not write")
	require.NoError(t, os.WriteFile(file, make([]byte, 7<<20), 0o644))
	require.NoError(t, s.mountLogs())
	require.FileExists(t, file, "it says what happened to the daemon before")

	at, err := Unmount(s.hostRoot, s.mpsRoot)
	require.NoError(t, err)
	require.Equal(t, []string{"/run/nvidia/mps/nvidia.com/gpu/log"}, at)
	require.NoFileExists(t, file)
	at, err = Unmount(s.hostRoot, s.mpsRoot)
	require.NoError(t, err)
	require.Empty(t, at)
}

func TestSharedMemoryInvisibleToTheHostIsRefused(t *testing.T) {
	if !node.Enter(t) {
		return
	}
	s := container(t, unix.MS_PRIVATE)
	var m shm
	err := m.mountOnce(s)
	require.ErrorContains(t, err, "are not visible to the host")
	require.ErrorContains(t, err, "mountPropagation: Bidirectional")
	top, err := mount.Top(s.local(ShmDir(s.real)))
	require.NoError(t, err)
	require.NotEqual(t, "tmpfs gpuready-mps", top.Type+" "+top.Source)

	// A process on the host itself needs no propagation.
	require.NoError(t, os.MkdirAll("/run/host/proc", 0o755))
	require.NoError(t, unix.Mount("/proc", "/run/host/proc", "", unix.MS_BIND|unix.MS_REC, ""))
	require.Equal(t, os.Getpid() != 1, s.isHost())
}

func TestLinksToTheDaemonsFolderResolveAsOnTheHost(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "run/nvidia"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "var"), 0o755))
	require.NoError(t, os.Symlink("/run", filepath.Join(dir, "var/run")))
	s := site{hostRoot: dir, mpsRoot: "/var/run/nvidia/mps", resource: "nvidia.com/gpu"}
	require.NoError(t, s.resolveRoot())
	require.Equal(t, "/run/nvidia/mps", s.real)
	require.NoError(t, s.mkdir(PipeDir(s.real, s.resource)))
	require.DirExists(t, filepath.Join(dir, "run/nvidia/mps/nvidia.com/gpu/pipe"))
}

func TestUnmountedDaemonsFolderIsRefusedWithAHint(t *testing.T) {
	if !node.Enter(t) {
		return
	}
	require.NoError(t, os.MkdirAll("/run/host", 0o755))
	require.NoError(t, unix.Mount("tmpfs", "/run/host", "tmpfs", unix.MS_RDONLY, ""))
	s := site{hostRoot: "/run/host", mpsRoot: "/srv/mps"}
	require.NoError(t, s.resolveRoot())
	err := s.mkdir(ShmDir(s.real))
	require.ErrorIs(t, err, unix.EROFS)
	require.ErrorContains(t, err, "set its volume mps to /srv/mps, mounted at /run/host/srv/mps with mountPropagation: Bidirectional")
}

func TestForeignLogMountStays(t *testing.T) {
	if !node.Enter(t) {
		return
	}
	s := container(t, unix.MS_SHARED)
	s.resource = "nvidia.com/gpu"
	require.NoError(t, s.mkdir(LogDir(s.real, s.resource)))
	dir := s.local(LogDir(s.real, s.resource))
	require.NoError(t, unix.Mount("disk", dir, "tmpfs", 0, "size=1m"))
	archive := filepath.Join(dir, "archive")
	require.NoError(t, os.WriteFile(archive, make([]byte, 700<<10), 0o600))
	require.NoError(t, s.mountLogs())
	require.FileExists(t, archive)
}
