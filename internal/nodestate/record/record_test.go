package record

import (
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestReadRefusesNonRegularFiles(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(at("good"), []byte("good"), 0o644))
	require.NoError(t, os.Symlink("good", at("link")))
	require.NoError(t, unix.Mkfifo(at("fifo"), 0o644))
	require.NoError(t, os.Mkdir(at("dir"), 0o755))
	socket, err := net.Listen("unix", at("socket"))
	require.NoError(t, err)
	defer func() { require.NoError(t, socket.Close()) }()
	require.NoError(t, os.WriteFile(at("big"), make([]byte, 101), 0o644))

	for name, want := range map[string]string{
		"link": "symbolic link", "fifo": "no regular file", "dir": "no regular file",
		"socket": "socket or a device", "big": "larger than 100 bytes",
	} {
		_, err := Read(at(name), 100)
		require.ErrorIs(t, err, ErrInvalid, name)
		require.ErrorContains(t, err, want)
	}
	_, err = Read("/dev/zero", 100)
	require.ErrorIs(t, err, ErrInvalid)
	_, err = Read(at("none"), 100)
	require.ErrorIs(t, err, fs.ErrNotExist)
	data, err := Read(at("good"), 4)
	require.NoError(t, err)
	require.Equal(t, "good", string(data))
}

func TestWriteReplacesALinkAndNotItsTarget(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	require.NoError(t, os.WriteFile(target, []byte("untouched"), 0o600))
	require.NoError(t, os.Symlink(target, link))
	require.NoError(t, Write(link, []byte("new")))
	data, err := os.ReadFile(target)
	require.NoError(t, err)
	require.Equal(t, "untouched", string(data))
	info, err := os.Lstat(link)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o644), info.Mode())
}

func TestWriteSweepsFilesOfKilledWriters(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	old, fresh, other := filepath.Join(dir, ".state.tmp-OLD"), filepath.Join(dir, ".state.tmp-NEW"), filepath.Join(dir, ".else.tmp-OLD")
	for _, p := range []string{old, fresh, other} {
		require.NoError(t, os.WriteFile(p, nil, 0o644))
	}
	past := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(old, past, past))
	require.NoError(t, os.Chtimes(other, past, past))
	require.NoError(t, Write(path, []byte("x")))
	require.NoFileExists(t, old)
	require.FileExists(t, fresh, "its writer may be at work")
	require.FileExists(t, other, "another file's")
}

// tmpfs mounts a tmpfs with the given options for the test.
func tmpfs(t *testing.T, options string, flags uintptr) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", flags, options); err != nil {
		t.Skipf("mounting a tmpfs needs root: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

func TestAFullFileSystemLeavesTheOldFileAndNothingElse(t *testing.T) {
	dir := tmpfs(t, "size=64k", 0)
	path := filepath.Join(dir, "state")
	require.NoError(t, Write(path, []byte("old")))
	err := Write(path, make([]byte, 128<<10))
	require.ErrorIs(t, err, unix.ENOSPC)
	require.EqualError(t, err, "write "+path+": no space left on device; free space on the file system of "+dir+": df -h "+dir+", df -i "+dir)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	data, err := Read(path, 100)
	require.NoError(t, err)
	require.Equal(t, "old", string(data))
}

func TestAReadOnlyFileSystemIsOneClearError(t *testing.T) {
	dir := tmpfs(t, "", unix.MS_RDONLY)
	path := filepath.Join(dir, "sub", "state")
	require.EqualError(t, Write(path, nil), "write "+path+": read-only file system; mount "+filepath.Dir(path)+" writable")
}

func TestAFileInThePlaceOfTheDirectoryIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	require.ErrorContains(t, Write(filepath.Join(file, "state"), nil), "remove the file that is in the place of the directory "+file)
}

func TestReadersSeeOneContentOrTheOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	a, b := strings.Repeat("a", 50_000), strings.Repeat("b", 70_000)
	require.NoError(t, Write(path, []byte(a)))
	var writers sync.WaitGroup
	for _, content := range []string{a, b} {
		writers.Go(func() {
			for range 50 {
				if err := Write(path, []byte(content)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for {
		data, err := Read(path, 100_000)
		require.NoError(t, err)
		if string(data) != a && string(data) != b {
			t.Fatalf("%d bytes of a mixture", len(data))
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

// follow starts Watch and returns a channel on which each call of changed waits
// to be received.
func follow(t *testing.T, paths ...string) <-chan struct{} {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	calls, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- Watch(ctx, paths, func() {
			select {
			case calls <- struct{}{}:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() { cancel(); require.ErrorIs(t, <-ended, context.Canceled) })
	return calls
}

// until receives calls until cond holds after one of them. It fails the test after
// 30 s if the change was not reported.
func until(t *testing.T, calls <-chan struct{}, cond func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		select {
		case <-calls:
			if cond() {
				return
			}
		case <-deadline:
			t.Fatal("the change was not reported")
		}
	}
}

func TestWatchFollowsSeveralFilesThroughTheLifeOfTheirDirectories(t *testing.T) {
	root := t.TempDir()
	one, two := filepath.Join(root, "a", "b", "one"), filepath.Join(root, "a", "two")
	has := func(path, content string) func() bool {
		return func() bool {
			data, err := Read(path, 100)
			return content == "" && err != nil || string(data) == content && err == nil
		}
	}
	calls := follow(t, one, two)
	<-calls
	require.NoError(t, Write(two, []byte("2")))
	until(t, calls, has(two, "2"))
	require.NoError(t, Write(one, []byte("1")))
	until(t, calls, has(one, "1"))
	require.NoError(t, os.RemoveAll(filepath.Dir(one)))
	until(t, calls, has(one, ""))
	require.NoError(t, os.Rename(filepath.Join(root, "a"), filepath.Join(root, "gone")))
	until(t, calls, has(two, ""))
	require.NoError(t, Write(one, []byte("again")))
	until(t, calls, has(one, "again"))
	require.NoError(t, Remove(one))
	until(t, calls, has(one, ""))
	require.NoError(t, Remove(one), "there is none any more")
}

func TestADirectoryReachedByTwoPathsIsWatchedForBoth(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "run"), 0o755))
	require.NoError(t, os.Symlink("run", filepath.Join(root, "var-run")))
	one, two := filepath.Join(root, "run", "nvidia", "state"), filepath.Join(root, "var-run", "cdi", "spec")
	calls := follow(t, one, two)
	<-calls
	for _, path := range []string{one, two, one} {
		require.NoError(t, os.RemoveAll(filepath.Dir(path)))
		require.NoError(t, Write(path, nil))
		until(t, calls, func() bool { _, err := os.Stat(path); return err == nil })
	}
}

func TestADirectoryThatIsMovedAndRemovedDoesNotEndTheWatch(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "dir", "file")
	calls := follow(t, path)
	<-calls
	for range 200 {
		require.NoError(t, Write(path, nil))
		require.NoError(t, os.Rename(filepath.Dir(path), filepath.Join(root, "old")))
		require.NoError(t, os.RemoveAll(filepath.Join(root, "old")))
		select {
		case <-calls:
		default:
		}
	}
	require.NoError(t, Write(path, nil))
	until(t, calls, func() bool { _, err := os.Stat(path); return err == nil })
}

func TestWatchTakesPatternsAndIgnoresOtherFiles(t *testing.T) {
	dir := t.TempDir()
	calls := follow(t, filepath.Join(dir, "lib*.so.*"), filepath.Join(dir, "last"))
	<-calls
	require.NoError(t, os.WriteFile(filepath.Join(dir, "other"), nil, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "libx.so.1"), nil, 0o644))
	<-calls
	require.FileExists(t, filepath.Join(dir, "libx.so.1"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "other"), []byte("x"), 0o644))
	require.NoError(t, Write(filepath.Join(dir, "last"), nil))
	until(t, calls, func() bool { _, err := os.Stat(filepath.Join(dir, "last")); return err == nil })
}

func TestAFileWhoseNameLooksLikeAPatternIsFollowed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c[1].yaml")
	calls := follow(t, path)
	<-calls
	require.NoError(t, os.WriteFile(path, nil, 0o644))
	until(t, calls, func() bool { _, err := os.Stat(path); return err == nil })
}

func TestCleanMakesOneBoundedLine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(4, 50).Draw(t, "limit")
		in := string(rapid.SliceOf(rapid.Byte()).Draw(t, "in"))
		out := Clean(in, limit)
		if len(out) > limit || !utf8.ValidString(out) || strings.ContainsFunc(out, unicode.IsControl) {
			t.Fatalf("Clean(%q, %d) = %q", in, limit, out)
		}
		if again := Clean(out, limit); again != out {
			t.Fatalf("cleaning twice differs: %q, %q", out, again)
		}
	})
}

// full fills a file system with files, which take room or, empty, only inodes.
func full(t *testing.T, dir string, data []byte) {
	t.Helper()
	var err error
	for i := 0; err == nil; i++ {
		err = os.WriteFile(filepath.Join(dir, "fill"+strconv.Itoa(i)), data, 0o644)
	}
	require.ErrorIs(t, err, unix.ENOSPC)
}

func TestReplaceLeavesNoStaleContentOnAFullFileSystem(t *testing.T) {
	for name, data := range map[string][]byte{"bytes": make([]byte, 4096), "inodes": nil} {
		t.Run(name, func(t *testing.T) {
			dir := tmpfs(t, "size=64k,nr_inodes=40", 0)
			path := filepath.Join(dir, "sub", "state")
			require.NoError(t, Replace(path, []byte("old")))
			full(t, dir, data)
			require.NoError(t, Replace(path, []byte("new")), "in the room of the old one")
			content, err := Read(path, 100)
			require.NoError(t, err)
			require.Equal(t, "new", string(content))
			require.ErrorIs(t, Replace(path, make([]byte, 128<<10)), unix.ENOSPC)
			content, err = Read(path, 100)
			require.NoError(t, err)
			require.Empty(t, content)
			require.NoError(t, Replace(path, []byte("newer")))
		})
	}
}

func TestReplaceWithoutDescriptorsLeavesNoStaleContent(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "state"), filepath.Join(dir, "link")
	require.NoError(t, Replace(path, []byte("old")))
	require.NoError(t, os.Symlink(path, link))
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}))
	atLink := Replace(link, []byte("new"))
	info, statErr := os.Lstat(path)
	atFile := Replace(path, []byte("new"))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	require.ErrorIs(t, atLink, unix.EMFILE)
	require.NoError(t, statErr)
	require.Equal(t, int64(3), info.Size(), "a link is removed and not followed")
	require.NoFileExists(t, link)
	require.ErrorIs(t, atFile, unix.EMFILE)
	content, err := Read(path, 100)
	require.NoError(t, err)
	require.Empty(t, content)
}
