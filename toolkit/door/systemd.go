package door

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/gpuready/gpuready/internal/host"
)

// throughSystemd restarts or reloads the first unit that runs.
func throughSystemd(ctx context.Context, root *host.Root, units []string, verb Verb) (Passage, error) {
	start := time.Now()
	s, err := dial(ctx, root)
	if err != nil {
		return Passage{}, fmt.Errorf("%s of %s: %w", verb, strings.Join(units, " or "), err)
	}
	defer s.conn.Close()
	u, err := s.choose(ctx, units)
	if err != nil {
		return Passage{}, fmt.Errorf("%s: %w", verb, err)
	}
	if u.state == "failed" {
		// Else a unit that was started too often is not started (systemd.unit(5), StartLimitBurst=).
		if err := s.call(ctx, managerPath, managerIface+".ResetFailedUnit", u.name).Err; err != nil {
			return Passage{}, fmt.Errorf("%s of %s, which has failed: %w", verb, u.name, err)
		}
	}
	if err := s.job(ctx, u, verb); err != nil {
		return Passage{}, fmt.Errorf("%s of %s: %w; look at journalctl -u %s -n 50", verb, u.name, err, u.name)
	}
	return Passage{Verb: verb, Unit: u.name, Took: time.Since(start)}, nil
}

// unit is one that systemd has loaded.
type unit struct {
	name, state string
	path        dbus.ObjectPath
}

// rank orders the states of a unit, org.freedesktop.systemd1(5), by how sure it is
// that it is wanted; those that are not in it are not restarted.
var rank = map[string]int{"active": 3, "reloading": 3, "activating": 2, "failed": 1}

// choose returns the first unit that is active, else the first that tries to be or
// has failed at it.
func (s *systemd) choose(ctx context.Context, names []string) (unit, error) {
	var best unit
	var states []string
	for _, name := range names {
		u := unit{name: name, state: "not loaded"}
		err := s.conn.Object(service, managerPath).CallWithContext(ctx, managerIface+".GetUnit", 0, name).Store(&u.path)
		var answer dbus.Error
		switch {
		case errors.As(err, &answer) && answer.Name == service+".NoSuchUnit":
		case err != nil:
			return unit{}, s.explain(ctx, "systemd does not tell of "+name, err)
		default:
			state, err := s.property(ctx, u.path, "Unit", "ActiveState")
			if err != nil {
				return unit{}, err
			}
			u.state = fmt.Sprint(state)
		}
		if rank[u.state] > rank[best.state] {
			best = u
		}
		states = append(states, name+" is "+u.state)
	}
	if best.name == "" {
		return unit{}, fmt.Errorf("no unit that runs is %w (%s); start the runtime, or say which unit it is", errNotThere, strings.Join(states, ", "))
	}
	return best, nil
}

// job asks for one and waits for its end.
func (s *systemd) job(ctx context.Context, u unit, verb Verb) error {
	method := map[Verb]string{Restart: ".RestartUnit", Reload: ".ReloadUnit"}[verb]
	var job dbus.ObjectPath
	answer := s.call(ctx, managerPath, managerIface+method, u.name, "replace")
	if answer.Err != nil {
		return answer.Err
	}
	if err := answer.Store(&job); err != nil {
		return s.explain(ctx, "systemd's answer cannot be read", err)
	}
	result, err := s.wait(ctx, job)
	switch {
	case err != nil:
		return err
	case result == "done":
		return nil
	}
	return fmt.Errorf("systemd says that the job %s%s%s", words(result), s.facts(ctx, u), hint[result])
}

// wait returns the result of a job.
func (s *systemd) wait(ctx context.Context, job dbus.ObjectPath) (string, error) {
	for {
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("it is not done yet: %w; systemd goes on with it, see systemctl list-jobs", ctx.Err())
		case signal, ok := <-s.signals:
			if ctx.Err() != nil {
				continue // it is what closed the connection
			}
			if !ok {
				return "", fmt.Errorf("the connection to %s ended before it was done; see systemctl status, the job may go on", s.where)
			}
			if gone(signal) {
				return "", errors.New("systemd went away before it was done; see systemctl status, the job may go on")
			}
			if result, ok := ended(signal, job); ok {
				return result, nil
			}
		}
	}
}

// ended tells whether a signal is that of a job's end, and its result.
func ended(signal *dbus.Signal, job dbus.ObjectPath) (string, bool) {
	var id uint32
	var path dbus.ObjectPath
	var unit, result string
	if signal.Name != managerIface+".JobRemoved" || dbus.Store(signal.Body, &id, &path, &unit, &result) != nil {
		return "", false
	}
	return result, path == job
}

// gone tells whether a signal is that of systemd leaving the bus.
func gone(signal *dbus.Signal) bool {
	var name, before, after string
	return signal.Name == daemonIface+".NameOwnerChanged" && dbus.Store(signal.Body, &name, &before, &after) == nil &&
		name == service && after == ""
}

// words is a job's result, org.freedesktop.systemd1(5), JobRemoved.
func words(result string) string {
	switch result {
	case "canceled", "skipped":
		return "was " + result
	case "timeout":
		return "took too long"
	case "dependency":
		return "failed, as a unit did that it depends on"
	}
	return result
}

// hint is what else to know of a result.
var hint = map[string]string{
	"canceled": "; another job took its place: try again",
	"timeout":  "; systemd killed it then",
}

// facts are what systemd knows of why a unit failed; none is known of what is no service.
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
