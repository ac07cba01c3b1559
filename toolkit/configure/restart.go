// How a container runtime loads its new configuration, in the way that its distribution provides:
// systemd restarts the unit, Docker reloads, or a person has to do it. No process is killed, and only
// dockerd gets a signal: SIGHUP ends containerd.

package configure

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

// Restarted describes a restart or reload that was done.
type Restarted struct {
	Verb string        // "restart" or "reload"
	Unit string        // "docker.service"; "" if a signal was sent to dockerd
	PID  int           // the host's process ID of dockerd if a signal was sent to it
	Took time.Duration // from the request to the end of systemd's job
}

// The ways in which a runtime loads its configuration.
const (
	verbRestart = "restart"
	verbReload  = "reload"
)

func (p Restarted) String() string {
	if p.Unit == "" {
		return fmt.Sprintf("dockerd (process %d) was told to reload its configuration", p.PID)
	}
	return fmt.Sprintf("%s: %s done in %s", p.Unit, p.Verb, p.Took.Round(time.Millisecond))
}

// notAllowedError is the error of a runtime that must not be restarted here. Its message names the
// manual steps.
type notAllowedError struct{ Message string }

func (c *notAllowedError) Error() string {
	return "the container runtime has to be restarted by hand: " + c.Message
}

// notBegunError is the error of a restart that was not begun, because nobody could be asked for it
// or the request was refused: the runtime runs on as before. Its message names the step that
// failed, and the next action.
type notBegunError struct{ Err error }

func (e *notBegunError) Error() string { return e.Err.Error() }
func (e *notBegunError) Unwrap() error { return e.Err }

// isNotBegun reports whether an error shows that the runtime was left alone.
func isNotBegun(err error) bool {
	_, unasked := errors.AsType[*notBegunError](err)
	_, notAllowed := errors.AsType[*notAllowedError](err)
	return unasked || notAllowed
}

// checkUnits returns the error with which Restart would not begin, as far as that shows without a
// request: nobody can be asked, or there is nothing to restart.
func checkUnits(ctx context.Context, root *host.Root, r distro.Restart) error {
	if r.Method != distro.Systemd {
		return nil // Docker is also told by a signal
	}
	s, _, err := findUnit(ctx, root, r.Units, verbRestart)
	if err == nil {
		err = s.conn.Close()
	}
	return err
}

// Restart makes a runtime load its configuration. With reload set it reloads a runtime that
// supports it, and otherwise restarts it. It returns when systemd reports the end of the
// job. After a reload, and for units that do not report when they are ready, the runtime
// may not have loaded the configuration by then: query the runtime. All waiting ends with
// ctx, which needs a deadline; systemd's job then continues.
//
// If no unit is active, Restart restarts a failed one: it is meant to run, and may have failed
// because of the configuration that was just restored. It does not start a stopped one.
func Restart(ctx context.Context, root *host.Root, kind runtime.Kind, r distro.Restart, reload bool) (Restarted, error) {
	verb := verbRestart
	if reload && kind == runtime.Docker {
		verb = verbReload
	}
	switch r.Method {
	case distro.Manual:
		return Restarted{}, &notAllowedError{Message: r.Message}
	case distro.Systemd:
		return runJob(ctx, root, r.Units, verb)
	case distro.Reload:
		if kind != runtime.Docker {
			return Restarted{}, newNotBegun("%s cannot reload its configuration (SIGHUP ends containerd); set its restart mode to %q", kind, distro.Systemd)
		}
		if verb != verbReload {
			return Restarted{}, &notAllowedError{Message: "the change requires a restart, but the restart mode is a reload; restart Docker: " + byHand(r.Units)}
		}
	default:
		return Restarted{}, newNotBegun("unknown restart mode %q; use %q, %q or %q", r.Method, distro.Systemd, distro.Reload, distro.Manual)
	}
	passage, err := runJob(ctx, root, r.Units, verbReload)
	if err == nil || ctx.Err() != nil || !errors.Is(err, errNotThere) {
		return passage, err
	}
	pid, second := hangUp(root)
	if second != nil {
		return Restarted{}, newNotBegun("%w; and by a signal: %w", err, second)
	}
	return Restarted{Verb: verbReload, PID: pid}, nil
}

func newNotBegun(format string, args ...any) error {
	return &notBegunError{fmt.Errorf(format, args...)}
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
