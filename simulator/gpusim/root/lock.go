package root

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// lock is the lock of a root, held by a gpusim that changes it.
type lock struct{ f *os.File }

// acquire waits until no other gpusim changes the root. While it waits, it reports the
// holder of the lock. It fails with fs.ErrNotExist once the root is gone.
func acquire(path, command string, say func(format string, a ...any)) (*lock, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		if err := flock(f, path, say); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		// The holder may have removed the file, with the whole root.
		mine, err1 := f.Stat()
		there, err2 := os.Stat(path)
		if err1 != nil || err2 != nil || !os.SameFile(mine, there) {
			if err := f.Close(); err != nil {
				return nil, err
			}
			continue
		}
		if err := errors.Join(f.Truncate(0), writeAt(f, fmt.Sprintf("pid %d (%s)\n", os.Getpid(), command))); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return &lock{f}, nil
	}
}

func flock(f *os.File, path string, say func(format string, a ...any)) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		say("waiting for %s, which holds %s", holder(f), path)
		for err = unix.Flock(int(f.Fd()), unix.LOCK_EX); errors.Is(err, unix.EINTR); {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		}
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	return nil
}

// holder returns the description that the holder of the lock wrote, for people only.
func holder(f *os.File) string {
	text, err := io.ReadAll(io.LimitReader(f, 256))
	if err != nil || len(text) == 0 {
		return "another gpusim"
	}
	return strings.TrimSpace(string(text))
}

func (l *lock) release() error { return l.f.Close() }

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}
