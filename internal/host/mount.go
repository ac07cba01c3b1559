package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// MountWatch sees what is mounted, which inotify does not tell of: a driver
// container shows its root by a mount.
type MountWatch struct {
	mountinfo int // a descriptor, which Run closes
	paths     []string
	last      string
}

// WatchMounts begins to watch what is mounted at, above or below the paths:
// those of this process, without links. What changes from now on is told by Run.
func WatchMounts(paths []string) (*MountWatch, error) {
	// Not os.Open: Go's own poller would look at the file as well, and the
	// kernel tells of a change once, to whoever looks first.
	fd, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("watch mounts: /proc/self/mountinfo: %w", err)
	}
	last, err := mountsAt(paths)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return &MountWatch{mountinfo: fd, paths: paths, last: last}, nil
}

// Run calls changed after each change until ctx ends; it then ends the watch
// and returns ctx.Err(). The kernel wakes it (poll in proc(5)).
func (w *MountWatch) Run(ctx context.Context, changed func()) error {
	defer func() { _ = unix.Close(w.mountinfo) }()
	end, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("watch mounts: eventfd: %w", err)
	}
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		_, _ = unix.Write(end, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	})
	defer func() {
		if !stop() {
			<-woken // it must not write to a descriptor that is another's by then
		}
		_ = unix.Close(end)
	}()
	for {
		fds := []unix.PollFd{{Fd: int32(w.mountinfo), Events: unix.POLLPRI}, {Fd: int32(end), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("watch mounts: poll: %w", err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		now, err := mountsAt(w.paths)
		if err != nil {
			return err
		}
		if now != w.last {
			w.last = now
			changed()
		}
	}
}

// mountsAt returns the lines of mountinfo that concern the paths.
func mountsAt(paths []string) (string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("watch mounts: %w", err)
	}
	return concerning(string(data), paths), nil
}

func concerning(mountinfo string, paths []string) string {
	var b strings.Builder
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		for _, p := range paths {
			if within(fields[4], p) || fields[4] != "/" && within(p, fields[4]) {
				b.WriteString(line)
				break
			}
		}
	}
	return b.String()
}

func within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}
