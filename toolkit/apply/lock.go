package apply

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/inotify"
)

// ErrLocked is returned, wrapped, by Lock if another instance has locked the host.
var ErrLocked = errors.New("another gpu-toolkit is at work on this host")

const lockName = "toolkit.lock"

// maxHolder limits the content of a lock file, in bytes.
const maxHolder = 4 << 10

// Held is the lock on a host.
type Held struct {
	file *os.File
	root *host.Root
	dir  string
}

// Lock makes this process the only one that changes the host. The lock is a file in dir,
// a directory of the host that all instances share, best on a file system that does not
// survive a reboot. Lock creates dir if it is missing. The process keeps the file open,
// so the lock ends with the process in any case, and children do not inherit it. The
// file stays and names the last holder, until a holder removes it (Held.Remove).
//
// If another instance has the lock, Lock returns an error that wraps ErrLocked and names
// the holder. With waiting set, it calls waiting with that error instead, and waits for
// the other instance to end, until ctx ends. The waiting thread is then abandoned, and ends
// with the other instance or with this process.
func Lock(ctx context.Context, root *host.Root, dir string, waiting func(error)) (*Held, error) {
	for {
		held, err := lock(ctx, root, dir, waiting)
		if err != nil || held.isFile(root.Stat(path.Join(dir, lockName))) {
			return held, err
		}
		if err := held.Unlock(); err != nil { // the file was removed during the wait
			return nil, err
		}
	}
}

func lock(ctx context.Context, root *host.Root, dir string, waiting func(error)) (*Held, error) {
	f, err := openLock(root, dir)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", explain(root, path.Join(dir, lockName), err))
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		held := fmt.Errorf("%w (%s, by %s)", ErrLocked, path.Join(dir, lockName), readHolder(f))
		if waiting == nil {
			return nil, errors.Join(held, f.Close())
		}
		waiting(held)
		if f, err = await(ctx, f); errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return nil, fmt.Errorf("%w: timed out waiting for it: %w", held, err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path.Join(dir, lockName), err)
	}
	// The holder's name is optional: a full disk has no room for it.
	if err := writeHolder(f); err != nil && !inotify.Exhausted(err) {
		return nil, errors.Join(fmt.Errorf("lock: %w", explain(root, path.Join(dir, lockName), err)), f.Close())
	}
	return &Held{f, root, dir}, nil
}

// isFile reports whether the lock is the given file, the result of a Stat.
func (h *Held) isFile(found fs.FileInfo, err error) bool {
	if err != nil {
		return false
	}
	ours, err := h.file.Stat()
	return err == nil && os.SameFile(ours, found)
}

// Remove removes the lock's file. An instance that waits for it then locks a new one.
func (h *Held) Remove() error {
	err := h.root.Remove(path.Join(h.dir, lockName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Unlock releases the lock.
func (h *Held) Unlock() error { return h.file.Close() }

func openLock(root *host.Root, dir string) (*os.File, error) {
	real, err := root.Resolve(dir)
	if err != nil {
		return nil, err
	}
	if _, err := root.MkdirAll(real, 0o755); err != nil {
		return nil, err
	}
	below, err := os.OpenRoot(root.Path(real))
	if err != nil {
		return nil, err
	}
	defer below.Close()
	at := path.Join(dir, lockName)
	if info, err := below.Lstat(lockName); err == nil && !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: at, Err: host.ErrNotRegular}
	}
	// Package os opens every file with O_CLOEXEC.
	f, err := below.OpenFile(lockName, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o644)
	if wrong, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, &fs.PathError{Op: "open", Path: at, Err: wrong.Err}
	}
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(&fs.PathError{Op: "open", Path: at, Err: host.ErrNotRegular}, f.Close())
	}
	return f, nil
}

// await waits for the lock and returns its file, closed if ctx ends first.
func await(ctx context.Context, f *os.File) (*os.File, error) {
	locked := make(chan error, 1)
	fd := int(f.Fd())
	go func() {
		for {
			if err := unix.Flock(fd, unix.LOCK_EX); !errors.Is(err, syscall.EINTR) {
				locked <- err
				return
			}
		}
	}()
	select {
	case err := <-locked:
		return f, err
	case <-ctx.Done():
		go func() {
			if err := <-locked; err == nil {
				_ = unix.Flock(fd, unix.LOCK_UN)
			}
			_ = f.Close()
		}()
		return nil, ctx.Err()
	}
}

// readHolder returns the last holder in a lock file.
func readHolder(f *os.File) string {
	data, err := io.ReadAll(io.NewSectionReader(f, 0, maxHolder))
	if who := strings.TrimSpace(string(data)); err == nil && who != "" {
		return strings.ToValidUTF8(who, "?")
	}
	return "an unknown process"
}

// writeHolder writes the holder of the lock. The process number is that of its own
// namespace, the name that of its pod.
func writeHolder(f *os.File) error {
	name, _ := os.Hostname()
	line := fmt.Sprintf("process %d on %s, %q, since %s\n", os.Getpid(), name, strings.Join(os.Args, " "), time.Now().UTC().Format(time.RFC3339))
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(line[:min(len(line), maxHolder)]), 0)
	return err
}
