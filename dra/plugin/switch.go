package plugin

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/dra/claim"
	"github.com/gpuready/gpuready/dra/inventory"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// The device plugin's state says who offers the GPUs. When the device plugin does, this driver withdraws
// them from its ResourceSlices, and releases each when no claim can hold it any more:
//
//	slices withdrawn in the API -> graceTime, for claims that are allocated already -> each device
//	that no claim holds -> the others, as their claims end
//
// Its own state says what it has released, and the device plugin offers no more than that.

const (
	// graceTime is the time between the withdrawal and the first release. A claim that the scheduler
	// allocated before is prepared if the kubelet asks for that in this time.
	graceTime = 5 * time.Second
	// The time between two looks at the API or the kubelet, where no event comes.
	firstLook, lastLook = 200 * time.Millisecond, 2 * time.Second
	listTimeout         = 5 * time.Second
	followRetry         = time.Second
)

const reasonStarting gpu.Reason = "Starting"

// follow records who offers the GPUs. It reports false if it must be tried again before anything else.
func (p *Plugin) follow(ctx context.Context, inv inventory.Inventory) bool {
	err := p.preparer.Follow(ctx, inv, func() bool {
		s, err := nodestate.ReadBoot(p.stateDir(nodestate.DevicePlugin), p.boot)
		return err != nil || s.DevicePlugin == nil || s.DevicePlugin.SwitchID == inv.SwitchID
	})
	if err != nil && ctx.Err() == nil {
		p.metrics.publishErrors.Inc()
		p.cfg.Log.Error("it cannot be recorded who offers the GPUs; nothing is offered anew", "message", err.Error())
	}
	return err == nil
}

// markAlive writes the first state, and holds it until the process ends.
func (p *Plugin) markAlive(ctx context.Context) (err error) {
	dir := p.stateDir(nodestate.DRADriver)
	if err := p.writeState(ctx, withdrawal{}); err != nil {
		return err
	}
	if p.hold, err = nodestate.Hold(dir); err != nil {
		return fmt.Errorf("mark this process as alive: %w; next: see that %s is mounted", err, dir)
	}
	p.written = nodestate.State{}
	return p.writeState(ctx, withdrawal{}) // readers look for the holder when the state changes
}

// wakeState makes followSwitch take the next step and write the state.
func (p *Plugin) wakeState() {
	select {
	case p.stateDue <- struct{}{}:
	default:
	}
}

// withdrawal describes the progress of the release of the devices to the device plugin.
type withdrawal struct {
	switchID string // of the device plugin's state
	begun    bool
	since    time.Time // the slices are withdrawn; zero: they are not
	why      string    // why they are not
	released bool      // graceTime is over
	failed   error     // of the last release
}

// followSwitch releases devices to the device plugin, and writes the state, until ctx ends.
func (p *Plugin) followSwitch(ctx context.Context) error {
	var w withdrawal
	var fault nodestate.WriteFault
	var timer <-chan time.Time
	pause := firstLook
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.stateDue:
			pause = firstLook
		case <-timer:
			pause = min(2*pause, lastLook)
		}
		again := p.step(ctx, &w, pause)
		err := p.writeState(ctx, w)
		if fault.Record(err) && err != nil {
			p.cfg.Log.Error("the state cannot be written; the device plugin offers no further device until it can be", "reason", string(nodestate.ReasonNotWritable), "message", err.Error())
		}
		if delay := fault.Delay(); delay > 0 && (again == 0 || delay < again) {
			again = delay
		}
		if timer = nil; again > 0 {
			timer = time.After(again)
		}
	}
}

// step takes the next step of a withdrawal, and returns when the one after it is due; 0: with the next
// event. pause is the time until another look at what sends no event.
func (p *Plugin) step(ctx context.Context, w *withdrawal, pause time.Duration) time.Duration {
	inv := p.inventory()
	if inv.Serve != nodestate.ServePlugin {
		*w = withdrawal{}
		return 0
	}
	if !w.begun || w.switchID != inv.SwitchID {
		*w = withdrawal{switchID: inv.SwitchID, begun: true}
	}
	if w.since.IsZero() {
		if err := p.checkWithdrawn(ctx); err != nil {
			w.why = err.Error()
			return pause
		}
		w.since, w.why = time.Now(), ""
	}
	if left := graceTime - time.Since(w.since); left > 0 && !w.released {
		return left
	}
	w.released = true
	again, err := p.preparer.Release(ctx)
	w.failed = err
	if again {
		return pause
	}
	return 0
}

// checkWithdrawn returns nil if the API server has no device of this node in ResourceSlices.
func (p *Plugin) checkWithdrawn(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	list, err := p.cfg.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + inventory.Driver + "," + resourceapi.ResourceSliceSelectorNodeName + "=" + p.cfg.NodeName})
	if err != nil {
		return fmt.Errorf("the API server does not say whether the ResourceSlices are withdrawn: %w", err)
	}
	for _, s := range list.Items {
		if s.Spec.Driver == inventory.Driver && s.Spec.Pool.Name == p.cfg.NodeName && len(s.Spec.Devices) > 0 {
			return errors.New("ResourceSlice " + s.Name + " is not withdrawn yet")
		}
	}
	return nil
}

// writeState writes this driver's state: who offers the GPUs, which devices it keeps, and
// which claims hold nothing.
func (p *Plugin) writeState(ctx context.Context, w withdrawal) error {
	inv := p.inventory()
	s := nodestate.State{Component: nodestate.DRADriver, BootID: p.boot, Phase: nodestate.Ready}
	if err := p.Ready(); err != nil {
		s.Phase, s.Reason, s.Message = nodestate.Waiting, reasonStarting, err.Error()
		if inv.Why.Reason != "" && inv.Why.Reason != inventory.ReasonServedByPlugin {
			s.Reason = inv.Why.Reason
		}
	}
	return p.preparer.View(ctx, func(record *claim.Checkpoint, holder func(claim.KeptDevice) string) error {
		info := &nodestate.DRADriverInfo{Serve: record.Serve, SwitchID: record.SwitchID, Devices: len(inv.Devices), AdminAccess: record.AdminAccess()}
		for _, k := range record.Kept {
			if record.Serve != nodestate.ServePlugin {
				break
			}
			info.Kept = append(info.Kept, w.describeKept(k, holder(k)))
		}
		s.DRADriver = info
		p.metrics.setKept(info.Kept)
		if reflect.DeepEqual(s, p.written) && p.hold != nil {
			return nil
		}
		err := nodestate.Write(p.stateDir(nodestate.DRADriver), s)
		if p.written = s; err != nil {
			p.written = nodestate.State{}
		}
		return err
	})
}

// describeKept describes a device that is not released. by is the claim that holds it, by the record.
func (w withdrawal) describeKept(k claim.KeptDevice, by string) nodestate.Withheld {
	kept := nodestate.Withheld{GPU: k.UUID, Parent: k.Parent, Reason: claim.ReasonOnTheWay}
	var text []string
	switch {
	case by != "":
		kept.Reason = claim.ReasonHeldByClaim
		text = append(text, "held by "+by)
	case w.released:
		kept.Reason = claim.ReasonHeldByClaim
		text = append(text, "held by a claim, by the kubelet's account")
	case w.since.IsZero():
		text = append(text, "it is being withdrawn from the ResourceSlices")
	default:
		text = append(text, "a claim that was allocated before may still be prepared until "+w.since.Add(graceTime).UTC().Format(time.RFC3339))
	}
	if w.why != "" {
		text = append(text, w.why)
	}
	if w.failed != nil {
		text = append(text, w.failed.Error())
	}
	kept.Message = strings.Join(text, "; ")
	return kept
}
