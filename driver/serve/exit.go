package serve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/driver/kernel"
)

// recheck bounds the wait for a process. It may close a device without ending, of which the
// kernel does not notify.
const recheck = 30 * time.Second

// waitForExit returns when one of the processes has ended, after recheck, or when ctx has
// ended. It does not poll: a process's descriptor becomes readable at its end
// (pidfd_open(2), Linux 5.3).
func waitForExit(ctx context.Context, users []kernel.User) error {
	end, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	fds := []unix.PollFd{{Fd: int32(end), Events: unix.POLLIN}}
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		_, _ = unix.Write(end, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	})
	defer func() {
		if !stop() {
			<-woken
		}
		for _, fd := range fds {
			_ = unix.Close(int(fd.Fd))
		}
	}()
	for _, u := range users {
		fd, err := unix.PidfdOpen(u.PID, 0)
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		if errors.Is(err, unix.ENOSYS) { // RHEL 8: the caller checks again later
			break
		}
		if err != nil {
			return fmt.Errorf("watch %s: %w", u, err)
		}
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	for {
		_, err := unix.Poll(fds, int(recheck.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("poll: %w", err)
		}
		return ctx.Err()
	}
}
