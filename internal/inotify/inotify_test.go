package inotify

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func watcher(t *testing.T, dirs ...string) *Watcher {
	t.Helper()
	w, err := New()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	for _, dir := range dirs {
		require.NoError(t, w.Add(dir))
	}
	return w
}

// next returns the next event; go test ends a test that waits for ever.
func next(t *testing.T, w *Watcher) Event {
	t.Helper()
	e, err := w.Next(t.Context())
	require.NoError(t, err)
	return e
}

func touch(t *testing.T, dir, name string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
}

// instances counts the inotify instances that this process has open.
func instances(t *testing.T) int {
	t.Helper()
	process.Lock()
	process.closing.Wait()
	process.Unlock()
	fds, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	n := 0
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.Contains(to, "inotify") {
			n++
		}
	}
	return n
}

func TestWatchersShareOneInstanceThatEndsWithTheLast(t *testing.T) {
	before := instances(t)
	var all []*Watcher
	for range 20 {
		w, err := New()
		require.NoError(t, err)
		require.NoError(t, w.Add(t.TempDir()))
		all = append(all, w)
	}
	require.Equal(t, before+1, instances(t))
	for _, w := range all {
		require.NoError(t, w.Close())
		require.NoError(t, w.Close(), "twice is fine")
		require.ErrorIs(t, w.Add(t.TempDir()), ErrClosed)
	}
	require.Equal(t, before, instances(t))
	dir := t.TempDir()
	w := watcher(t, dir)
	touch(t, dir, "a")
	require.Equal(t, Event{Changed, dir, "a"}, next(t, w), "and another takes its place")
}

func TestEachWatcherReportsItsOwnDirectoriesByItsOwnNames(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	link := filepath.Join(other, "link")
	require.NoError(t, os.Symlink(dir, link))
	byDir, byLink, both, neither := watcher(t, dir), watcher(t, link), watcher(t, dir, link), watcher(t, other)
	touch(t, dir, "a")
	require.Equal(t, Event{Changed, dir, "a"}, next(t, byDir))
	require.Equal(t, Event{Changed, link, "a"}, next(t, byLink))
	require.ElementsMatch(t, []Event{{Changed, dir, "a"}, {Changed, link, "a"}}, []Event{next(t, both), next(t, both)})

	byDir.Remove(dir)
	both.Remove(dir)
	touch(t, dir, "b")
	require.Equal(t, Event{Changed, link, "b"}, next(t, byLink), "it stays watched under its other path")
	require.Equal(t, Event{Changed, link, "b"}, next(t, both))
	touch(t, other, "c")
	require.Equal(t, Event{Changed, other, "c"}, next(t, neither))
}

func TestEveryChangeOfAnEntryIsReported(t *testing.T) {
	for what, do := range map[string]func(path string) error{
		"written": func(path string) error { return os.WriteFile(path, []byte("x"), 0o600) },
		"removed": os.Remove,
		"renamed": func(path string) error { return os.Rename(path, path+"-away") },
		"made":    func(path string) error { return os.Mkdir(path+"-too", 0o700) },
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			touch(t, dir, "a")
			w := watcher(t, dir)
			require.NoError(t, do(filepath.Join(dir, "a")))
			e := next(t, w)
			require.Equal(t, Changed, e.Kind)
			require.Contains(t, e.Name, "a")
		})
	}
}

func TestRemovedDirectoryIsGoneAndCanBeWatchedAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	for name, away := range map[string]func() error{
		"removed": func() error { return os.Remove(dir) },
		"renamed": func() error { return os.Rename(dir, dir+"-of-before") },
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.Mkdir(dir, 0o700))
			a, b := watcher(t, dir), watcher(t, dir)
			require.NoError(t, away())
			for _, w := range []*Watcher{a, b} {
				require.Equal(t, Event{Gone, dir, ""}, next(t, w))
				require.False(t, w.Has(dir))
			}
			require.ErrorIs(t, a.Add(dir), fs.ErrNotExist)
			require.NoError(t, os.Mkdir(dir, 0o700))
			require.NoError(t, a.Add(dir))
			touch(t, dir, "a")
			require.Equal(t, Event{Changed, dir, "a"}, next(t, a))
			require.NoError(t, os.RemoveAll(dir))
		})
	}
}

func TestReplacedDirectoryIsWatched(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	require.NoError(t, os.Mkdir(dir, 0o700))
	w := watcher(t, dir)
	require.NoError(t, os.Rename(dir, dir+"-of-before"))
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, w.Add(dir))
	touch(t, dir+"-of-before", "old")
	touch(t, dir, "new")
	for {
		e := next(t, w)
		require.NotEqual(t, "old", e.Name)
		if e.Name == "new" {
			return
		}
	}
}

func TestAddRefusesAFile(t *testing.T) {
	dir := t.TempDir()
	touch(t, dir, "a")
	require.ErrorContains(t, watcher(t).Add(filepath.Join(dir, "a")), "not a directory")
}

func TestFullQueueBecomesMissedAndOtherWatchersMissNothing(t *testing.T) {
	dir := t.TempDir()
	slow, quick := watcher(t, dir), watcher(t, dir)
	for i := range maxQueued + 10 {
		require.NoError(t, os.Mkdir(filepath.Join(dir, fmt.Sprint(i)), 0o700))
		require.Equal(t, Event{Changed, dir, fmt.Sprint(i)}, next(t, quick))
	}
	require.Equal(t, Event{Kind: Missed}, next(t, slow))
	touch(t, dir, "a")
	require.Equal(t, Event{Changed, dir, "a"}, next(t, slow))
}

func TestWaitingEndsWithItsContextAndWithTheWatcher(t *testing.T) {
	w := watcher(t, t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := w.Next(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	ended := make(chan error, 1)
	go func() {
		_, err := w.Next(context.Background())
		ended <- err
	}()
	require.NoError(t, w.Close())
	require.ErrorIs(t, <-ended, ErrClosed)
}

func TestFailedInstanceEndsOnlyItsOwnWatchers(t *testing.T) {
	dir := t.TempDir()
	w := watcher(t, dir)
	w.shared.fail(os.ErrInvalid)
	_, err := w.Next(t.Context())
	require.ErrorIs(t, err, os.ErrInvalid)
	again := watcher(t, dir)
	touch(t, dir, "a")
	require.Equal(t, Event{Changed, dir, "a"}, next(t, again))
}

func TestConcurrentWatchersMissNothing(t *testing.T) {
	before := instances(t)
	dir := t.TempDir()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 50 {
				w, err := New()
				if err != nil {
					t.Error(err)
					return
				}
				name := fmt.Sprintf("%d-%d", i, j)
				if err := w.Add(dir); err != nil {
					t.Error(err)
				}
				if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
					t.Error(err)
				}
				for {
					e, err := w.Next(t.Context())
					if err != nil {
						t.Error(err)
						break
					}
					if e.Name == name {
						break
					}
				}
				if err := w.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	require.Equal(t, before, instances(t))
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 'a', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(_ *testing.T, data []byte) {
		w := &Watcher{dirs: map[string]int32{"/d": 1}, ready: make(chan struct{}, 1)}
		s := &instance{fd: -1, users: map[*Watcher]bool{w: true}, names: map[int32]map[*Watcher]map[string]bool{1: {w: {"/d": true}}}}
		w.shared = s
		s.dispatch(data)
	})
}

func TestWholeReportsAFileWhenItsWriterCloses(t *testing.T) {
	dir := t.TempDir()
	w, err := NewWhole()
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	require.NoError(t, w.Add(dir))
	other := watcher(t, dir)

	f, err := os.Create(filepath.Join(dir, "a"))
	require.NoError(t, err)
	_, err = f.WriteString("half")
	require.NoError(t, err)
	require.Equal(t, "a", next(t, other).Name, "made")
	require.Equal(t, "a", next(t, other).Name, "written")
	touch(t, t.TempDir(), "elsewhere")
	require.NoError(t, os.Symlink("a", filepath.Join(dir, "link")))
	require.Equal(t, Event{Kind: Changed, Dir: dir, Name: "link"}, next(t, w), "a is still being written")
	require.NoError(t, f.Close())
	require.Equal(t, Event{Kind: Changed, Dir: dir, Name: "a"}, next(t, w))
	require.NoError(t, os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b")))
	require.Equal(t, Event{Kind: Changed, Dir: dir, Name: "b"}, next(t, w), "nobody writes it")
	require.NoError(t, os.Rename(filepath.Join(dir, "b"), filepath.Join(dir, "a")))
	require.NoError(t, os.Remove(filepath.Join(dir, "a")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "c"), 0o755))
	for next(t, w).Name != "c" {
	}
	for next(t, other).Name != "c" {
	}
}

// Nobody closes such a file any more: no later event would report it.
func TestWholeReportsAFileThatWasCompleteBeforeItsName(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	w, err := NewWhole()
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	require.NoError(t, w.Add(dir))

	for i := range 50 {
		name := strconv.Itoa(i)
		touch(t, elsewhere, name)
		require.NoError(t, os.Link(filepath.Join(elsewhere, name), filepath.Join(dir, name)))
		require.NoError(t, os.Remove(filepath.Join(elsewhere, name))) // it may have only one name by the time it is checked
		for next(t, w).Name != name {
		}
	}

	f, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return
	}
	require.NoError(t, err)
	_, err = unix.Write(f, []byte("whole"))
	require.NoError(t, err)
	read, err := unix.Open("/proc/self/fd/"+strconv.Itoa(f), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Close(f))
	require.NoError(t, unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(read), unix.AT_FDCWD, filepath.Join(dir, "named"), unix.AT_SYMLINK_FOLLOW))
	require.NoError(t, unix.Close(read))
	for next(t, w).Name != "named" {
	}
}

func TestWholeReportsAChangeOfMode(t *testing.T) {
	dir := t.TempDir()
	touch(t, dir, "a")
	w, err := NewWhole()
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	require.NoError(t, w.Add(dir))
	other := watcher(t, dir)
	require.NoError(t, os.Chmod(filepath.Join(dir, "a"), 0o600))
	require.Equal(t, Event{Kind: Changed, Dir: dir, Name: "a"}, next(t, w))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "c"), 0o755))
	require.Equal(t, "c", next(t, other).Name, "the other Watcher does not report it")
}
