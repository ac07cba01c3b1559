package mps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// applyPlan applies a plan and logs the devices that MPS cannot share.
func (d *daemon) applyPlan(p plan.Plan) {
	var left []plan.LeftOut
	for _, l := range p.LeftOut {
		if l.Reason == plan.ReasonMPS {
			left = append(left, l)
		}
	}
	d.mu.Lock()
	same := d.absent == gpu.Fault{} && slices.Equal(left, d.leftOut)
	d.absent, d.leftOut = gpu.Fault{}, left
	d.mu.Unlock()
	if same {
		return
	}
	for _, l := range left {
		d.cfg.Log.Warn("device is not shared", "gpu", string(l.GPU), "index", l.Index, "reason", string(l.Reason), "message", l.Message)
	}
	notify(d.dirty)
}

// report records the status of a control daemon.
func (d *daemon) report(r nodestate.MPSResource) {
	d.mu.Lock()
	d.resources[r.Name] = r
	d.mu.Unlock()
	d.meter.report(r)
	notify(d.dirty)
}

// removeExcept removes the resources that are not wanted, since they are no longer
// shared.
func (d *daemon) removeExcept(wanted map[string]Spec) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name := range d.resources {
		if _, there := wanted[name]; !there {
			delete(d.resources, name)
			d.meter.remove(name)
			notify(d.dirty)
		}
	}
}

// Ready returns why the daemon is not serving, or nil if it is or has nothing to serve.
func (d *daemon) Ready() error {
	s := d.state()
	if s.Phase == nodestate.Ready || s.Phase == nodestate.Degraded {
		return nil
	}
	return fmt.Errorf("%s: %s", s.Reason, s.Message)
}

func (d *daemon) writeStates(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.dirty:
			d.write()
		case <-d.retryWrite():
			d.write()
		}
	}
}

// retryWrite returns a channel for the next attempt to write the state, or nil if it is
// written. No event signals that a disk has room again.
func (d *daemon) retryWrite() <-chan time.Time {
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.writeErr == "" {
		return nil
	}
	return time.After(lastPause)
}

// claimedBefore returns the GPUs that an earlier process has not restored.
func (d *daemon) claimedBefore() []gpu.UUID {
	s, err := nodestate.ReadBoot(d.stateDir(), d.boot)
	if err != nil || s.MPS == nil {
		return nil // of another boot, so the mode is gone
	}
	return s.MPS.Claimed
}

func (d *daemon) stateDir() string {
	return filepath.Join("/", d.cfg.HostRoot, d.cfg.StateDir, string(nodestate.MPS))
}

// write writes the state for the device plugin and for the next process.
func (d *daemon) write() {
	d.writing.Lock()
	defer d.writing.Unlock()
	dir := d.stateDir()
	err := nodestate.Write(dir, d.state())
	if err == nil && d.hold == nil {
		// From here on the state belongs to this process.
		if d.hold, err = nodestate.Hold(dir); err == nil {
			err = nodestate.Write(dir, d.state())
		}
	}
	switch {
	case err == nil:
		d.writeErr = ""
	case d.writeErr != err.Error():
		d.writeErr = err.Error()
		d.cfg.Log.Error("the state cannot be written; the device plugin does not know what is served", "path", dir, "message", err.Error())
	}
}

// state returns the current state.
func (d *daemon) state() nodestate.State {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := nodestate.State{Component: nodestate.MPS, BootID: d.boot, Phase: nodestate.Ready, MPS: &nodestate.MPSInfo{Claimed: d.claims.all()}}
	ready := 0
	var why nodestate.MPSResource
	for _, name := range slices.Sorted(maps.Keys(d.resources)) {
		r := d.resources[name]
		if d.ended != "" {
			r = nodestate.MPSResource{Name: name, Reason: ReasonEnded, Message: d.ended}
		}
		s.MPS.Resources = append(s.MPS.Resources, r)
		if r.Ready {
			ready++
		}
		if r.Message != "" && why.Message == "" {
			why = r
		}
	}
	switch {
	case d.ended != "":
		s.Phase, s.Reason, s.Message = nodestate.Waiting, ReasonEnded, d.ended
	case d.settings == nil && d.refused != nil && !errors.Is(d.refused, config.ErrNotChosen):
		s.Phase, s.Reason, s.Message = nodestate.Failed, reasonRefused, oneLine(d.refused)
	case d.settings == nil:
		s.Phase, s.Reason, s.Message = nodestate.Waiting, reasonUnchosen, "waiting for a configuration that can be served"
		if d.refused != nil {
			s.Message = oneLine(d.refused)
		}
	case !sharesByMPS(d.settings):
		s.Reason, s.Message = reasonNothing, "the configuration shares nothing by MPS"
	case d.absent.Reason == reasonNoGPU:
		s.Reason, s.Message = d.absent.Reason, d.absent.Message
	case d.absent != gpu.Fault{} && ready > 0:
		s.Phase, s.Reason, s.Message = nodestate.Degraded, d.absent.Reason, d.absent.Message
	case d.absent != gpu.Fault{}:
		s.Phase, s.Reason, s.Message = nodestate.Waiting, d.absent.Reason, d.absent.Message
	case len(d.resources) == 0 && len(d.leftOut) > 0:
		s.Phase, s.Reason, s.Message = nodestate.Failed, d.leftOut[0].Reason, fmt.Sprintf("GPU %d: %s", d.leftOut[0].Index, d.leftOut[0].Message)
	case len(d.resources) == 0:
		s.Reason, s.Message = reasonNothing, "the configuration shares nothing by MPS that is on this node"
	case ready == 0:
		s.Phase, s.Reason, s.Message = nodestate.Waiting, reasonWaiting, why.Name+": "+why.Message
	case why.Message != "":
		s.Phase, s.Reason, s.Message = nodestate.Degraded, reasonWaiting, why.Name+": "+why.Message
	case len(d.leftOut) > 0:
		s.Phase, s.Reason, s.Message = nodestate.Degraded, d.leftOut[0].Reason, fmt.Sprintf("GPU %d: %s", d.leftOut[0].Index, d.leftOut[0].Message)
	}
	if d.refused != nil && d.settings != nil && s.Phase == nodestate.Ready {
		s.Phase, s.Reason, s.Message = nodestate.Degraded, reasonRefused, oneLine(d.refused)
	}
	return s
}

// oneLine returns an error with several lines, one for each mistake, as one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
