package namespace

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// history counts the events of a program.
type history struct {
	starts, readies, exits int
	exit                   string // how it last ended
}

func (m *Machine) record(e Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.programs[e.Program]
	switch e.Kind {
	case Booted:
		m.booted = true
	case Started:
		h.starts++
	case Ready:
		h.readies++
	case Exited:
		h.exits++
		h.exit = e.Message
	case Failed:
		m.failed = e.Message
	}
	m.programs[e.Program] = h
	close(m.changed)
	m.changed = make(chan struct{})
}

// request asks the machine to send a signal to a program, or to start it if signal is 0.
func (m *Machine) request(program string, signal syscall.Signal) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.requests.Encode(Request{Program: program, Signal: int(signal)}); err != nil {
		return fmt.Errorf("%s is down: %w", m.name, err)
	}
	return nil
}

// await waits until done returns true or an error.
func (m *Machine) await(ctx context.Context, what string, done func() (bool, error)) error {
	for {
		m.mu.Lock()
		ok, err := done()
		if err == nil && m.failed != "" {
			err = errors.New(m.failed)
		}
		changed := m.changed
		m.mu.Unlock()
		if ok || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-m.ended:
			return fmt.Errorf("%s ended while waiting for %s; the last of %s:\n%s", m.name, what, m.log, tail(m.log, 10))
		case <-ctx.Done():
			return fmt.Errorf("%s: waiting for %s: %w", m.name, what, context.Cause(ctx))
		}
	}
}

// WaitBooted waits until the machine's file systems are mounted.
func (m *Machine) WaitBooted(ctx context.Context) error {
	return m.await(ctx, "its mounts", func() (bool, error) { return m.booted, nil })
}

// Start starts a program and waits until it has started or, with ready, until it reports that it is ready.
// It fails if the program ends before.
func (m *Machine) Start(ctx context.Context, program string, ready bool) error {
	if err := m.request(program, 0); err != nil {
		return err
	}
	return m.WithLog(program, m.await(ctx, program, func() (bool, error) {
		h := m.programs[program]
		if h.exits > 0 && h.readies == 0 {
			return false, fmt.Errorf("it ended: %s", h.exit)
		}
		return h.starts > 0 && (!ready || h.readies > 0), nil
	}))
}

// Restart ends a program with a signal and waits until it was started again and reports that it
// is ready.
func (m *Machine) Restart(ctx context.Context, program string, signal syscall.Signal) error {
	m.mu.Lock()
	before := m.programs[program]
	m.mu.Unlock()
	if err := m.request(program, signal); err != nil {
		return err
	}
	return m.WithLog(program, m.await(ctx, program+" again", func() (bool, error) {
		h := m.programs[program]
		return h.starts > before.starts && h.readies > before.readies, nil
	}))
}

// RestartWithoutNotify is like Restart, for a program that does not report when it is ready (sd_notify).
func (m *Machine) RestartWithoutNotify(ctx context.Context, program string, signal syscall.Signal) error {
	m.mu.Lock()
	before := m.programs[program]
	m.mu.Unlock()
	if err := m.request(program, signal); err != nil {
		return err
	}
	return m.WithLog(program, m.await(ctx, program+" again", func() (bool, error) {
		return m.programs[program].starts > before.starts, nil
	}))
}

// WaitCrashing waits until a program has ended so often since the call that it will not recover,
// and returns that as an error. It returns nil when ctx is done before.
func (m *Machine) WaitCrashing(ctx context.Context, program string) error {
	m.mu.Lock()
	before := m.programs[program]
	m.mu.Unlock()
	err := m.await(ctx, program, func() (bool, error) {
		h := m.programs[program]
		if h.exits-before.exits >= 3 {
			return false, fmt.Errorf("it ends again and again: %s", h.exit)
		}
		return false, nil
	})
	if ctx.Err() == nil {
		return m.WithLog(program, err)
	}
	return nil //nolint:nilerr // the caller has stopped waiting
}

// CheckRunning returns an error if a program has ended.
func (m *Machine) CheckRunning(program string) error {
	m.mu.Lock()
	h := m.programs[program]
	m.mu.Unlock()
	if h.exits > 0 && h.exits >= h.starts { // and was not started again
		return m.WithLog(program, fmt.Errorf("it ended: %s", h.exit))
	}
	return nil
}

// Log returns the path of the file with a program's output, "" if there is no such program.
func (m *Machine) Log(program string) string {
	for _, p := range m.spec.Programs {
		if p.Name == program {
			return p.Log
		}
	}
	return ""
}

// WithLog adds to an error the end of a program's output, and its file.
func (m *Machine) WithLog(program string, err error) error {
	if err == nil {
		return nil
	}
	file := m.Log(program)
	last := tail(file, 8)
	if last == "" {
		return fmt.Errorf("%s on %s: %w; it printed nothing", program, m.name, err)
	}
	return fmt.Errorf("%s on %s: %w; the last of %s:\n%s", program, m.name, err, file, last)
}
