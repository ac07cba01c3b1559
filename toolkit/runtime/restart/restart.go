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
			return Result{}, fmt.Errorf("%s cannot reload its configuration (SIGHUP ends containerd); set its restart mode to %q", kind, distro.Systemd)
		}
		if verb != Reload {
			return Result{}, &NotAllowedError{Message: "the change requires a restart, but the restart mode is a reload; restart Docker: " + byHand(r.Units)}
		}
	default:
		return Result{}, fmt.Errorf("unknown restart mode %q; use %q, %q or %q", r.Method, distro.Systemd, distro.Reload, distro.Manual)
	}
	passage, err := runJob(ctx, root, r.Units, Reload)
	if err == nil || ctx.Err() != nil || !errors.Is(err, errNotThere) {
		return passage, err
	}
	pid, second := hangUp(root)
	if second != nil {
		return Result{}, fmt.Errorf("%w; and by a signal: %w", err, second)
	}
	return Result{Verb: Reload, PID: pid}, nil
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
