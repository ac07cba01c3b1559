package built

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Grace limits the time that a process may take to end after SIGTERM.
const Grace = 20 * time.Second

// Process is a running program of a test. It keeps the output, both streams in one.
type Process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended

	mu     sync.Mutex
	output strings.Builder
	grown  chan struct{} // closed and replaced when output grows
	err    error
}

// Start starts a built program and ends it at the end of the test. Its output is shown if the test
// failed. env adds to the environment.
func Start(t testing.TB, name string, args []string, env ...string) *Process {
	t.Helper()
	p := &Process{name: name, done: make(chan struct{}), grown: make(chan struct{})}
	p.cmd = exec.Command(Path(t, name), args...)
	p.cmd.Env = append(Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	go func() {
		err := p.cmd.Wait()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(p.done)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			p.dump(t)
		}
		p.end(t)
		if t.Failed() {
			t.Logf("%s printed:\n%s", name, middleCut(p.Output()))
		}
	})
	return p
}

// dump makes a running process print the stack of each goroutine, which ends it.
func (p *Process) dump(t testing.TB) {
	t.Helper()
	before := len(p.Output())
	if p.cmd.Process.Signal(syscall.SIGQUIT) != nil {
		return // it has ended
	}
	select {
	case <-p.done:
		t.Logf("%s was at:\n%s", p.name, middleCut(p.Output()[before:]))
	case <-time.After(Grace):
		t.Logf("%s does not answer SIGQUIT", p.name)
	}
}

// middleCut cuts the middle of a long output, for failure messages.
func middleCut(s string) string {
	const most = 64 << 10
	if len(s) <= most {
		return s
	}
	return s[:most/4] + "\n[…]\n" + s[len(s)-most*3/4:]
}

func (p *Process) end(t testing.TB) {
	t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(Grace):
		t.Errorf("%s did not end within %v of SIGTERM", p.name, Grace)
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// Write collects output.
func (p *Process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.grown)
	p.grown = make(chan struct{})
	return p.output.Write(b)
}

// Output returns the output so far.
func (p *Process) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// PID returns the process's number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Wait waits until the process has ended and returns its exit code, -1 when a
// signal ended it.
func (p *Process) Wait(ctx context.Context) (int, error) {
	select {
	case <-ctx.Done():
		return 0, fmt.Errorf("%s still runs: %w; it printed:\n%s", p.name, ctx.Err(), p.Output())
	case <-p.done:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var exit *exec.ExitError
	if p.err != nil && !errors.As(p.err, &exit) {
		return 0, p.err
	}
	return p.cmd.ProcessState.ExitCode(), nil
}

// WaitOutput waits until the process has printed text.
func (p *Process) WaitOutput(ctx context.Context, text string) error {
	for {
		p.mu.Lock()
		found, grown := strings.Contains(p.output.String(), text), p.grown
		p.mu.Unlock()
		if found {
			return nil
		}
		select {
		case <-grown:
		case <-p.done:
			if strings.Contains(p.Output(), text) {
				return nil
			}
			return fmt.Errorf("%s ended without printing %q; it printed:\n%s", p.name, text, p.Output())
		case <-ctx.Done():
			return fmt.Errorf("%s did not print %q: %w; it printed:\n%s", p.name, text, ctx.Err(), p.Output())
		}
	}
}
