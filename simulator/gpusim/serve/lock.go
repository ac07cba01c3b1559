package serve

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrHeld means that another driver container shows its driver at that place.
var ErrHeld = errors.New("another driver is running there")

// lockName is the file beside the driver root that NVIDIA's driver containers
// lock, so that neither starts where the other one is.
const lockName = "nvidia-driver.pid"

// lock is held by the one driver container of a node.
type lock struct{ f *os.File }

// hold takes the lock, or fails with ErrHeld at once.
func hold(path string) (*lock, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o644)
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
		return write(f)
	}
}

// write says who holds the lock: the number alone in the first line, as the
// ecosystem's containers have it, then where that number is meant.
func write(f *os.File) (*lock, error) {
	host, _ := os.Hostname()
	text := fmt.Sprintf("%d\n%s\n", os.Getpid(), host)
	err := f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(text), 0)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &lock{f}, nil
}

// holder is for people.
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

// release gives the lock back. After a clean end the file is not needed either.
func (l *lock) release(clean bool) error {
	var err error
	if clean {
		err = os.Remove(l.f.Name())
	}
	return errors.Join(err, l.f.Close())
}
