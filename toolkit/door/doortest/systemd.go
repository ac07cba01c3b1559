// Package doortest is a systemd for tests: on a message bus of its own below a
// directory that stands for the host's root, and on systemd's private socket. It
// knows units and their states, and runs jobs by a function.
package doortest

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

// Act does to a unit what a verb says, "restart" or "reload". Its error is what the
// job fails by and the unit's status; a Result is the job's result as it is.
type Act func(unit, verb string) error

// Result is an error by which a job ends otherwise than by failing: "timeout",
// "canceled", "dependency", "skipped".
type Result string

func (r Result) Error() string { return string(r) }

// Systemd is one that runs.
type Systemd struct {
	act Act

	mu    sync.Mutex
	units map[string]*unit
	calls []string
	fault *dbus.Error
	peers map[string]func(body ...any) error // who subscribed: how they are told of a job's end
	id    uint32

	jobs sync.WaitGroup
	ends []func() error // the bus first: that is then all that is seen
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

// Set gives a unit a state: "active", "inactive", "failed".
func (s *Systemd) Set(name, state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.units[name].state = state
}

// Refuse makes it answer calls for jobs by an error; "": no more.
func (s *Systemd) Refuse(name, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = nil
	if name != "" {
		s.fault = dbus.NewError(name, []any{message})
	}
}

// Calls are the verbs that were asked for, "restart docker.service", in their order.
func (s *Systemd) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.calls...)
}

// Wait waits for the jobs that it was asked for.
func (s *Systemd) Wait() { s.jobs.Wait() }

// Close ends it and its bus, once its jobs have ended.
func (s *Systemd) Close() error {
	s.jobs.Wait()
	return s.Die()
}

// Die ends it and its bus whatever its jobs do.
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

// subscribe is of a peer, which is told by tell.
func (s *Systemd) subscribe(peer string, tell func(...any) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peers[peer] = tell
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
		for _, tell := range s.peers {
			_ = tell(id, job, name, result) // a peer may have gone
		}
	})
	return job, nil
}

// finish notes how a job ended and returns its result.
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

// get is a property of a unit.
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

// objectOf is a unit's object, its name escaped as systemd does.
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
