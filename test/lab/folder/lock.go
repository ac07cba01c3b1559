package folder

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockBase creates and locks the parent folder of all clusters.
func lockBase() (*os.File, error) {
	path, err := filepath.Abs(Base())
	if err != nil {
		return nil, err
	}
	for {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, err
		}
		base, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(base.Fd()), unix.LOCK_EX); err != nil {
			_ = base.Close()
			return nil, err
		}
		locked, err := base.Stat()
		if now, errNow := os.Stat(path); err == nil && errNow == nil && os.SameFile(locked, now) {
			return base, nil
		}
		_ = base.Close() // the last cluster removed it
	}
}

// tryLock locks a cluster's folder, or reports that a process holds it. flags may be O_CREATE
// for a new folder.
func tryLock(dir string, flags int) (lock *os.File, held bool, err error) {
	lock, err = os.OpenFile(filepath.Join(dir, "lock"), flags|os.O_RDWR, 0o600)
	if err != nil {
		return nil, false, err
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return lock, false, nil
	}
	_ = lock.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, true, nil
	}
	return nil, false, fmt.Errorf("lock %s: %w", dir, err)
}

// Locked reports whether a process holds the folder at a path.
func Locked(path string) (bool, error) {
	lock, held, err := tryLock(path, 0)
	if err != nil || held {
		return held, err
	}
	return false, lock.Close()
}

// WaitReleased waits until no process holds the folder at a path, or it no longer exists.
func WaitReleased(path string, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for {
		held, err := Locked(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !held {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is still held after %v", path, patience)
		}
		time.Sleep(50 * time.Millisecond) // flock has neither a deadline nor an event
	}
}

// TakePlace waits until one of n places on this machine is free, and takes it until the returned file is
// closed or this process ends. All places are files named prefix and a number.
func TakePlace(ctx context.Context, prefix string, n int) (*os.File, error) {
	for {
		for i := range n {
			place, err := os.OpenFile(fmt.Sprintf("%s-%d", prefix, i), os.O_CREATE|os.O_RDWR, 0o600)
			if err != nil {
				return nil, err
			}
			if err = unix.Flock(int(place.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
				return place, nil
			}
			_ = place.Close()
			if !errors.Is(err, unix.EWOULDBLOCK) {
				return nil, fmt.Errorf("lock %s: %w", place.Name(), err)
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("all %d places (%s-*) are taken: %w", n, prefix, ctx.Err())
		case <-time.After(50 * time.Millisecond): // flock cannot wait for one of several
		}
	}
}
