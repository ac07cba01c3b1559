// Package door makes a container runtime take its new configuration, through the
// door that its distribution has for that and no other: systemd restarts the unit,
// Docker is told to reload, or nobody may and a person has to do it. Nothing is ever
// killed, and no signal goes to anything but dockerd: one more SIGHUP ends containerd.
package door

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/distro"
	"github.com/gpuready/gpuready/toolkit/engine"
)

// Passage is what was done.
type Passage struct {
	Verb Verb
	Unit string        // "docker.service"; "" if dockerd was told by a signal
	PID  int           // the host's, of dockerd if it was told by a signal
	Took time.Duration // from asking to the end of systemd's job
}

// Verb is what is done to a runtime.
type Verb string

// The verbs.
const (
	Restart Verb = "restart"
	Reload  Verb = "reload"
)

func (p Passage) String() string {
	if p.Unit == "" {
		return fmt.Sprintf("dockerd (process %d) was told to reload its configuration", p.PID)
	}
	return fmt.Sprintf("%s: %s done in %s", p.Unit, p.Verb, p.Took.Round(time.Millisecond))
}

// Closed is the error where nobody here may do it: what a person has to do is in it.
type Closed struct{ Message string }

func (c *Closed) Error() string {
	return "the container runtime is not restarted by us: " + c.Message
}

// Open makes a runtime take its configuration: it is reloaded if that is enough, as
// the caller knows, and the runtime is one that can be, else restarted. It returns
// when systemd says that it is done, which for a reload, and for units that do not
// tell when they are ready, is before the runtime has taken it: ask the runtime. All
// waiting ends with ctx, which needs a deadline; systemd's job goes on then.
//
// A unit that failed is restarted as well, if none is active: it is one that somebody
// wants to run, and may have failed by the configuration that was just put back. One
// that was stopped is not started.
func Open(ctx context.Context, root *host.Root, kind engine.Kind, r distro.Restart, reload bool) (Passage, error) {
	verb := Restart
	if reload && kind == engine.Docker {
		verb = Reload
	}
	switch r.Door {
	case distro.Nobody:
		return Passage{}, &Closed{Message: r.Message}
	case distro.Systemd:
		return throughSystemd(ctx, root, r.Units, verb)
	case distro.Reload:
		if kind != engine.Docker {
			return Passage{}, fmt.Errorf("%s cannot be told to reload its configuration (SIGHUP ends containerd); set the way to restart it to %q", kind, distro.Systemd)
		}
		if verb != Reload {
			return Passage{}, &Closed{Message: "what changed is taken by a restart only, and the way that is set is a reload; restart Docker: " + byHand(r.Units)}
		}
	default:
		return Passage{}, fmt.Errorf("there is no way to restart a runtime that is called %q; there are %q, %q and %q", r.Door, distro.Systemd, distro.Reload, distro.Nobody)
	}
	passage, err := throughSystemd(ctx, root, r.Units, Reload)
	if err == nil || ctx.Err() != nil || !errors.Is(err, errNotThere) {
		return passage, err
	}
	pid, second := hangUp(root)
	if second != nil {
		return Passage{}, fmt.Errorf("%w; and by its process: %w", err, second)
	}
	return Passage{Verb: Reload, PID: pid}, nil
}

// errNotThere is wrapped where there is no bus, or none of the units runs.
var errNotThere = errors.New("not there")

// byHand is the command for a person.
func byHand(units []string) string {
	if len(units) == 0 {
		units = []string{"docker.service"}
	}
	return "systemctl restart " + strings.Join(units, " or ")
}
