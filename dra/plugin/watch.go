package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpuready/gpuready/dra/inventory"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// DefaultSilence limits how long the device plugin may be absent before its GPUs get a taint: nobody watches
// their health meanwhile. An update or a restart of its container takes a few seconds.
const DefaultSilence = 15 * time.Second

// watchState delivers the inventory at once and after each change of the device plugin's state.
// The state is watched by inotify, and its writer by the FIFO that it holds open. Nothing that can wait
// keeps it from publishing taints: an inventory is recorded beside.
func (p *Plugin) watchState(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
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
	view := stateView{silence: p.cfg.Silence}
	var retry <-chan time.Time   // when to make the inventory again after that has failed
	var wanted basis             // what the latest inventory was made of, or is to be made of
	var settled <-chan time.Time // when a GPU instance may come to count as somebody else's
	var pending *recording       // nil: no inventory is being recorded
	again := false               // the basis has changed meanwhile
	defer func() {
		cancel()
		if pending != nil {
			<-pending.done
		}
	}()
	for {
		select {
		case err := <-ended:
			return err
		case r := <-readings:
			if !view.apply(r) {
				p.publishTaints(view.lastWord())
				continue
			}
		case <-view.deadline:
			view.deadline, view.overdue = nil, true
		case <-retry:
		case <-settled:
			settled = nil
			if view.deadline != nil || retry != nil {
				continue // the inventory is made anew at its end
			}
		case ok := <-pending.ended():
			made := *pending
			pending = nil
			switch {
			case !ok:
				retry, again = time.After(followRetry), false
				continue
			case !again:
				if settled = nil; !made.until.IsZero() {
					settled = time.After(time.Until(made.until))
				}
				inv := made.inventory
				if view.deadline != nil {
					inv, _ = inv.WithTaintsOf(p.inventoryOf(view.lastWord(), p.own))
				}
				p.setInventory(inv)
				continue
			}
		}
		if view.deadline == nil { // otherwise it is a retry during an absence that may be over soon
			wanted = basis{view.last, view.problem}
		}
		p.publishTaints(wanted)
		if again = pending != nil; again {
			continue
		}
		inv, until, ok := p.makeInventory(wanted)
		if retry = nil; !ok {
			retry = time.After(followRetry)
			continue
		}
		pending = p.startRecording(ctx, inv, until)
	}
}

// reading is one reading of the device plugin's state.
type reading struct {
	state nodestate.State
	err   error
}

// stateView holds what can be relied on of the device plugin's state.
type stateView struct {
	silence  time.Duration
	last     nodestate.State   // the latest state to use: one that is held or, during a problem, maybe another
	problem  inventory.Problem // why the present state cannot be relied on; zero: it can
	deadline <-chan time.Time  // when the problem will have lasted for silence and is published
	overdue  bool              // that time has passed
}

// apply adds a reading, and reports whether the inventory may change with it at once.
func (v *stateView) apply(r reading) bool {
	if r.err == nil && isUnread(r.state) {
		r.err = fmt.Errorf("%w: %s: %s", errUnread, r.state.Reason, r.state.Message)
	}
	if r.err == nil || servesKubelet(r.state) {
		v.last, v.problem, v.deadline, v.overdue = r.state, inventory.Problem{}, nil, false
		return true
	}
	// The device plugin has ended, or does not hold its state yet, or has not read the GPUs: use what
	// it wrote. But a new process first writes its predecessor's GPUs, without the configuration's
	// effect on them: that is used only if nothing else is known.
	if r.state.DevicePlugin != nil && (v.last.DevicePlugin == nil || !isUnread(r.state)) {
		v.last = r.state
	}
	since := time.Now()
	if next := stateProblem(r.err, since); next.Reason == v.problem.Reason {
		since = v.problem.Since
	}
	v.problem = stateProblem(r.err, since)
	if v.last.DevicePlugin == nil || v.overdue {
		return true
	}
	if v.deadline == nil {
		v.deadline = time.After(v.silence)
	}
	return false
}

// lastWord returns what the device plugin wrote before it ended. During an absence that may be over soon, only its
// faults count.
func (v *stateView) lastWord() basis { return basis{v.last, inventory.Problem{}} }

// recording is an inventory that is being recorded, and published then.
type recording struct {
	inventory inventory.Inventory
	until     time.Time // see makeInventory
	done      chan bool // gets whether that succeeded
}

func (p *Plugin) startRecording(ctx context.Context, inv inventory.Inventory, until time.Time) *recording {
	r := &recording{inv, until, make(chan bool, 1)}
	go func() { r.done <- p.follow(ctx, inv) }()
	return r
}

// ended returns the channel of the result; nil: nothing is being recorded.
func (r *recording) ended() <-chan bool {
	if r == nil {
		return nil
	}
	return r.done
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
	p.own = own
	return p.inventoryOf(b, own), until, true
}

func (p *Plugin) inventoryOf(b basis, own []gpu.Placement) inventory.Inventory {
	inv := inventory.New(b.state, b.problem, p.cfg.PCIeRoot, own...)
	if b.state.DevicePlugin != nil {
		inv = inv.WithEvictions(p.cfg.Evict, b.state.DevicePlugin.Faults)
	}
	return inv
}

// publishTaints gives the devices that are offered the taints of a state. What else the state changes waits
// until it is recorded; a fault does not wait for a record that another call has locked, or that cannot be read.
func (p *Plugin) publishTaints(b basis) {
	if inv, changed := p.inventory().WithTaintsOf(p.inventoryOf(b, p.own)); changed {
		p.setInventory(inv)
	}
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
