// Package cache stores folders of files by digest.
package cache

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// defaultKeep is the default of Cache.Keep: several kernels, for the old driver and the new
// one.
const defaultKeep = 8

// Cache stores folders of files by digest, in a folder of the node that nobody else writes to.
// Entries are verified when they are read: one with a damaged, missing or extra file counts as
// absent. Several processes may use one Cache at a time.
type Cache struct {
	Dir  string // "": nothing is stored
	Keep int    // number of entries; the least recently used one is evicted first; 0: eight
}

const (
	lockName = "lock"
	tempName = "tmp-" // and random letters
)

var digestPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Get copies the entry of a digest to a new folder. If there is none, the error wraps
// fs.ErrNotExist, and to is unchanged.
func (c Cache) Get(ctx context.Context, digest, to string) error {
	if c.Dir == "" {
		return fs.ErrNotExist
	}
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	at, err := c.entryPath(digest)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(at); err != nil {
		return err
	}
	if err := restoreFiles(ctx, at, to); err != nil {
		err = errors.Join(err, os.RemoveAll(to))
		if errors.Is(err, errDamaged) {
			err = errors.Join(fmt.Errorf("%w: %w", fs.ErrNotExist, err), os.RemoveAll(at))
		}
		return err
	}
	now := time.Now()
	return os.Chtimes(at, now, now)
}

// Put stores a copy of the files of a folder as the entry of a digest. It replaces an older
// entry.
func (c Cache) Put(ctx context.Context, digest, from string) error {
	if c.Dir == "" {
		return nil
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return err
	}
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	at, err := c.entryPath(digest)
	if err != nil {
		return err
	}
	if err := c.removeLeftovers(); err != nil {
		return err
	}
	temp := filepath.Join(c.Dir, tempName+rand.Text())
	if err := storeFiles(ctx, from, temp); err != nil {
		return errors.Join(err, os.RemoveAll(temp))
	}
	if err := errors.Join(os.RemoveAll(at), os.Rename(temp, at), syncDir(c.Dir)); err != nil {
		return errors.Join(err, os.RemoveAll(temp))
	}
	return c.evictSurplus(digest)
}

func (c Cache) entryPath(digest string) (string, error) {
	if !digestPattern.MatchString(digest) {
		return "", fmt.Errorf("%q is not a digest", digest)
	}
	return filepath.Join(c.Dir, digest), nil
}

// lock locks the cache against other processes and goroutines. The kernel unlocks it when the
// process ends.
func (c Cache) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(c.Dir, lockName), os.O_RDONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
		}
	}
}

// removeLeftovers removes leftovers of killed writers.
func (c Cache) removeLeftovers() error {
	left, err := filepath.Glob(filepath.Join(c.Dir, tempName+"*"))
	for _, dir := range left {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// evictSurplus removes surplus entries, but not the one of the digest.
func (c Cache) evictSurplus(digest string) error {
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return err
	}
	type used struct {
		name string
		at   time.Time
	}
	var all []used
	for _, e := range entries {
		if !digestPattern.MatchString(e.Name()) || e.Name() == digest {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		all = append(all, used{e.Name(), info.ModTime()})
	}
	slices.SortFunc(all, func(a, b used) int {
		if d := a.at.Compare(b.at); d != 0 {
			return d
		}
		return strings.Compare(a.name, b.name)
	})
	keep := c.Keep
	if keep <= 0 {
		keep = defaultKeep
	}
	for len(all) > keep-1 {
		err = errors.Join(err, os.RemoveAll(filepath.Join(c.Dir, all[0].name)))
		all = all[1:]
	}
	return err
}

// syncDir waits until the names in a folder are on the disk.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	// Some file systems cannot sync a folder and return EINVAL.
	if err = d.Sync(); errors.Is(err, unix.EINVAL) {
		err = nil
	}
	return errors.Join(err, d.Close())
}
