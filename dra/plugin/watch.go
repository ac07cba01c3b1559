package plugin

import (
	"context"
	"errors"
	"time"

	"github.com/gpuready/gpuready/dra/inventory"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// DefaultSilence limits the absence of the device plugin before its GPUs get a taint: an update or a
// restart of its container takes a few seconds. Without it nobody watches the GPUs' health.
const DefaultSilence = 15 * time.Second

// watchState delivers the inventory at once and after each change of the device plugin's state.
// The state is watched by inotify, and its writer by the FIFO that it holds open.
func (p *Plugin) watchState(ctx context.Context) error {
	type reading struct {
		state nodestate.State
		err   error
	}
	readings := make(chan reading)
	ended := make(chan error, 1)
	go func() {
		ended <- nodestate.WatchHeld(ctx, p.stateDir(nodestate.DevicePlugin), p.boot, func(s nodestate.State, err error) {
			select {
			case readings <- reading{s, err}:
			case <-ctx.Done():
			}
		})
	}()
	var last nodestate.State      // that could be read
	var problem inventory.Problem // since then
	var deadline <-chan time.Time // of a silence that is not published yet
	overdue := false              // it is published
	for {
		select {
		case err := <-ended:
			return err
		case r := <-readings:
			if r.err == nil {
				last, problem, deadline, overdue = r.state, inventory.Problem{}, nil, false
				break
			}
			if errors.Is(r.err, nodestate.ErrUnheld) && r.state.DevicePlugin != nil {
				last = r.state // its writer's last words, or those of one that has not marked itself yet
			}
			if next := stateProblem(r.err, time.Now()); next.Reason != problem.Reason {
				problem = next
			}
			if last.DevicePlugin != nil && !overdue {
				if deadline == nil {
					deadline = time.After(p.cfg.Silence)
				}
				continue
			}
		case <-deadline:
			deadline, overdue = nil, true
		}
		p.setInventory(inventory.New(last, problem, p.cfg.PCIeRoot))
	}
}

// stateProblem returns why the device plugin's state cannot be relied on.
func stateProblem(err error, now time.Time) inventory.Problem {
	p := inventory.Problem{Message: err.Error(), Since: now, Action: "see that gpu-device-plugin runs on this node, and its log"}
	switch {
	case errors.Is(err, nodestate.ErrUnheld):
		p.Reason = inventory.ReasonSilent
	case nodestate.IsAbsent(err):
		p.Reason = inventory.ReasonUnknown
	default:
		p.Reason = inventory.ReasonInvalid
	}
	return p
}
