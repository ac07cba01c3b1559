package spec

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/test/lab/node"
)

// TestAgentsCannotWriteToADriversRoot makes the mounts of agents as a runtime does. The
// driver's container mounts file systems in its root, before and after, and is replaced.
// Even root with all capabilities cannot write to it.
func TestAgentsCannotWriteToADriversRoot(t *testing.T) {
	if !node.Enter(t) {
		return
	}
	const root = "/run/nvidia/driver"
	tmpfs := func(at, file string) {
		require.NoError(t, os.MkdirAll(at, 0o755))
		require.NoError(t, unix.Mount("tmpfs", at, "tmpfs", 0, "mode=755"))
		require.NoError(t, unix.Mount("", at, "", unix.MS_SHARED, ""))
		require.NoError(t, os.WriteFile(filepath.Join(at, file), []byte("the driver's"), 0o644))
	}
	require.NoError(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""))
	require.NoError(t, os.MkdirAll(root+"/usr/lib64", 0o755))
	require.NoError(t, os.WriteFile(root+"/usr/lib64/libnvidia-ml.so.1", []byte("the driver's"), 0o755))
	tmpfs(root+"/proc/sys/kernel", "core_pattern")
	tmpfs(root+"/dev", "log")

	s := gputest.Node("t4", 1)
	all := nodes(s)
	out := Build(Input{Snapshot: s, Nodes: all, DriverRoot: root, DevRoot: root, Hook: "/hook"})
	given := out.Spec(cdi.KindManagement).Devices[0].ContainerEdits.Mounts
	require.Len(t, given, 2)
	const agent, before = "/run/agent", "/run/agent-of-before"
	for _, m := range given {
		mountAs(t, m.HostPath, agent+m.ContainerPath, m.Options)
	}
	mountAs(t, root, before+root, []string{"ro", "rbind", "rslave"}) // hostPath, readOnly, HostToContainer

	tmpfs(root+"/late", "library.so")
	tmpfs(root+"/dev/late", "library.so")
	writes := func(at string) (written []string) {
		require.NoError(t, filepath.WalkDir(at, func(path string, d os.DirEntry, err error) error {
			require.NoError(t, err)
			if d.IsDir() {
				path = filepath.Join(path, "new")
			} else if !d.Type().IsRegular() {
				return nil
			}
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
			if err == nil {
				written = append(written, path)
				return f.Close()
			}
			require.ErrorIs(t, err, unix.EROFS)
			return nil
		}))
		return written
	}
	require.Contains(t, writes(before+root), before+root+"/proc/sys/kernel/core_pattern", "this is what the flag of one mount is worth")
	require.Contains(t, writes(before+root), before+root+"/late/library.so")
	require.Empty(t, writes(agent+root))
	require.FileExists(t, agent+root+"/usr/lib64/libnvidia-ml.so.1")
	require.FileExists(t, agent+root+"/dev/log")
	require.NoFileExists(t, agent+root+"/proc/sys/kernel/core_pattern")

	tmpfs(root, "libnvidia-ml.so.1") // another driver, on top
	require.Empty(t, writes(agent+root))
	require.NoFileExists(t, agent+root+"/libnvidia-ml.so.1", "it is another generation's, for which agents are created anew")
}

// mountAs mounts with the options of a CDI specification, as a runtime does.
func mountAs(t *testing.T, from, at string, options []string) {
	t.Helper()
	flags := map[string]uintptr{
		"ro": unix.MS_RDONLY, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "bind": unix.MS_BIND, "rbind": unix.MS_BIND | unix.MS_REC,
		"private": unix.MS_PRIVATE, "rslave": unix.MS_SLAVE | unix.MS_REC,
	}
	const propagation = unix.MS_PRIVATE | unix.MS_SLAVE
	var bind, of, remount uintptr
	for _, o := range options {
		f, known := flags[o]
		require.True(t, known, o)
		switch {
		case f&propagation != 0:
			of = f
		case f&unix.MS_BIND != 0:
			bind = f
		default:
			remount |= f
		}
	}
	require.True(t, slices.Contains(options, "ro"))
	require.NoError(t, os.MkdirAll(at, 0o755))
	require.NoError(t, unix.Mount(from, at, "", bind, ""))
	require.NoError(t, unix.Mount("", at, "", of, ""))
	require.NoError(t, unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|remount, ""))
}
