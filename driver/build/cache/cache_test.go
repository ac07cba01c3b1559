package cache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// number returns the n-th digest.
func number(n int) string { return fmt.Sprintf("%064x", n) }

// newFolder returns a new folder with files.
func newFolder(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		at := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		require.NoError(t, os.WriteFile(at, []byte(text), 0o644))
	}
	return dir
}

func TestGetReturnsStoredFiles(t *testing.T) {
	c := Cache{Dir: filepath.Join(t.TempDir(), "cache")}
	to := filepath.Join(t.TempDir(), "to")
	require.ErrorIs(t, c.Get(t.Context(), number(1), to), fs.ErrNotExist)
	require.NoDirExists(t, to)
	require.NoError(t, c.Put(t.Context(), number(1), newFolder(t, map[string]string{"a.ko": "one", "sub/b.h": ""})))
	require.NoError(t, c.Get(t.Context(), number(1), to))
	text, err := os.ReadFile(filepath.Join(to, "a.ko"))
	require.NoError(t, err)
	require.Equal(t, "one", string(text))
	require.FileExists(t, filepath.Join(to, "sub/b.h"))
	require.NoFileExists(t, filepath.Join(to, manifestName))
	require.ErrorIs(t, c.Get(t.Context(), number(2), filepath.Join(t.TempDir(), "to")), fs.ErrNotExist)

	require.NoError(t, c.Put(t.Context(), number(1), newFolder(t, map[string]string{"c.ko": "two"})))
	again := filepath.Join(t.TempDir(), "to")
	require.NoError(t, c.Get(t.Context(), number(1), again))
	require.NoFileExists(t, filepath.Join(again, "a.ko"))
	require.FileExists(t, filepath.Join(again, "c.ko"))
}

func TestInvalidDigestIsRejected(t *testing.T) {
	c := Cache{Dir: t.TempDir()}
	for _, digest := range []string{"", "..", "../x", strings.Repeat("A", 64), number(1) + "0"} {
		require.ErrorContains(t, c.Put(t.Context(), digest, newFolder(t, nil)), "is not a digest")
		require.ErrorContains(t, c.Get(t.Context(), digest, filepath.Join(t.TempDir(), "to")), "is not a digest")
	}
}

func TestDamagedEntryIsAbsentAndRemoved(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, entry string) error{
		"Changed":  func(_ *testing.T, e string) error { return os.WriteFile(e+"/files/a.ko", []byte("0ne"), 0o644) },
		"Cut":      func(_ *testing.T, e string) error { return os.Truncate(e+"/files/a.ko", 1) },
		"Missing":  func(_ *testing.T, e string) error { return os.Remove(e + "/files/a.ko") },
		"TooMany":  func(_ *testing.T, e string) error { return os.WriteFile(e+"/files/c.ko", nil, 0o644) },
		"Manifest": func(_ *testing.T, e string) error { return os.Remove(filepath.Join(e, manifestName)) },
		"Empty":    func(_ *testing.T, e string) error { return os.Truncate(filepath.Join(e, manifestName), 0) },
		"CutManifest": func(t *testing.T, e string) error {
			text, err := os.ReadFile(filepath.Join(e, manifestName))
			require.NoError(t, err)
			first, _, _ := strings.Cut(string(text), "\n")
			return os.WriteFile(filepath.Join(e, manifestName), []byte(first+"\n"), 0o644)
		},
		"FIFO": func(_ *testing.T, e string) error {
			return errors.Join(os.Remove(e+"/files/a.ko"), syscall.Mkfifo(e+"/files/a.ko", 0o644))
		},
		"Link": func(t *testing.T, e string) error {
			other := newFolder(t, map[string]string{"a.ko": "one"})
			return errors.Join(os.Remove(e+"/files/a.ko"), os.Symlink(other+"/a.ko", e+"/files/a.ko"))
		},
		"File": func(_ *testing.T, e string) error { return errors.Join(os.RemoveAll(e), os.WriteFile(e, nil, 0o644)) },
	} {
		t.Run(name, func(t *testing.T) {
			c := Cache{Dir: t.TempDir()}
			require.NoError(t, c.Put(t.Context(), number(1), newFolder(t, map[string]string{"a.ko": "one", "b.ko": "two"})))
			entry := filepath.Join(c.Dir, number(1))
			require.NoError(t, damage(t, entry))
			to := filepath.Join(t.TempDir(), "to")
			err := c.Get(t.Context(), number(1), to)
			require.ErrorIs(t, err, fs.ErrNotExist)
			require.ErrorIs(t, err, errDamaged)
			require.NoDirExists(t, to)
			require.NoDirExists(t, entry)
			require.NoFileExists(t, entry)
			require.NoError(t, c.Put(t.Context(), number(1), newFolder(t, map[string]string{"a.ko": "one"})))
			require.NoError(t, c.Get(t.Context(), number(1), to))
		})
	}
}

func TestLeastRecentlyUsedEntryIsEvicted(t *testing.T) {
	c := Cache{Dir: t.TempDir(), Keep: 3}
	old := time.Now().Add(-time.Hour)
	for n := range 3 {
		require.NoError(t, c.Put(t.Context(), number(n), newFolder(t, map[string]string{"a": "x"})))
		at := old.Add(time.Duration(n) * time.Minute)
		require.NoError(t, os.Chtimes(filepath.Join(c.Dir, number(n)), at, at))
	}
	require.NoError(t, c.Get(t.Context(), number(0), filepath.Join(t.TempDir(), "to")))
	require.NoError(t, c.Put(t.Context(), number(3), newFolder(t, map[string]string{"a": "x"})))
	require.NoDirExists(t, filepath.Join(c.Dir, number(1)))
	for _, n := range []int{0, 2, 3} {
		require.NoError(t, c.Get(t.Context(), number(n), filepath.Join(t.TempDir(), "to")))
	}
}

func TestLeftoversOfKilledWritersAreRemoved(t *testing.T) {
	c := Cache{Dir: t.TempDir()}
	left := filepath.Join(c.Dir, tempName+"ABC")
	require.NoError(t, os.MkdirAll(filepath.Join(left, "files"), 0o755))
	require.NoError(t, c.Put(t.Context(), number(1), newFolder(t, map[string]string{"a": "x"})))
	require.NoDirExists(t, left)
}

func TestWritersAndReadersSeeWholeEntries(t *testing.T) {
	c := Cache{Dir: t.TempDir(), Keep: 2}
	var all sync.WaitGroup
	for n := range 6 {
		from := newFolder(t, map[string]string{"a": strings.Repeat(fmt.Sprint(n), 10000), "b": fmt.Sprint(n)})
		all.Go(func() {
			for i := range 10 {
				if err := c.Put(t.Context(), number(i%3), from); err != nil {
					t.Error(err)
				}
				to := filepath.Join(t.TempDir(), "to")
				err := c.Get(t.Context(), number(i%3), to)
				if errors.Is(err, errDamaged) || err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Error(err)
				}
				if err != nil {
					continue
				}
				a, _ := os.ReadFile(filepath.Join(to, "a"))
				b, _ := os.ReadFile(filepath.Join(to, "b"))
				if len(a) != 10000 || a[0] != b[0] {
					t.Error("two entries are mixed")
				}
			}
		})
	}
	all.Wait()
}

func TestCancelledOrFailedPutKeepsTheOldEntry(t *testing.T) {
	c := Cache{Dir: t.TempDir()}
	if os.Geteuid() == 0 {
		require.NoError(t, unix.Mount("tmpfs", c.Dir, "tmpfs", 0, "size=64k"))
		t.Cleanup(func() { require.NoError(t, unix.Unmount(c.Dir, unix.MNT_DETACH)) })
	}
	require.NoError(t, c.Put(t.Context(), number(1), newFolder(t, map[string]string{"a": "x"})))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, c.Put(ctx, number(1), newFolder(t, map[string]string{"a": "y"})), context.Canceled)
	if os.Geteuid() == 0 {
		require.ErrorIs(t, c.Put(t.Context(), number(1), newFolder(t, map[string]string{"a": strings.Repeat("y", 1<<20)})), unix.ENOSPC)
	}
	to := filepath.Join(t.TempDir(), "to")
	require.NoError(t, c.Get(t.Context(), number(1), to))
	text, err := os.ReadFile(filepath.Join(to, "a"))
	require.NoError(t, err)
	require.Equal(t, "x", string(text))
	entries, err := os.ReadDir(c.Dir)
	require.NoError(t, err)
	require.Len(t, entries, 2, "the entry and the lock")
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(formatManifest(map[string]string{"a.ko": number(1), "sub/b": number(2)})))
	f.Add([]byte(number(1) + "  files/../a\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		sums, err := parseManifest(text)
		if err != nil {
			return
		}
		require.Equal(t, string(text), formatManifest(sums))
		for name := range sums {
			require.True(t, filepath.IsLocal(name))
		}
	})
}
