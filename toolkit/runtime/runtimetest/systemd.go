package runtimetest

// This file implements a systemd for tests, on its own message bus below a directory
// that stands for the host's root, or on systemd's private socket. It has units with states,
// and a function runs its jobs.

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/godbus/dbus/v5"
)

const (
	service = "org.freedesktop.systemd1"
	manager = service + ".Manager"
	path    = "/org/freedesktop/systemd1"
)

// Act runs a job on a unit, "restart" or "reload". With an error the job fails, and the
// error becomes the unit's status. A Result becomes the job's result.
type Act func(unit, verb string) error

// Result is an error that stands for another result of a job than failure: "timeout",
// "canceled", "dependency", "skipped".
type Result string

func (r Result) Error() string { return string(r) }

// Systemd is a running systemd.
type Systemd struct {
	act Act

	mu    sync.Mutex
	units map[string]*unit
	calls []string
	fault *dbus.Error
	peers map[string]func(body ...any) error // the subscribers' callbacks for a job's end
	id    uint32

	jobs sync.WaitGroup
	ends []func() error // the bus first, so that clients only notice its end
}

type unit struct {
	state, text, result string
	status              int32
}

func newSystemd(act Act, states map[string]string) *Systemd {
	s := &Systemd{act: act, units: map[string]*unit{}, peers: map[string]func(...any) error{}}
	for name, state := range states {
		s.units[name] = &unit{state: state, result: "success"}
	}
	return s
}

// Set sets the state of a unit: "active", "inactive", "failed".
func (s *Systemd) Set(name, state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.units[name].state = state
}

// Refuse makes calls for jobs fail with an error. An empty name ends that.
func (s *Systemd) Refuse(name, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = nil
	if name != "" {
		s.fault = dbus.NewError(name, []any{message})
	}
}

// Calls returns the requested jobs in order, as "restart docker.service".
func (s *Systemd) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.calls...)
}

// Wait waits for the end of the requested jobs.
func (s *Systemd) Wait() { s.jobs.Wait() }

// Close stops systemd and its bus once its jobs have ended.
func (s *Systemd) Close() error {
	s.jobs.Wait()
	return s.Die()
}

// Die stops systemd and its bus without waiting for its jobs.
func (s *Systemd) Die() error {
	s.mu.Lock()
	ends := s.ends
	s.ends = nil
	s.mu.Unlock()
	var errs []error
	for _, end := range ends {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}

// subscribe registers a peer's callback for a job's end.
func (s *Systemd) subscribe(peer string, notify func(...any) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peers[peer] = notify
}

func (s *Systemd) find(name string) (*unit, *dbus.Error) {
	u := s.units[name]
	if u == nil {
		return nil, dbus.NewError(service+".NoSuchUnit", []any{"Unit " + name + " not loaded."})
	}
	return u, nil
}

func (s *Systemd) getUnit(name string) (dbus.ObjectPath, *dbus.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.find(name)
	return objectOf(name), err
}

func (s *Systemd) resetFailed(name string) *dbus.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, err := s.find(name)
	if err != nil {
		return err
	}
	s.calls = append(s.calls, "reset-failed "+name)
	if u.state == "failed" {
		u.state = "inactive"
	}
	return nil
}

// start begins a job and returns it.
func (s *Systemd) start(verb, name, mode string) (dbus.ObjectPath, *dbus.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, err := s.find(name)
	switch {
	case s.fault != nil:
		return "", s.fault
	case err != nil:
		return "", err
	case mode != "replace":
		return "", dbus.NewError("org.freedesktop.DBus.Error.InvalidArgs", []any{"mode " + mode})
	}
	s.calls = append(s.calls, verb+" "+name)
	s.id++
	id, job := s.id, dbus.ObjectPath(fmt.Sprintf(path+"/job/%d", s.id))
	if verb == "restart" {
		u.state = "activating"
	}
	s.jobs.Go(func() {
		result := s.finish(u, s.act(name, verb))
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, notify := range s.peers {
			_ = notify(id, job, name, result) // a peer may have disconnected
		}
	})
	return job, nil
}

// finish records the end of a job and returns its result.
func (s *Systemd) finish(u *unit, err error) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		u.state, u.text, u.result, u.status = "active", "", "success", 0
		return "done"
	}
	u.state, u.text, u.result, u.status = "failed", err.Error(), "exit-code", 1
	if r, ok := errors.AsType[Result](err); ok {
		u.text, u.result = "", string(r)
		return string(r)
	}
	return "failed"
}

// get returns a property of a unit.
func (s *Systemd) get(object dbus.ObjectPath, iface, name string) (dbus.Variant, *dbus.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for unit, u := range s.units {
		if objectOf(unit) != object {
			continue
		}
		sub := map[string]string{"active": "running", "inactive": "dead"}[u.state]
		if sub == "" {
			sub = u.state
		}
		value, ok := map[string]any{
			service + ".Unit.ActiveState": u.state, service + ".Unit.SubState": sub, service + ".Service.Result": u.result,
			service + ".Service.ExecMainStatus": u.status, service + ".Service.StatusText": u.text,
		}[iface+"."+name]
		if ok {
			return dbus.MakeVariant(value), nil
		}
	}
	return dbus.Variant{}, dbus.NewError("org.freedesktop.DBus.Error.UnknownProperty", []any{name})
}

// objectOf returns the path of a unit's object, with its name escaped as by systemd.
func objectOf(name string) dbus.ObjectPath {
	var b strings.Builder
	for _, c := range []byte(name) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "_%02x", c)
		}
	}
	return dbus.ObjectPath(path + "/unit/" + b.String())
}
