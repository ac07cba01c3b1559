package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpuready/gpuready/dra/inventory"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// DefaultSilence limits how long the device plugin may be absent before its GPUs get a taint: nobody watches
// their health meanwhile. An update or a restart of its container takes a few seconds.
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
	var last nodestate.State      // the latest state to use: one that is held or, during a problem, maybe another
	var problem inventory.Problem // why the present state cannot be relied on; zero: it can
	var deadline <-chan time.Time // when the problem will have lasted for cfg.Silence and is published
	overdue := false              // that time has passed
	var retry <-chan time.Time    // when to call follow again after it has failed
	var failed basis              // what it has failed for
	var settled <-chan time.Time  // when a GPU instance may come to count as somebody else's
	for {
		select {
		case err := <-ended:
			return err
		case r := <-readings:
			if r.err == nil && isUnread(r.state) {
				r.err = fmt.Errorf("%w: %s: %s", errUnread, r.state.Reason, r.state.Message)
			}
			if r.err == nil || servesKubelet(r.state) {
				last, problem, deadline, overdue = r.state, inventory.Problem{}, nil, false
				break
			}
			// The device plugin has ended, or does not hold its state yet, or has not read the GPUs: use what
			// it wrote. But a new process first writes its predecessor's GPUs, without the configuration's
			// effect on them: that is used only if nothing else is known.
			if r.state.DevicePlugin != nil && (last.DevicePlugin == nil || !isUnread(r.state)) {
				last = r.state
			}
			since := time.Now()
			if next := stateProblem(r.err, since); next.Reason == problem.Reason {
				since = problem.Since
			}
			problem = stateProblem(r.err, since)
			if last.DevicePlugin != nil && !overdue {
				if deadline == nil {
					deadline = time.After(p.cfg.Silence)
				}
				continue
			}
		case <-deadline:
			deadline, overdue = nil, true
		case <-retry:
		case <-settled:
			settled = nil
			if deadline != nil || retry != nil {
				continue // the inventory is made anew at its end
			}
		}
		now := basis{last, problem}
		if deadline != nil { // a retry during an absence that may be over soon
			now = failed
		}
		inv, until, ok := p.makeInventory(now)
		if retry = nil; !ok || !p.follow(ctx, inv) {
			retry, failed = time.After(followRetry), now
			continue
		}
		if settled = nil; !until.IsZero() {
			settled = time.After(time.Until(until))
		}
		p.setInventory(inv)
	}
}

// makeInventory returns what the node offers by a state of the device plugin, and until when that holds; zero:
// until the state or the record changes. It reports false if it must be tried again.
func (p *Plugin) makeInventory(b basis) (inv inventory.Inventory, until time.Time, ok bool) {
	own, until, err := p.preparer.Store.Own(b.state)
	if err != nil {
		p.metrics.publishErrors.Inc()
		p.cfg.Log.Error("it is not known which partitions are this driver's; nothing is offered anew", "message", err.Error())
		return inv, until, false
	}
	inv = inventory.New(b.state, b.problem, p.cfg.PCIeRoot, own...)
	if b.state.DevicePlugin != nil {
		inv = inv.WithEvictions(p.cfg.Evict, b.state.DevicePlugin.Faults)
	}
	return inv, until, true
}

// basis holds what an inventory is made of.
type basis struct {
	state   nodestate.State
	problem inventory.Problem
}

// errUnread means that the device plugin runs, but has not read the GPUs: nobody watches them yet.
var errUnread = errors.New("gpu-device-plugin has not read the GPUs yet")

// isUnread reports whether a state has the GPUs that an earlier process of the device plugin recorded.
// Its phase is then Waiting, with one of these reasons of package deviceplugin/plugin.
func isUnread(s nodestate.State) bool {
	return s.Phase == nodestate.Waiting && (s.Reason == "Starting" || s.Reason == "ConfigNotChosen")
}

// servesKubelet reports whether the device plugin offers the GPUs to the kubelet itself. It is believed even
// of a device plugin that does not hold its state yet: no GPU may be offered twice.
func servesKubelet(s nodestate.State) bool {
	return s.DevicePlugin != nil && s.DevicePlugin.Serve != nodestate.ServeDRA
}

// stateProblem returns why the device plugin's state cannot be relied on.
func stateProblem(err error, now time.Time) inventory.Problem {
	p := inventory.Problem{Message: err.Error(), Since: now, Action: "see that gpu-device-plugin runs on this node, and its log"}
	switch {
	case errors.Is(err, nodestate.ErrUnheld), errors.Is(err, errUnread):
		p.Reason = inventory.ReasonSilent
	case nodestate.IsAbsent(err):
		p.Reason = inventory.ReasonUnknown
	default:
		p.Reason = inventory.ReasonInvalid
	}
	return p
}
