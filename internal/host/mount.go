package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/inotify"
)

// MountWatch watches mounts, which inotify does not report: a driver container
// publishes its root by a mount.
type MountWatch struct {
	mountinfo int // a descriptor, which Run closes; -1: there was none to be had
	paths     []string
	last      string
}

// pollInterval is the interval of checks for mounts while there is no file descriptor
// for the kernel's notifications.
const pollInterval = 5 * time.Second

// WatchMounts starts to watch the mounts at, above or below the paths, which are paths
// of this process without links. Run reports the changes from now on.
func WatchMounts(paths []string) (*MountWatch, error) {
	w := &MountWatch{mountinfo: -1, paths: paths}
	if err := w.open(); err != nil && !inotify.Exhausted(err) {
		return nil, err
	}
	return w, nil
}

func (w *MountWatch) open() error {
	// Not os.Open: Go's own poller would poll the file as well, and the kernel
	// reports a change only once, to the first poller.
	fd, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("watch mounts: /proc/self/mountinfo: %w", err)
	}
	w.mountinfo = fd
	if w.last, err = w.read(); err != nil {
		w.close()
	}
	return err
}

func (w *MountWatch) close() {
	if w.mountinfo >= 0 {
		_ = unix.Close(w.mountinfo)
		w.mountinfo = -1
	}
}

// Run calls changed after each change until ctx ends; it then ends the watch and returns
// ctx.Err(). The kernel reports changes (poll in proc(5)). While there is no descriptor
// for that, Run calls changed every few seconds.
func (w *MountWatch) Run(ctx context.Context, changed func()) error {
	defer w.close()
	for {
		err := w.watch(ctx, changed)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !inotify.Exhausted(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollInterval):
			changed()
		}
	}
}

// watch is like Run, but fails if there is no descriptor.
func (w *MountWatch) watch(ctx context.Context, changed func()) error {
	if w.mountinfo < 0 {
		if err := w.open(); err != nil {
			return err
		}
		changed() // perhaps before it was opened
	}
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
		now, err := w.read()
		if err != nil {
			return err
		}
		if now != w.last {
			w.last = now
			changed()
		}
	}
}

// read returns the lines of mountinfo that concern the paths. It needs no other
// descriptor than its own.
func (w *MountWatch) read() (string, error) {
	var all []byte
	if _, err := unix.Seek(w.mountinfo, 0, io.SeekStart); err != nil {
		return "", fmt.Errorf("watch mounts: %w", err)
	}
	for part := make([]byte, 16<<10); ; {
		n, err := unix.Read(w.mountinfo, part)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return "", fmt.Errorf("watch mounts: %w", err)
		case n == 0:
			return concerning(string(all), w.paths), nil
		default:
			all = append(all, part[:n]...)
		}
	}
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
