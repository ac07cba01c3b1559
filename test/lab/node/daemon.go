package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// daemon is a runtime's process, which can be restarted.
type daemon struct {
	argv []string
	cmd  *exec.Cmd
	// ended is closed when the process has ended; how is the reason.
	ended chan struct{}
	how   error

	mu      sync.Mutex
	printed bytes.Buffer
}

// Write collects the output of all starts.
func (d *daemon) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.printed.Write(p)
}

func (d *daemon) log() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.printed.String()
}

// complaints returns the last lines of the log, without routine loading messages.
func (d *daemon) complaints() string {
	var lines []string
	for line := range strings.Lines(d.log()) {
		if !strings.Contains(line, `level=info msg="loading plugin`) && !strings.Contains(line, `msg="skip loading`) {
			lines = append(lines, line[:min(len(line), 400)])
		}
	}
	const most = 40
	return strings.Join(lines[max(0, len(lines)-most):], "")
}

func (d *daemon) running() bool {
	if d.cmd == nil {
		return false
	}
	select {
	case <-d.ended:
		return false
	default:
		return true
	}
}

func (d *daemon) start() error {
	if d.running() {
		return errors.New("it runs already")
	}
	out, in, err := os.Pipe() // the shims keep it open, so Wait must not wait for its end
	if err != nil {
		return err
	}
	d.cmd = exec.Command(d.argv[0], d.argv[1:]...) //nolint:noctx // ends with its node
	d.cmd.Env = environment()
	d.cmd.Dir = "/"
	d.cmd.Stdout, d.cmd.Stderr = in, in
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = errors.Join(d.cmd.Start(), in.Close())
	if err != nil {
		d.cmd = nil
		return errors.Join(err, out.Close())
	}
	go func() {
		_, _ = out.WriteTo(d)
		_ = out.Close()
	}()
	d.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		d.how = cmd.Wait()
		close(ended)
	}(d.cmd, d.ended)
	return nil
}

// whileItRuns calls do, and cancels it with an error if the process ends.
func (d *daemon) whileItRuns(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-d.ended:
			cancel(fmt.Errorf("it ended: %w", endedHow(d.how)))
		case <-done:
		}
	}()
	err := do(ctx)
	close(done)
	<-watched
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// until retries ask until it returns no error. When ctx ends, it returns the last error.
func until(ctx context.Context, ask func() error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

func endedHow(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

func (d *daemon) signal(s syscall.Signal) error {
	if !d.running() {
		return os.ErrProcessDone
	}
	return d.cmd.Process.Signal(s)
}

func (d *daemon) stop(ctx context.Context) error {
	if err := d.signal(syscall.SIGTERM); err != nil {
		if errors.Is(err, os.ErrProcessDone) {
			return nil
		}
		return err
	}
	select {
	case <-d.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s did not end: %w; it printed:\n%s", d.argv[0], ctx.Err(), d.complaints())
	}
}

func (d *daemon) kill() {
	if d.signal(syscall.SIGKILL) == nil {
		<-d.ended
	}
}

// environment returns the environment of a host's daemons, without that of the test.
func environment() []string {
	return []string{
		"PATH=" + bin + ":/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "TMPDIR=" + work, "NO_PROXY=*", "no_proxy=*",
	}
}
