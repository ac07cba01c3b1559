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
// lock to run only one at a time.
const DriverLock = "nvidia-driver.pid"

// ErrHeld is returned, wrapped, if another process holds a lock.
var ErrHeld = errors.New("another driver is running there")

// Lock is a locked file. The kernel releases it however the process ends.
type Lock struct {
	locked *os.File
	// writing is closed after locked: processes waiting for this lock watch for the
	// close of a file open for writing; their own attempts open it for reading.
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
		// The one who held it may have removed the file.
		mine, err1 := f.Stat()
		there, err2 := os.Stat(path)
		if err1 != nil || err2 != nil || !os.SameFile(mine, there) {
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

// writeHolder writes the holder of the lock: the process ID alone in the first line, as
// NVIDIA's containers write it, then the name of its host.
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
	lines := strings.Fields(string(text))
	switch {
	case err != nil || len(lines) == 0:
		return "another process"
	case len(lines) == 1:
		return "pid " + lines[0]
	}
	return fmt.Sprintf("pid %s on %s", lines[0], lines[1])
}

// Release unlocks the file and, if remove is set, removes it.
func (l *Lock) Release(remove bool) error {
	var err error
	if remove {
		err = os.Remove(l.writing.Name())
	}
	return errors.Join(err, l.locked.Close(), l.writing.Close())
}
