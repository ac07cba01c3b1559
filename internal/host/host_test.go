package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func open(t testing.TB, dir string) *Root {
	t.Helper()
	r, err := Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func write(t testing.TB, path, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
}

func TestLinksAreFollowedAsChrootWould(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	write(t, dir+"/run/a/file", "inside")
	require.NoError(t, os.MkdirAll(dir+"/var", 0o755))
	require.NoError(t, os.MkdirAll(dir+"/deep/er", 0o755))
	for _, l := range [][2]string{
		{"/run", "var/run"}, // absolute, as on every distribution
		{"../../../../run/a", "deep/er/up"},
		{"/deep/er/up/file", "file"},
		{"loop", "loop"},
		{"../b", "a"}, {"a", "b"},
	} {
		require.NoError(t, os.Symlink(l[0], filepath.Join(dir, l[1])))
	}
	for name, want := range map[string]string{
		"/var/run/a/file":      "/run/a/file",
		"/deep/er/up/file":     "/run/a/file",
		"/file":                "/run/a/file",
		"file":                 "/run/a/file",
		"/../../file":          "/run/a/file",
		"/var/run/../run/new":  "/run/new",
		"/deep/./er//new/file": "/deep/er/new/file",
		"/":                    "/",
	} {
		got, err := r.Resolve(name)
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
	}
	data, err := r.ReadFile("/file", 100)
	require.NoError(t, err)
	require.Equal(t, "inside", string(data))
	for _, name := range []string{"/loop", "/a"} {
		_, err := r.Resolve(name)
		require.ErrorIs(t, err, syscall.ELOOP)
	}
	_, err = r.Resolve("/missing/../run")
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = r.ReadFile("/file\x00x", 100)
	require.ErrorIs(t, err, fs.ErrInvalid)
	_, err = r.Resolve(strings.Repeat("/x", maxParts+1))
	require.ErrorIs(t, err, syscall.ENAMETOOLONG)
}

func TestOnlyRegularFilesOfBoundedSizeAreRead(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	write(t, dir+"/file", "12345")
	require.NoError(t, syscall.Mkfifo(dir+"/pipe", 0o644))
	_, err := r.ReadFile("/file", 4)
	require.ErrorIs(t, err, ErrTooLarge)
	_, err = r.ReadFile("/pipe", 4) // would block for ever if it were opened
	require.ErrorIs(t, err, ErrNotRegular)
	_, err = r.ReadFile("/", 4)
	require.ErrorIs(t, err, ErrNotRegular)
	_, err = r.ReadDir("/pipe")
	require.ErrorIs(t, err, syscall.ENOTDIR)
}

func TestAPipeForAFolderIsNotWaitedFor(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, syscall.Mkfifo(dir+"/pipe", 0o600))
	r := open(t, dir)
	require.ErrorIs(t, r.WriteAtomic("/pipe/x", nil, 0o600), syscall.ENOTDIR)
	require.ErrorIs(t, r.Remove("/pipe/x"), syscall.ENOTDIR)
	_, err := r.Symlink("a", "/pipe/x")
	require.ErrorIs(t, err, syscall.ENOTDIR)
	_, err = r.ReadDir("/pipe")
	require.ErrorIs(t, err, syscall.ENOTDIR)
}

func TestReadDirAtMostEndsAnEndlessFolder(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		write(t, dir+"/"+name, "")
	}
	require.NoError(t, os.Mkdir(dir+"/empty", 0o755))
	r := open(t, dir)
	for limit, want := range map[int]int{1: 1, 3: 3, 9: 4, -1: 4} {
		entries, err := r.ReadDirAtMost("/", limit)
		require.NoError(t, err)
		require.Len(t, entries, want)
	}
	entries, err := r.ReadDirAtMost("/empty", 5)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestHoldPinsWithoutOpening(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, syscall.Mkfifo(dir+"/pipe", 0o600))
	require.NoError(t, os.Symlink("/pipe", dir+"/link"))
	f, err := open(t, dir).OpenPath("/link", 0, nil)
	require.NoError(t, err)
	defer f.Close()
	info, err := f.Stat()
	require.NoError(t, err)
	require.Equal(t, os.ModeNamedPipe, info.Mode().Type())
	_, err = f.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.EBADF)
}

func TestTooDeepIsAnErrorAndNoLongWalk(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(dir+strings.Repeat("/a", maxDepth+1), 0o755))
	r := open(t, dir)
	_, err := r.Resolve(strings.Repeat("/a", maxDepth))
	require.NoError(t, err)
	_, err = r.Resolve(strings.Repeat("/a", maxDepth+1))
	require.ErrorIs(t, err, syscall.ENAMETOOLONG)
	_, err = r.Resolve(strings.Repeat("/a/..", maxParts/2))
	require.NoError(t, err)
}

func TestPathAndHostAreInverse(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	require.Equal(t, dir+"/etc/x", r.Path("/etc/../etc/x"))
	got, ok := r.Host(dir + "/etc/x")
	require.True(t, ok)
	require.Equal(t, "/etc/x", got)
	_, ok = r.Host(dir + "beside")
	require.False(t, ok)
	slash := open(t, "/")
	require.Equal(t, "/etc/x", slash.Path("/etc/x"))
	got, ok = slash.Host("/etc/x")
	require.True(t, ok)
	require.Equal(t, "/etc/x", got)
}

func TestWriteAtomicReplacesLinksAndLeavesNothingBehind(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	r := open(t, dir)
	write(t, outside+"/precious", "host")
	require.NoError(t, os.Symlink(outside+"/precious", dir+"/file"))
	require.NoError(t, r.WriteAtomic("/file", []byte("new"), 0o640))
	got, err := os.ReadFile(outside + "/precious")
	require.NoError(t, err)
	require.Equal(t, "host", string(got))
	info, err := os.Lstat(dir + "/file")
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o640), info.Mode())

	require.NoError(t, os.MkdirAll(dir+"/taken/full", 0o755))
	require.Error(t, r.WriteAtomic("/taken", []byte("x"), 0o644))
	require.ErrorIs(t, r.WriteAtomic("/no/dir", nil, 0o644), fs.ErrNotExist)
	require.ErrorIs(t, r.WriteAtomic("/", nil, 0o644), fs.ErrInvalid)
	require.Equal(t, []string{"file", "taken"}, names(t, dir))
}

func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// A full disk and a read-only one are real file systems here: tmpfs.
func TestFullAndReadOnlyDiskLeaveNothingBehind(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=8k"); err != nil {
		t.Skipf("mounting is not permitted: %v", err)
	}
	defer func() { require.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) }()
	r := open(t, dir)
	require.ErrorIs(t, r.WriteAtomic("/spec", make([]byte, 1<<20), 0o644), syscall.ENOSPC)
	require.Empty(t, names(t, dir))
	require.NoError(t, r.WriteAtomic("/spec", []byte("small"), 0o644))
	require.ErrorIs(t, r.WriteAtomic("/spec", make([]byte, 1<<20), 0o644), syscall.ENOSPC)
	data, err := os.ReadFile(dir + "/spec")
	require.NoError(t, err)
	require.Equal(t, "small", string(data))
	require.NoError(t, syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	err = r.WriteAtomic("/other", []byte("x"), 0o644)
	require.ErrorIs(t, err, syscall.EROFS)
	require.Contains(t, err.Error(), "/other")
	_, err = r.MkdirAll("/a/b", 0o755)
	require.ErrorIs(t, err, syscall.EROFS)
	require.Equal(t, []string{"spec"}, names(t, dir))
}

func TestMkdirAllTellsWhatItMade(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	require.NoError(t, os.MkdirAll(dir+"/run", 0o755))
	require.NoError(t, os.Symlink("/run", dir+"/link"))
	made, err := r.MkdirAll("/link/a/b", 0o755)
	require.NoError(t, err)
	require.Equal(t, []string{"/run/a", "/run/a/b"}, made)
	made, err = r.MkdirAll("/link/a/b", 0o755)
	require.NoError(t, err)
	require.Empty(t, made)
	write(t, dir+"/file", "")
	_, err = r.MkdirAll("/file/a", 0o755)
	require.ErrorIs(t, err, syscall.ENOTDIR)
}

func TestSymlinkIsIdempotent(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	for i, want := range []bool{true, false} {
		changed, err := r.Symlink("libcuda.so.1", "/libcuda.so")
		require.NoError(t, err)
		require.Equal(t, want, changed, i)
	}
	changed, err := r.Symlink("../x", "/libcuda.so")
	require.NoError(t, err)
	require.True(t, changed)
	require.NoError(t, os.MkdirAll(dir+"/d/full", 0o755))
	_, err = r.Symlink("x", "/d")
	require.Error(t, err)
	require.Equal(t, []string{"d", "libcuda.so"}, names(t, dir))
}

func TestMknod(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	if err := r.Mknod("/null", 0o666, 1, 3); errors.Is(err, fs.ErrPermission) {
		t.Skip("mknod is not permitted")
	} else {
		require.NoError(t, err)
	}
	info, err := r.Lstat("/null")
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o666), info.Mode().Perm())
	major, minor, ok := Device(info)
	require.True(t, ok)
	require.Equal(t, [2]uint32{1, 3}, [2]uint32{major, minor})
	require.NoError(t, r.Mknod("/null", 0o600, 1, 5), "another in its place")
	info, err = r.Lstat("/null")
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
	left, err := r.Leftovers("/null")
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoError(t, r.Remove("/null"))
	require.NoError(t, r.Remove("/null"))
}

func TestNearestDir(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	require.NoError(t, os.MkdirAll(dir+"/run/nvidia", 0o755))
	require.NoError(t, os.MkdirAll(dir+"/var", 0o755))
	require.NoError(t, os.Symlink("/run", dir+"/var/run"))
	for name, want := range map[string]string{
		"/var/run/nvidia/driver/lib": "/run/nvidia",
		"/run/nvidia":                "/run/nvidia",
		"/nothing":                   "/",
	} {
		got, err := r.NearestDir(name)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// Whatever links an attacker plants, nothing outside the root is read, written
// or removed.
func TestNothingEscapesALinkFarm(t *testing.T) {
	base := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		top := base + "/farm"
		require.NoError(t, os.RemoveAll(top))
		root, outside := top+"/root", top+"/outside"
		require.NoError(t, os.MkdirAll(outside, 0o755))
		require.NoError(t, os.WriteFile(outside+"/secret", []byte("secret"), 0o644))
		require.NoError(t, os.MkdirAll(root+"/a/b", 0o755))

		names := rapid.SampledFrom([]string{"a", "b", "c", "a/b", "a/c", "a/b/c", "outside"})
		targets := rapid.SampledFrom([]string{
			"/", ".", "..", "../..", "../../..", "a", "b", "c", "/a", "/a/b", "outside", "secret",
			"../outside", "../../outside", "../../../outside/secret", outside, outside + "/secret", "/proc/self/root" + outside, "/outside/secret",
		})
		farm, err := os.OpenRoot(root)
		require.NoError(t, err)
		defer farm.Close()
		for range rapid.IntRange(0, 12).Draw(t, "links") {
			name := names.Draw(t, "name")
			_ = farm.RemoveAll(name)
			_ = farm.Symlink(targets.Draw(t, "target"), name)
		}
		r, err := Open(root)
		require.NoError(t, err)
		defer r.Close()
		part := rapid.SampledFrom([]string{"a", "b", "c", "..", ".", "outside", "secret", "proc/self/root" + outside})
		for range 20 {
			name := "/" + strings.Join(rapid.SliceOfN(part, 1, 6).Draw(t, "path"), "/")
			if data, err := r.ReadFile(name, 100); err == nil {
				require.NotEqual(t, "secret", string(data))
			}
			switch rapid.IntRange(0, 4).Draw(t, "op") {
			case 0:
				_ = r.WriteAtomic(name, []byte("planted"), 0o644)
			case 1:
				_, _ = r.Symlink("planted", name)
			case 2:
				_ = r.Remove(name)
			case 3:
				_, _ = r.MkdirAll(name, 0o755)
			case 4:
				_, _ = r.ReadDir(name)
			}
			entries, err := os.ReadDir(outside)
			require.NoError(t, err)
			require.Len(t, entries, 1)
			secret, err := os.ReadFile(outside + "/secret")
			require.NoError(t, err)
			require.Equal(t, "secret", string(secret))
		}
	})
}

// FuzzResolve: a resolved path never holds "..", and os.Root takes it.
func FuzzResolve(f *testing.F) {
	for _, s := range []string{"/", "..", "a/../../b", "//x", "/l/l/l", "\x00"} {
		f.Add(s, "/a")
	}
	dir := f.TempDir()
	r := open(f, dir)
	f.Fuzz(func(t *testing.T, name, target string) {
		_ = os.Remove(dir + "/l")
		_ = os.Symlink(target, dir+"/l")
		p, err := r.Resolve(name)
		if err != nil {
			return
		}
		if !filepath.IsLocal(strings.TrimPrefix(p, "/")) && p != "/" {
			t.Fatalf("%q resolves to %q", name, p)
		}
	})
}

func TestARootThatIsClosedMeanwhileIsAnError(t *testing.T) {
	root, err := Open(t.TempDir())
	require.NoError(t, err)
	var looking sync.WaitGroup
	for range 4 {
		looking.Go(func() {
			for {
				if _, err := root.Resolve("/a/b"); err != nil {
					return
				}
			}
		})
	}
	require.NoError(t, root.Close())
	looking.Wait()
	_, err = root.Resolve("/a")
	require.Error(t, err)
}
