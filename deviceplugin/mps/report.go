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

// recordPlan records that a plan could be made, so that the driver has no fault, and which devices
// MPS cannot share. It logs those.
func (d *daemon) recordPlan(p plan.Plan) {
	var left []plan.LeftOut
	for _, l := range p.LeftOut {
		if l.Reason == plan.ReasonMPS {
			left = append(left, l)
		}
	}
	d.mu.Lock()
	same := d.driverFault == gpu.Fault{} && slices.Equal(left, d.leftOut)
	d.driverFault, d.leftOut = gpu.Fault{}, left
	d.mu.Unlock()
	if same {
		return
	}
	for _, l := range left {
		d.cfg.Log.Warn("device is not shared", "gpu", string(l.GPU), "index", l.Index, "reason", string(l.Reason), "message", l.Message)
	}
	notify(d.stateChanged)
}

// recordStatus records the status of a control daemon.
func (d *daemon) recordStatus(r nodestate.MPSResource) {
	d.mu.Lock()
	d.resources[r.Name] = r
	d.mu.Unlock()
	d.metrics.recordStatus(r)
	notify(d.stateChanged)
}

// removeResourcesExcept removes the resources that are not wanted, since they are no longer
// shared.
func (d *daemon) removeResourcesExcept(wanted map[string]Spec) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name := range d.resources {
		if _, isWanted := wanted[name]; !isWanted {
			delete(d.resources, name)
			d.metrics.removeResource(name)
			notify(d.stateChanged)
		}
	}
}

// Ready returns nil if at least one control daemon is ready, or none is needed. Otherwise it
// returns what is missing.
func (d *daemon) Ready() error {
	s := d.currentState()
	if s.Phase == nodestate.Ready || s.Phase == nodestate.Degraded {
		return nil
	}
	return fmt.Errorf("%s: %s", s.Reason, s.Message)
}

// writeStates writes the state file whenever the state has changed, until ctx ends.
func (d *daemon) writeStates(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.stateChanged:
			d.saveState()
		case <-d.retryWrite():
			d.saveState()
		}
	}
}

// retryWrite returns a channel for the next attempt to write the state, or nil if it is
// written. No event signals that a disk has room again.
func (d *daemon) retryWrite() <-chan time.Time {
	d.writeMu.Lock()
	defer d.writeMu.Unlock()
	if d.fault.Delay() == 0 {
		return nil
	}
	return time.After(d.fault.Delay())
}

// readClaimed returns the GPUs whose compute mode an earlier process has not restored. lost reports that there
// may be others: its state is empty, since the disk was full, or damaged.
func (d *daemon) readClaimed() (claimed []gpu.UUID, lost bool) {
	s, err := nodestate.ReadBoot(d.stateDir(), d.boot)
	switch {
	case nodestate.IsAbsent(err):
		return nil, false // there is none of this boot, and a boot resets the modes
	case err != nil || s.MPS == nil:
		return nil, true
	}
	return s.MPS.Claimed, s.MPS.ClaimsLost
}

func (d *daemon) stateDir() string {
	return filepath.Join("/", d.cfg.HostRoot, d.cfg.StateDir, string(nodestate.MPS))
}

// saveState writes the state file, for the device plugin and for the next process. It logs a
// failure, which writeStates retries.
func (d *daemon) saveState() {
	d.writeMu.Lock()
	defer d.writeMu.Unlock()
	dir := d.stateDir()
	err := nodestate.Write(dir, d.currentState())
	if err == nil && d.stateHold == nil {
		// Hold needs the folder, which the first write creates. While this process holds the state, it
		// counts as that of a running process; write it once more for those who read it before.
		if d.stateHold, err = nodestate.Hold(dir); err == nil {
			err = nodestate.Write(dir, d.currentState())
		}
	}
	d.metrics.recordUnwritten(err != nil)
	switch changed := d.fault.Record(err); {
	case changed && err != nil:
		d.cfg.Log.Error("the state cannot be written; the device plugin does not know what is served",
			"reason", string(nodestate.ReasonNotWritable), "path", dir, "message", err.Error())
	case changed:
		d.cfg.Log.Info("the state is written again", "path", dir)
	}
}

// currentState returns the content of the state file. The first case that applies decides the
// phase; a refused configuration then makes Ready Degraded.
func (d *daemon) currentState() nodestate.State {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := nodestate.State{Component: nodestate.MPS, BootID: d.boot, Phase: nodestate.Ready, MPS: &nodestate.MPSInfo{Claimed: d.claims.list(), ClaimsLost: d.claims.lost}}
	ready := 0
	var why nodestate.MPSResource // the first resource with a message
	for _, name := range slices.Sorted(maps.Keys(d.resources)) {
		r := d.resources[name]
		if d.endMessage != "" {
			r = nodestate.MPSResource{Name: name, Reason: ReasonEnded, Message: d.endMessage}
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
	case d.endMessage != "":
		s.Phase, s.Reason, s.Message = nodestate.Waiting, ReasonEnded, d.endMessage
	case d.settings == nil && d.refused != nil && !errors.Is(d.refused, config.ErrNotChosen):
		s.Phase, s.Reason, s.Message = nodestate.Failed, reasonRefused, joinLines(d.refused)
	case d.settings == nil:
		s.Phase, s.Reason, s.Message = nodestate.Waiting, reasonUnchosen, "waiting for a configuration that can be served"
		if d.refused != nil {
			s.Message = joinLines(d.refused)
		}
	case !sharesByMPS(d.settings):
		s.Reason, s.Message = reasonNothing, "the configuration shares nothing by MPS"
	case d.driverFault.Reason == reasonNoGPU:
		s.Reason, s.Message = d.driverFault.Reason, d.driverFault.Message
	case d.driverFault != gpu.Fault{} && ready > 0:
		s.Phase, s.Reason, s.Message = nodestate.Degraded, d.driverFault.Reason, d.driverFault.Message
	case d.driverFault != gpu.Fault{}:
		s.Phase, s.Reason, s.Message = nodestate.Waiting, d.driverFault.Reason, d.driverFault.Message
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
		s.Phase, s.Reason, s.Message = nodestate.Degraded, reasonRefused, joinLines(d.refused)
	}
	return s
}

// joinLines returns an error with several lines, one for each mistake, as one line.
func joinLines(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
