package rootfs

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host"
)

// Kernels before 5.8, and sandboxes that refuse statx, still have fdinfo.
func TestMountsAreNumberedWithoutStatx(t *testing.T) {
	numbers := func() (list []string) {
		for _, name := range []string{"/", "/proc", "/proc/self/exe", "/dev", "/dev/null"} {
			fd, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
			require.NoError(t, err)
			id, err := mountID(fd)
			require.NoError(t, err)
			require.NoError(t, unix.Close(fd))
			list = append(list, id)
		}
		return list
	}
	want := numbers()
	defer func() { statx = unix.Statx }()
	for _, kernel := range []func(int, string, int, int, *unix.Statx_t) error{
		func(int, string, int, int, *unix.Statx_t) error { return unix.ENOSYS },
		func(int, string, int, int, *unix.Statx_t) error { return unix.EPERM },
		func(_ int, _ string, _, _ int, st *unix.Statx_t) error { st.Mask = unix.STATX_BASIC_STATS; return nil },
	} {
		statx = kernel
		require.Equal(t, want, numbers())
	}
	_, err := mountID(-1)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestOwnMounts(t *testing.T) {
	const host = `1 0 254:0 / / rw shared:1 - ext4 /dev/vda rw
2 1 0:20 / /run rw shared:2 - tmpfs tmpfs rw
3 1 0:30 / /var/lib/kubelet/pods/p/volumes/memory rw shared:3 - tmpfs tmpfs rw
`
	const bundle = "/run/b/rootfs"
	container := func(lines ...string) string {
		return host + strings.ReplaceAll(strings.Join(lines, "\n"), "ROOT", bundle) + "\n"
	}
	overlay := []string{"10 2 0:40 / ROOT rw - overlay overlay rw", "11 10 0:40 / ROOT rw - overlay overlay rw"}
	for name, c := range map[string]struct {
		table    string
		root, at string
		own      bool
	}{
		"an overlay on itself":               {container(overlay...), "11", "11", true},
		"a folder on itself":                 {container("10 2 0:20 /b/rootfs ROOT rw - tmpfs tmpfs rw"), "10", "10", true},
		"part of another mount":              {host, "2", "2", true},
		"a volume on it":                     {container(append(overlay, "12 11 254:0 /home/x ROOT rw - ext4 /dev/vda rw")...), "12", "12", false},
		"two volumes on it":                  {container(append(overlay, "12 11 254:0 /x ROOT rw - ext4 /dev/vda rw", "13 12 254:0 /x ROOT rw - ext4 /dev/vda rw")...), "13", "13", false},
		"another folder of the same":         {container("10 2 0:20 /b/rootfs ROOT rw - tmpfs tmpfs rw", "11 10 0:20 /other ROOT rw - tmpfs tmpfs rw"), "11", "11", false},
		"a tmpfs of its own":                 {container(append(overlay, "12 11 0:50 / ROOT/dev rw - tmpfs tmpfs rw")...), "11", "12", true},
		"a tmpfs of its own, twice":          {container(append(overlay, "12 11 0:50 / ROOT/dev rw - tmpfs tmpfs rw", "13 12 0:50 / ROOT/dev/x rw - tmpfs tmpfs rw")...), "11", "12", true},
		"a folder of its tmpfs":              {container(append(overlay, "12 11 0:50 / ROOT/dev rw - tmpfs tmpfs rw", "13 12 0:50 /y ROOT/dev/x rw - tmpfs tmpfs rw")...), "11", "13", false},
		"a tmpfs of its own in a volume":     {container(append(overlay, "12 11 254:0 /x ROOT/v rw - ext4 /dev/vda rw", "13 12 0:50 / ROOT/v/dev rw - tmpfs tmpfs rw")...), "11", "13", true},
		"an emptyDir in memory":              {container(append(overlay, "12 11 0:30 / ROOT/cache rw - tmpfs tmpfs rw")...), "11", "12", false},
		"the host's /run":                    {container(append(overlay, "12 11 0:20 / ROOT/run rw - tmpfs tmpfs rw")...), "11", "12", false},
		"a folder of the host's /run":        {container(append(overlay, "12 11 0:20 /x ROOT/run rw - tmpfs tmpfs rw")...), "11", "12", false},
		"a folder of the host":               {container(append(overlay, "12 11 254:0 /x ROOT/etc rw - ext4 /dev/vda rw")...), "11", "12", false},
		"proc":                               {container(append(overlay, "12 11 0:60 / ROOT/proc rw - proc proc rw")...), "11", "12", false},
		"an overlay of its own":              {container(append(overlay, "12 11 0:61 / ROOT/o rw - overlay overlay rw")...), "11", "12", false},
		"devtmpfs":                           {container(append(overlay, "12 11 0:6 / ROOT/dev rw - devtmpfs udev rw")...), "11", "12", false},
		"a mount that is not in the table":   {container(overlay...), "11", "99", false},
		"a root that is not in the table":    {host, "99", "99", false},
		"a tmpfs whose parents lead nowhere": {container(append(overlay, "12 13 0:50 / ROOT/dev rw - tmpfs tmpfs rw", "13 12 0:51 / ROOT/x rw - tmpfs tmpfs rw")...), "11", "12", false},
		"a tmpfs in a table that is cut":     {container(append(overlay, "12 11 0:50 / ROOT/dev rw - tmpfs tmpfs rw", "13 12 0:50")...), "11", "12", false},
	} {
		m := &mounts{root: c.root, table: mountinfo(c.table), known: map[string]error{}}
		err := m.decide(c.at)
		if c.own {
			require.NoError(t, err, name)
		} else {
			require.ErrorIs(t, err, ErrHost, name)
		}
	}
}

// mounted creates a root file system with a directory of the host at /v.
func mounted(t *testing.T) (root *Root, dir, volume string) {
	t.Helper()
	dir, volume = t.TempDir(), t.TempDir()
	require.NoError(t, os.Mkdir(dir+"/v", 0o755))
	if err := unix.Mount(volume, dir+"/v", "", unix.MS_BIND, ""); err != nil {
		t.Skipf("mounting is not permitted: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir+"/v", unix.MNT_DETACH)) })
	root, err := Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return root, dir, volume
}

// Content that a container's user may not read must not get into a file that the user may read.
func TestOwnFilesAreReadFromOwnMounts(t *testing.T) {
	root, dir, volume := mounted(t)
	require.NoError(t, os.WriteFile(volume+"/secret", []byte("x"), 0o400))
	require.NoError(t, os.WriteFile(dir+"/file", []byte("y"), 0o400))
	require.NoError(t, os.Symlink("/v/secret", dir+"/link"))
	require.NoError(t, os.Symlink("/file", volume+"/back"))
	for _, name := range []string{"/v/secret", "/link", "/v/back", "/v/../v/secret"} {
		_, err := root.ReadOwnFile(name, 100)
		require.ErrorIs(t, err, ErrHost, name)
		_, err = root.ReadFile(name, 100)
		require.NoError(t, err, name)
	}
	data, err := root.ReadOwnFile("/file", 100)
	require.NoError(t, err)
	require.Equal(t, "y", string(data))
	_, err = root.ReadOwnFile("/none", 100)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = root.ReadOwnFile("/file", 0)
	require.ErrorIs(t, err, host.ErrTooLarge)
}

// Reading /proc/kmsg consumes the kernel's log.
func TestFilesWithoutASizeAreNotOpened(t *testing.T) {
	root, dir, _ := mounted(t)
	require.NoError(t, os.Mkdir(dir+"/proc", 0o755))
	require.NoError(t, unix.Mount("/proc", dir+"/proc", "", unix.MS_BIND, ""))
	defer func() { require.NoError(t, unix.Unmount(dir+"/proc", unix.MNT_DETACH)) }()
	require.NoError(t, os.Symlink("/proc/uptime", dir+"/libx.so"))
	for _, name := range []string{"/proc/uptime", "/libx.so"} {
		_, err := root.OpenFile(name)
		require.ErrorIs(t, err, errEmpty)
		data, err := root.ReadFile(name, 100)
		require.NoError(t, err)
		require.Empty(t, data)
	}
	folder, err := root.OpenDir("/proc")
	require.NoError(t, err)
	defer folder.Close()
	_, err = folder.OpenFile("uptime")
	require.ErrorIs(t, err, host.ErrNotRegular)
}

// A mount on a shared mount also appears on the host.
func TestNothingIsMountedWhereOthersSeeIt(t *testing.T) {
	root, _, volume := mounted(t)
	require.NoError(t, os.WriteFile(volume+"/params", nil, 0o444))
	for propagation, fine := range map[uintptr]bool{unix.MS_PRIVATE: true, unix.MS_SHARED: false, unix.MS_SLAVE: true} {
		require.NoError(t, unix.Mount("", root.Dir()+"/v", "", propagation, ""))
		root, err := Open(root.Dir())
		require.NoError(t, err)
		f, err := root.HoldMountPoint("/v/params")
		if !fine {
			require.ErrorIs(t, err, ErrHost)
			continue
		}
		require.NoError(t, err, fmt.Sprint(propagation))
		require.NoError(t, f.Close())
		require.NoError(t, root.Close())
	}
	_, err := root.HoldMountPoint("/v")
	require.ErrorIs(t, err, host.ErrNotRegular)
	_, err = root.HoldMountPoint("/none")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestFailedReplaceLeavesTheFileUnchanged(t *testing.T) {
	root, dir, volume := mounted(t)
	for _, f := range []string{dir + "/file", dir + "/other", volume + "/file"} {
		require.NoError(t, os.WriteFile(f, []byte("x"), 0o644))
	}
	require.NoError(t, unix.Mount(volume+"/file", dir+"/file", "", unix.MS_BIND, ""))
	defer func() { require.NoError(t, unix.Unmount(dir+"/file", unix.MNT_DETACH)) }()
	for name, do := range map[string]func() error{
		"replace": func() error { return root.Replace("/file", []byte("y"), 0o644) },
		"symlink": func() error { return root.Symlink("y", "/file") },
		"remove":  func() error { return root.Remove("/file") },
		"chmod":   func() error { return root.Chmod("/file", 0o600) },
		"make":    func() error { return root.MkdirAll("/v/a/b", 0o755) },
	} {
		err := do()
		require.ErrorIs(t, err, ErrHost, name)
		require.True(t, Readonly(err), name)
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 3, "nothing half is left behind")
	entries, err = os.ReadDir(volume)
	require.NoError(t, err)
	require.Len(t, entries, 1)

	// For a hard link, as in an image's layers, the other name keeps the content.
	require.NoError(t, os.Link(dir+"/other", dir+"/hard"))
	require.NoError(t, root.Replace("/hard", []byte("new"), 0o640))
	data, err := os.ReadFile(dir + "/other")
	require.NoError(t, err)
	require.Equal(t, "x", string(data))
	info, err := os.Stat(dir + "/hard")
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode())
	require.NoError(t, unix.Mkfifo(dir+"/pipe", 0o600))
	require.NoError(t, root.Replace("/pipe", nil, 0o600)) // would wait for a reader if it were opened
	require.NoError(t, root.MkdirAll("/new/a/b", 0o755))
	require.ErrorIs(t, root.MkdirAll("/hard/a", 0o755), unix.ENOTDIR)
	require.ErrorIs(t, root.MkdirAll("/hard", 0o755), unix.ENOTDIR)
	require.ErrorIs(t, root.Replace("/none/x", nil, 0o600), os.ErrNotExist)
	require.NoError(t, root.Remove("/none/x"))
}

func FuzzMountinfo(f *testing.F) {
	f.Add("11 10 0:40 / / rw master:1 shared:2 - overlay overlay rw\n12 11 0:50 / /dev rw - tmpfs tmpfs rw\n", "12")
	f.Fuzz(func(t *testing.T, table, at string) {
		for _, root := range []string{"11", at} {
			m := &mounts{root: root, table: mountinfo(table), known: map[string]error{}}
			if err := m.decide(at); err == nil && !strings.Contains(table, at+" ") {
				t.Fatalf("%q is the container's own by %q", at, table)
			}
		}
	})
}
