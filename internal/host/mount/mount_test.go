package mount

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/test/lab/node"
)

var kind = Kind{Source: "gpusim", Mode: "755", Attributes: unix.MOUNT_ATTR_NOSUID, Inodes: "100"}

func TestALineOfMountinfo(t *testing.T) {
	for line, want := range map[string]Point{
		"111 65 0:42 / /run/nvidia/driver rw,nosuid,relatime shared:2 - tmpfs gpusim rw,size=65536k\n":    {111, "/", "/run/nvidia/driver", "tmpfs", "gpusim", true},
		`36 35 98:0 /mnt1 /a\040b\134c rw master:1 propagate_from:2 unbindable - ext3 /dev/my\011root rw`: {36, "/mnt1", `/a b\c`, "ext3", "/dev/my\troot", false},
		"36 35 98:0 / /bound rw,noatime master:1 shared:12 - fuse.x - rw,errors=continue":                 {36, "/", "/bound", "fuse.x", "-", true},
		"36 35 98:0 / /no/optional/fields rw,noatime - tmpfs shared:1 rw":                                 {36, "/", "/no/optional/fields", "tmpfs", "shared:1", false},
	} {
		p, ok := parse(line)
		require.True(t, ok, line)
		require.Equal(t, want, p)
	}
	for _, line := range []string{"", "\n", " - ", "x 35 98:0 / / rw - ext3 d rw", "36 35 98:0 / / rw ext3 d rw", "36 35 98:0 / / rw - ext3"} {
		_, ok := parse(line)
		require.False(t, ok, line)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("111 65 0:42 / /run/nvidia/driver rw,nosuid,relatime shared:2 - tmpfs gpusim rw")
	f.Fuzz(func(_ *testing.T, line string) { parse(line) })
}

func TestAFileSystemAppearsWholeAndGoesLayerByLayer(t *testing.T) {
	if !node.Enter(t) {
		return
	}
	at := "/run/a b" // as spaces are written in mountinfo
	require.NoError(t, os.Mkdir(at, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(at, "below"), nil, 0o644))
	ours, err := kind.Is(at)
	require.NoError(t, err)
	require.False(t, ours)
	require.NoError(t, kind.Remove(at), "there is nothing to remove")
	for _, name := range []string{"one", "two"} {
		fs, err := kind.New("1m")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(fs.Dir(), name), nil, 0o755))
		require.NoError(t, unix.Mknod(filepath.Join(fs.Dir(), "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
		require.NoFileExists(t, filepath.Join(at, name))
		require.NoError(t, fs.MountOn(at))
		require.NoError(t, fs.Close())
		require.FileExists(t, filepath.Join(at, name))
		f, err := os.Open(filepath.Join(at, "null")) // in /run itself that is not allowed
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	require.NoFileExists(t, filepath.Join(at, "one"), "covered")
	top, there, err := TopAt(at)
	require.NoError(t, err)
	require.True(t, there)
	require.Equal(t, "gpusim", top.Source)
	_, there, err = TopAt(filepath.Join(at, "two"))
	require.NoError(t, err)
	require.False(t, there)
	ours, err = kind.Is(at)
	require.NoError(t, err)
	require.True(t, ours)
	inside, err := kind.Is(filepath.Join(at, "two"))
	require.NoError(t, err)
	require.False(t, inside, "it lies in one, but none is mounted there")
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(at, &st))
	require.EqualValues(t, unix.ST_NOSUID, st.Flags&(unix.ST_NOSUID|unix.ST_NODEV|unix.ST_NOEXEC|unix.ST_RDONLY))
	require.EqualValues(t, 1<<20, int64(st.Blocks)*st.Bsize)

	require.EqualValues(t, 100, st.Files)

	busy, err := os.Open(filepath.Join(at, "two"))
	require.NoError(t, err)
	defer busy.Close()
	require.NoError(t, kind.Remove(at))
	require.FileExists(t, filepath.Join(at, "below"))

	// A mount by somebody else stays, and so does everything below it.
	fs, err := kind.New("1m")
	require.NoError(t, err)
	defer fs.Close()
	require.NoError(t, fs.MountOn(at))
	require.NoError(t, unix.Mount("tmpfs", at, "tmpfs", 0, ""))
	require.NoError(t, kind.Remove(at))
	top, err = Top(at)
	require.NoError(t, err)
	require.Equal(t, "tmpfs", top.Source)
}

// A mount that goes away between two looks at it is not an error: the one below is visible then.
func TestTheTopIsFoundWhileMountsComeAndGo(t *testing.T) {
	if !node.Enter(t) {
		return
	}
	const at = "/run/flicker"
	require.NoError(t, os.Mkdir(at, 0o755))
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			if err := unix.Mount("flicker", at, "tmpfs", 0, ""); err != nil {
				ended <- err
				return
			}
			if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
				ended <- err
				return
			}
		}
	}()
	var err error
	for i := 0; i < 300 && err == nil; i++ {
		_, err = Top(at)
	}
	close(stop)
	require.NoError(t, <-ended)
	require.NoError(t, err)
}

func TestWhatCannotBeMountedIsSaid(t *testing.T) {
	if !node.Enter(t) {
		return
	}
	_, err := kind.New("much")
	require.ErrorContains(t, err, "make a tmpfs: size=much: invalid argument")
	fs, err := kind.New("1m")
	require.NoError(t, err)
	defer fs.Close()
	require.ErrorContains(t, fs.MountOn("/run/none"), "mount a tmpfs on /run/none: no such file")
	_, err = Top("/run/none")
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Resolve("/run/none")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.MkdirAll("/run/real/driver", 0o755))
	require.NoError(t, os.Symlink("/run/real", "/run/link"))
	path, err := Resolve("/run/link/../link/driver")
	require.NoError(t, err)
	require.Equal(t, "/run/real/driver", path)
}
