// Package restart makes a container runtime load its new configuration, in the way that its
// distribution provides: systemd restarts the unit, Docker reloads, or a person has to do
// it. It never kills a process, and only sends a signal to dockerd: SIGHUP ends containerd.
package restart

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/distro"
)

// Result describes a restart or reload that was done.
type Result struct {
	Verb Verb
	Unit string        // "docker.service"; "" if a signal was sent to dockerd
	PID  int           // the host's process ID of dockerd if a signal was sent to it
	Took time.Duration // from the request to the end of systemd's job
}

// Verb is the way in which a runtime loads its configuration.
type Verb string

// The verbs.
const (
	Restart Verb = "restart"
	Reload  Verb = "reload"
)

func (p Result) String() string {
	if p.Unit == "" {
		return fmt.Sprintf("dockerd (process %d) was told to reload its configuration", p.PID)
	}
	return fmt.Sprintf("%s: %s done in %s", p.Unit, p.Verb, p.Took.Round(time.Millisecond))
}

// NotAllowedError is the error of a runtime that must not be restarted here. Its message names the
// manual steps.
type NotAllowedError struct{ Message string }

func (c *NotAllowedError) Error() string {
	return "the container runtime has to be restarted by hand: " + c.Message
}

// NotBegunError is the error of a restart that was not begun, because nobody could be asked for it
// or the request was refused: the runtime runs on as before. Its message names the step that
// failed, and the next action.
type NotBegunError struct{ Err error }

func (e *NotBegunError) Error() string { return e.Err.Error() }
func (e *NotBegunError) Unwrap() error { return e.Err }

// NotBegun reports whether an error shows that the runtime was left alone.
func NotBegun(err error) bool {
	_, unasked := errors.AsType[*NotBegunError](err)
	_, notAllowed := errors.AsType[*NotAllowedError](err)
	return unasked || notAllowed
}

// Check returns the error with which Apply would not begin, as far as that shows without a
// request: nobody can be asked, or there is nothing to restart.
func Check(ctx context.Context, root *host.Root, r distro.Restart) error {
	if r.Method != distro.Systemd {
		return nil // Docker is also told by a signal
	}
	s, _, err := find(ctx, root, r.Units, Restart)
	if err == nil {
		err = s.conn.Close()
	}
	return err
}

// Apply makes a runtime load its configuration. With reload set it reloads a runtime that
// supports it, and otherwise restarts it. It returns when systemd reports the end of the
// job. After a reload, and for units that do not report when they are ready, the runtime
// may not have loaded the configuration by then: query the runtime. All waiting ends with
// ctx, which needs a deadline; systemd's job then continues.
//
// If no unit is active, Apply restarts a failed one: it is meant to run, and may have failed
// because of the configuration that was just restored. It does not start a stopped one.
func Apply(ctx context.Context, root *host.Root, kind runtime.Kind, r distro.Restart, reload bool) (Result, error) {
	verb := Restart
	if reload && kind == runtime.Docker {
		verb = Reload
	}
	switch r.Method {
	case distro.Manual:
		return Result{}, &NotAllowedError{Message: r.Message}
	case distro.Systemd:
		return runJob(ctx, root, r.Units, verb)
	case distro.Reload:
		if kind != runtime.Docker {
			return Result{}, notBegun("%s cannot reload its configuration (SIGHUP ends containerd); set its restart mode to %q", kind, distro.Systemd)
		}
		if verb != Reload {
			return Result{}, &NotAllowedError{Message: "the change requires a restart, but the restart mode is a reload; restart Docker: " + byHand(r.Units)}
		}
	default:
		return Result{}, notBegun("unknown restart mode %q; use %q, %q or %q", r.Method, distro.Systemd, distro.Reload, distro.Manual)
	}
	passage, err := runJob(ctx, root, r.Units, Reload)
	if err == nil || ctx.Err() != nil || !errors.Is(err, errNotThere) {
		return passage, err
	}
	pid, second := hangUp(root)
	if second != nil {
		return Result{}, notBegun("%w; and by a signal: %w", err, second)
	}
	return Result{Verb: Reload, PID: pid}, nil
}

func notBegun(format string, args ...any) error {
	return &NotBegunError{fmt.Errorf(format, args...)}
}

// errNotThere is wrapped if there is no bus, or none of the units runs.
var errNotThere = errors.New("not available")

// byHand returns the command for a manual restart.
func byHand(units []string) string {
	if len(units) == 0 {
		units = []string{"docker.service"}
	}
	return "systemctl restart " + strings.Join(units, " or ")
}
