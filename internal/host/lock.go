package host

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// DriverLock is the file beside the driver root that driver containers, NVIDIA's too,
// lock so that only one runs at a time.
const DriverLock = "nvidia-driver.pid"

// ErrHeld is returned, wrapped, if another process holds the lock. The text is about drivers,
// because DriverLock is the only file that is locked.
var ErrHeld = errors.New("another driver is running there")

// Lock is a locked file. The kernel releases it however the process ends.
type Lock struct {
	locked *os.File
	// writing is the same file, open for writing. Waiters watch with inotify for the close
	// of a writable file, so closing writing wakes them; their own attempts open the file
	// read-only and wake nobody. It is closed after locked, so that the lock is free when
	// they wake.
	writing *os.File
}

// TryLock locks the file at path, creates it if needed, and writes the holder into it.
// It fails at once with ErrHeld if another process holds the lock. To retry, wait for
// inotify's event for a file that was closed after writing.
func TryLock(path string) (*Lock, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o644)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			if errors.Is(err, unix.EWOULDBLOCK) {
				err = fmt.Errorf("%s is locked by %s: %w; end it first", path, holder(f), ErrHeld)
			}
			return nil, errors.Join(err, f.Close())
		}
		// The previous holder may have removed the file between OpenFile and Flock. A lock on
		// the removed file keeps nobody out, as others create and lock a new one.
		current, err := isFileAt(f, path)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if !current {
			if err := f.Close(); err != nil {
				return nil, err
			}
			continue
		}
		w, err := writeHolder(path)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return &Lock{f, w}, nil
	}
}

// isFileAt reports whether f is the file that is now at path.
func isFileAt(f *os.File, path string) (bool, error) {
	opened, err := f.Stat()
	if err != nil {
		return false, err
	}
	current, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(opened, current), err
}

// writeHolder writes the holder of the lock: the process ID alone in the first line, as
// NVIDIA's containers write it, then the name of its host. It returns the file open.
func writeHolder(path string) (*os.File, error) {
	name, _ := os.Hostname()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_TRUNC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if _, err = fmt.Fprintf(f, "%d\n%s\n", os.Getpid(), name); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// holder describes the writer of a lock file, for people.
func holder(f *os.File) string {
	text, err := io.ReadAll(io.LimitReader(f, 256))
	words := strings.Fields(string(text))
	switch {
	case err != nil || len(words) == 0:
		return "another process"
	case len(words) == 1:
		return "pid " + words[0]
	}
	return fmt.Sprintf("pid %s on %s", words[0], words[1])
}

// Release unlocks the file and, if remove is set, removes it.
func (l *Lock) Release(remove bool) error {
	var err error
	if remove {
		err = os.Remove(l.writing.Name())
	}
	return errors.Join(err, l.locked.Close(), l.writing.Close())
}
