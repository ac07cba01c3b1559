package vm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"
)

// Result is the result of a program.
type Result struct {
	Code     int            // exit status; -1 where a signal ended it or it still runs
	Signal   syscall.Signal // that ended it, or 0
	Stdout   string
	Stderr   string
	Wall     time.Duration // from its start to its end, by the machine's clock
	TimedOut bool          // it was killed by the timeout
}

// String returns the output and, unless that is 0, the exit status.
func (r Result) String() string {
	s := r.Stdout + r.Stderr
	switch {
	case r.TimedOut:
		s += fmt.Sprintf("[killed after %v]", r.Wall)
	case r.Signal != 0:
		s += fmt.Sprintf("[ended by %v]", r.Signal)
	case r.Code != 0:
		s += fmt.Sprintf("[exit status %d]", r.Code)
	}
	return s
}

// Run runs a program and waits for its end. A program that cannot be started fails the test.
func (m *Machine) Run(ctx context.Context, args ...string) Result {
	m.t.Helper()
	return m.RunCommand(ctx, Command{Args: args})
}

// RunCommand runs a program with more options than Run.
func (m *Machine) RunCommand(ctx context.Context, c Command) Result {
	m.t.Helper()
	p := m.Start(ctx, c)
	timeout := c.Timeout
	if timeout == 0 {
		timeout = patience
	}
	r, exited := p.wait(ctx, timeout)
	if !exited {
		if err := p.SignalGroup(ctx, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			m.t.Fatalf("kill %v in the machine: %v", c.Args, err)
		}
		r, _ = p.wait(ctx, patience)
		r.TimedOut = true
	}
	return r
}

// MustRun runs a program that must succeed, and returns its standard output.
func (m *Machine) MustRun(ctx context.Context, args ...string) string {
	m.t.Helper()
	r := m.Run(ctx, args...)
	if r.Code != 0 {
		m.t.Fatalf("%s in the machine: %v", strings.Join(args, " "), r)
	}
	return r.Stdout
}

// Process is a program that runs in the background.
type Process struct {
	Pid int

	m      *Machine
	handle int
	name   string
}

// Start starts a program and does not wait for it. It ends with the machine.
func (m *Machine) Start(ctx context.Context, c Command) *Process {
	m.t.Helper()
	response, err := m.call(ctx, Request{Op: OpStart, Command: &c})
	if err != nil {
		m.t.Fatalf("start %s in the machine: %v", strings.Join(c.Args, " "), err)
	}
	return &Process{Pid: response.Pid, m: m, handle: response.Handle, name: c.Args[0]}
}

// Wait waits until the process has exited, which it must do within the time.
func (p *Process) Wait(ctx context.Context, within time.Duration) Result {
	p.m.t.Helper()
	r, exited := p.wait(ctx, within)
	if !exited {
		p.m.t.Fatalf("%s still runs after %v; so far: %v", p.name, within, r)
	}
	return r
}

// Output returns what the process has written so far, and reports whether it has exited.
func (p *Process) Output(ctx context.Context) (r Result, exited bool) {
	p.m.t.Helper()
	return p.wait(ctx, 0)
}

func (p *Process) wait(ctx context.Context, within time.Duration) (r Result, exited bool) {
	p.m.t.Helper()
	response, err := p.m.call(ctx, Request{Op: OpWait, Handle: p.handle, Timeout: within})
	if err != nil {
		p.m.t.Fatalf("wait for %s in the machine: %v", p.name, err)
	}
	r = Result{
		Code: response.Code, Signal: syscall.Signal(response.Signal), Wall: response.Wall,
		Stdout: string(response.Stdout), Stderr: string(response.Stderr),
	}
	if !response.Exited {
		r.Code = -1
	}
	return r, response.Exited
}

// Signal sends a signal to the process.
func (p *Process) Signal(ctx context.Context, s syscall.Signal) error {
	p.m.t.Helper()
	_, err := p.m.call(ctx, Request{Op: OpSignal, Handle: p.handle, Signal: int(s)})
	return err
}

// SignalGroup sends a signal to the process and to those that it started.
func (p *Process) SignalGroup(ctx context.Context, s syscall.Signal) error {
	p.m.t.Helper()
	_, err := p.m.call(ctx, Request{Op: OpSignal, Handle: p.handle, Signal: int(s), Group: true})
	return err
}
