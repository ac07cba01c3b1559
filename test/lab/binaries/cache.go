package binaries

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// unusedFor is the time for which an unused entry is kept.
	unusedFor = 30 * 24 * time.Hour
	// unfinished begins the name of a folder that is being filled.
	unfinished = ".building-"
	// record is the file that lists the contents of an entry.
	record = "entry.json"
	// retryInterval is the interval at which a held lock is tried again: flock has neither a deadline
	// nor an event.
	retryInterval = 100 * time.Millisecond
)

// contents is the content of an entry's record.
type contents struct {
	Version string           `json:"version"`
	Sizes   map[string]int64 `json:"sizes"` // of each binary, in bytes
}

// use checks that the entry exists and is complete, and marks it as used. fs.ErrNotExist means
// that it does not exist; any other error describes the defect. Sizes are compared rather than
// checksums, because each start of a cluster checks the entry, and the expected damage comes from
// a machine that lost power.
func (e entry) use(now time.Time) error {
	data, err := os.ReadFile(filepath.Join(e.path, record))
	if errors.Is(err, fs.ErrNotExist) {
		if _, dir := os.Stat(e.path); dir != nil {
			return dir
		}
		return fmt.Errorf("cache entry %s is broken: it has no %s", e.path, record)
	}
	if err != nil {
		return fmt.Errorf("cache entry %s is broken: %v", e.path, err) //nolint:errorlint // not to be taken for "not there"
	}
	var c contents
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("cache entry %s is broken: its %s: %w", e.path, record, err)
	}
	for _, b := range e.binaries {
		info, err := os.Stat(filepath.Join(e.path, b.name))
		switch {
		case err != nil:
			return fmt.Errorf("cache entry %s is broken: it has no %s", e.path, b.name)
		case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
			return fmt.Errorf("cache entry %s is broken: %s is no program", e.path, b.name)
		case info.Size() != c.Sizes[b.name]:
			return fmt.Errorf("cache entry %s is broken: %s has %d bytes, not %d", e.path, b.name, info.Size(), c.Sizes[b.name])
		}
	}
	// Only pruning needs the time; a read-only shared cache works without it.
	_ = os.Chtimes(e.path, now, now)
	return nil
}

// fill builds the entry, unless another process does so while this one waits.
func (e entry) fill(ctx context.Context, goCommand string, s *screen) (err error) {
	cache := filepath.Dir(e.path)
	unlock, err := lock(ctx, filepath.Join(cache, "."+e.name+".lock"), func(holder string) {
		s.printf("%s %s: waiting for another build, process %s\n", e.name, e.version, holder)
	})
	if err != nil {
		return err
	}
	defer unlock()
	if e.use(time.Now()) == nil {
		s.printf("%s %s: built by the other process\n", e.name, e.version)
		return nil
	}
	sweep(cache, unfinished+e.name+"-") // of builds that were killed: the lock is ours
	dir, err := os.MkdirTemp(cache, unfinished+e.name+"-")
	if err != nil {
		return fmt.Errorf("cache of the cluster's binaries: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := e.build(ctx, goCommand, dir, s); err != nil {
		return err
	}
	// Move a broken entry away in one step.
	if err := os.Rename(e.path, filepath.Join(dir, "broken")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("replace a broken cache entry: %w", err)
	}
	if err := os.Rename(filepath.Join(dir, "entry"), e.path); err != nil {
		return fmt.Errorf("cache of the cluster's binaries: %w", err)
	}
	return nil
}

// write writes the record of the binaries in a folder.
func (e entry) write(dir string) error {
	c := contents{Version: e.version, Sizes: map[string]int64{}}
	for _, b := range e.binaries {
		info, err := os.Stat(filepath.Join(dir, b.name))
		if err != nil {
			return fmt.Errorf("%s was built, and is not there: %w", b.name, err)
		}
		c.Sizes[b.name] = info.Size()
	}
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, record), append(data, '\n'), 0o644)
}

// lock locks a file; the lock ends with the process, however that ends. If the lock is held,
// waiting is called once with the holder.
func lock(ctx context.Context, path string, waiting func(holder string)) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the cache of the cluster's binaries: %w", err)
	}
	for told := false; ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !told {
			holder, _ := os.ReadFile(path)
			waiting(strings.TrimSpace(string(holder)))
			told = true
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("waiting for the build that holds %s: %w", path, context.Cause(ctx))
		case <-time.After(retryInterval):
		}
	}
	// Record the holder for those that wait; a failure to do so is harmless.
	_ = f.Truncate(0)
	_, _ = f.WriteAt(fmt.Appendln(nil, os.Getpid()), 0)
	return func() { _ = f.Close() }, nil
}

// prune removes entries unused since a time, and killed builds. Whatever cannot be removed is
// tried again next time.
func prune(cache string, since time.Time) {
	entries, _ := os.ReadDir(cache)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.IsDir() && info.ModTime().Before(since) {
			_ = os.RemoveAll(filepath.Join(cache, e.Name()))
		}
	}
}

// sweep removes the folders whose names begin with prefix.
func sweep(cache, prefix string) {
	entries, _ := os.ReadDir(cache)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			_ = os.RemoveAll(filepath.Join(cache, e.Name()))
		}
	}
}
