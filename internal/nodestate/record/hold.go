package record

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrUnheld means that nobody holds what is at the path.
var ErrUnheld = errors.New("held by no process")

// Hold marks this process as alive until the returned Closer is closed. It makes a
// FIFO at path and opens it for writing. However the process ends, the kernel closes
// its end of the FIFO.
func Hold(path string) (io.Closer, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("hold %s: %w%s", path, cause(err), advice(err, filepath.Dir(path)))
	}
	if err := unix.Mkfifo(path, 0o644); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("hold %s: %w%s", path, err, advice(err, filepath.Dir(path)))
	}
	fd, err := openFIFO(path, unix.O_RDWR) // with O_WRONLY it would take a reader
	if err != nil {
		return nil, fmt.Errorf("hold %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// WatchHolder opens a path that a process holds. Reading the result ends with EOF when no
// process holds the path any more. The error wraps ErrUnheld if nobody holds it
// now. Held writes nothing and needs only read permission.
func WatchHolder(path string) (io.ReadCloser, error) {
	fd, err := openFIFO(path, unix.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnheld, path, err)
	}
	if n, err := unix.Read(fd, make([]byte, 1)); n == 0 && err == nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("%w: %s", ErrUnheld, path)
	}
	return os.NewFile(uintptr(fd), path), nil // reading waits without a thread, because fd is non-blocking
}

func openFIFO(path string, how int) (int, error) {
	fd, err := unix.Open(path, how|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return -1, err
	}
	var info unix.Stat_t
	if err := unix.Fstat(fd, &info); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	if info.Mode&unix.S_IFMT != unix.S_IFIFO {
		_ = unix.Close(fd)
		return -1, errors.New("no FIFO; remove it")
	}
	return fd, nil
}
