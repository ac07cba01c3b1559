package configure

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/gpuready/gpuready/internal/host"
)

// runJob restarts or reloads the first unit that runs, through systemd.
func runJob(ctx context.Context, root *host.Root, units []string, verb string) (Restarted, error) {
	start := time.Now()
	s, u, err := findUnit(ctx, root, units, verb)
	if err != nil {
		return Restarted{}, err
	}
	defer s.conn.Close()
	if u.state == "failed" {
		// Otherwise systemd refuses a unit that was started too often (systemd.unit(5), StartLimitBurst=).
		if err := s.call(ctx, managerPath, managerIface+".ResetFailedUnit", u.name).Err; err != nil {
			return Restarted{}, newNotBegun("%s of %s, which has failed: %w", verb, u.name, err)
		}
	}
	switch err := s.startJob(ctx, u, verb); {
	case isNotBegun(err):
		return Restarted{}, fmt.Errorf("%s of %s: %w", verb, u.name, err)
	case err != nil:
		return Restarted{}, fmt.Errorf("%s of %s: %w; see journalctl -u %s -n 50", verb, u.name, err, u.name)
	}
	return Restarted{Verb: verb, Unit: u.name, Took: time.Since(start)}, nil
}

// findUnit connects to systemd and returns the unit that is to be restarted.
func findUnit(ctx context.Context, root *host.Root, units []string, verb string) (*systemd, unit, error) {
	s, err := dial(ctx, root)
	if err != nil {
		return nil, unit{}, newNotBegun("%s of %s: %w", verb, strings.Join(units, " or "), err)
	}
	u, err := s.choose(ctx, units)
	if err != nil {
		_ = s.conn.Close()
		return nil, unit{}, newNotBegun("%s: %w", verb, err)
	}
	return s, u, nil
}

// unit is a unit that systemd has loaded.
type unit struct {
	name, state string
	path        dbus.ObjectPath
}

// stateRank ranks the states of a unit, org.freedesktop.systemd1(5), by how likely it is meant
// to run. Units in other states are not restarted.
var stateRank = map[string]int{"active": 3, "reloading": 3, "activating": 2, "failed": 1}

// choose returns the first active unit, or else the first one that is starting or failed.
func (s *systemd) choose(ctx context.Context, names []string) (unit, error) {
	var best unit
	var states []string
	for _, name := range names {
		u := unit{name: name, state: "not loaded"}
		err := s.conn.Object(service, managerPath).CallWithContext(ctx, managerIface+".GetUnit", 0, name).Store(&u.path)
		var reply dbus.Error
		switch {
		case errors.As(err, &reply) && reply.Name == service+".NoSuchUnit":
		case err != nil:
			return unit{}, s.explain(ctx, "systemd does not return "+name, err)
		default:
			state, err := s.property(ctx, u.path, "Unit", "ActiveState")
			if err != nil {
				return unit{}, err
			}
			u.state = fmt.Sprint(state)
		}
		if stateRank[u.state] > stateRank[best.state] {
			best = u
		}
		states = append(states, name+" is "+u.state)
	}
	if best.name == "" {
		return unit{}, fmt.Errorf("a running unit is %w (%s); start the runtime, or configure its unit", errNotThere, strings.Join(states, ", "))
	}
	return best, nil
}

// startJob starts a job and waits for its end.
func (s *systemd) startJob(ctx context.Context, u unit, verb string) error {
	method := map[string]string{verbRestart: ".RestartUnit", verbReload: ".ReloadUnit"}[verb]
	var job dbus.ObjectPath
	call := s.call(ctx, managerPath, managerIface+method, u.name, "replace")
	if reply, refused := errors.AsType[dbus.Error](call.Err); refused && reply.Name != noReply {
		return &notBegunError{call.Err}
	}
	if call.Err != nil {
		return call.Err // perhaps systemd has got the request
	}
	if err := call.Store(&job); err != nil {
		return s.explain(ctx, "systemd's response cannot be parsed", err)
	}
	result, err := s.wait(ctx, job)
	switch {
	case err != nil:
		return err
	case result == "done":
		return nil
	}
	return fmt.Errorf("systemd reports that the job %s%s%s", describeResult(result), s.facts(ctx, u), jobHints[result])
}

// wait returns the result of a job.
func (s *systemd) wait(ctx context.Context, job dbus.ObjectPath) (string, error) {
	for {
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("it is not done yet: %w; systemd continues it, see systemctl list-jobs", ctx.Err())
		case signal, ok := <-s.signals:
			if ctx.Err() != nil {
				continue // ctx closed the connection
			}
			if !ok {
				return "", fmt.Errorf("the connection to %s ended before it was done; see systemctl status, the job may continue", s.where)
			}
			if isLeave(signal) {
				return "", errors.New("systemd left the bus before it was done; see systemctl status, the job may continue")
			}
			if result, ok := jobEnded(signal, job); ok {
				return result, nil
			}
		}
	}
}

// jobEnded returns the result of a job, and reports whether the signal is that of its end.
func jobEnded(signal *dbus.Signal, job dbus.ObjectPath) (string, bool) {
	var id uint32
	var path dbus.ObjectPath
	var unit, result string
	if signal.Name != managerIface+".JobRemoved" || dbus.Store(signal.Body, &id, &path, &unit, &result) != nil {
		return "", false
	}
	return result, path == job
}

// isLeave reports whether the signal is that of systemd leaving the bus.
func isLeave(signal *dbus.Signal) bool {
	var name, before, after string
	return signal.Name == daemonIface+".NameOwnerChanged" && dbus.Store(signal.Body, &name, &before, &after) == nil &&
		name == service && after == ""
}

// describeResult describes a job's result, org.freedesktop.systemd1(5), JobRemoved.
func describeResult(result string) string {
	switch result {
	case "canceled", "skipped":
		return "was " + result
	case "timeout":
		return "took too long"
	case "dependency":
		return "failed because a dependency failed"
	}
	return result
}

// jobHints maps results to further information.
var jobHints = map[string]string{
	"canceled": "; another job replaced it: try again",
	"timeout":  "; systemd killed it then",
}

// facts returns the properties that explain a unit's failure. Only services have some.
func (s *systemd) facts(ctx context.Context, u unit) string {
	var facts []string
	for _, p := range []struct{ iface, name string }{
		{"Unit", "ActiveState"}, {"Unit", "SubState"}, {"Service", "Result"}, {"Service", "ExecMainStatus"}, {"Service", "StatusText"},
	} {
		if v, err := s.property(ctx, u.path, p.iface, p.name); err == nil && v != "" {
			facts = append(facts, fmt.Sprintf("%s=%v", p.name, v))
		}
	}
	if len(facts) == 0 {
		return ""
	}
	return " (" + strings.Join(facts, ", ") + ")"
}
