package state

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrHeld means that a process has the GPU open.
var ErrHeld = errors.New("in use by another client")

// WithExclusive runs do while no process has the GPU open or can open it. The error wraps
// ErrHeld if a process has it open until ctx ends. The goroutine that waits for the
// kernel may outlive that, until the file is closed or the process ends.
func (f *File) WithExclusive(ctx context.Context, gpu int, do func() error) error {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: hold + int64(gpu), Len: 1}
	free := lock
	free.Type = unix.F_UNLCK
	set := func(command int, lock unix.Flock_t) error {
		for {
			if err := unix.FcntlFlock(f.f.Fd(), command, &lock); !errors.Is(err, unix.EINTR) {
				return err
			}
		}
	}
	held := fmt.Errorf("GPU %d: %w", gpu, ErrHeld)
	err := set(unix.F_OFD_SETLK, lock)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		if ctx.Err() != nil {
			return held
		}
		got := make(chan error, 1)
		go func() { got <- set(unix.F_OFD_SETLKW, lock) }()
		select {
		case err = <-got:
		case <-ctx.Done():
			return held
		}
	}
	if err != nil {
		return fmt.Errorf("lock GPU %d: %w", gpu, err)
	}
	return errors.Join(do(), set(unix.F_OFD_SETLK, free))
}
