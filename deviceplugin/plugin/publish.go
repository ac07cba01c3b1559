package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/kubelet"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/deviceplugin/unallocatable"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// Reasons why the plugin is not Ready, besides those of package driver.
const (
	reasonStarting  gpu.Reason = "Starting"
	reasonNoGPU     gpu.Reason = "NoGPU"
	reasonNoKubelet gpu.Reason = "NoKubelet"
	reasonNoHealthy gpu.Reason = "NoHealthyDevice"
	reasonUnhealthy gpu.Reason = "UnhealthyDevices"
	reasonLeftOut   gpu.Reason = "DevicesLeftOut"
	reasonNothing   gpu.Reason = "NothingAdvertised" // according to the configuration
	// The container must be created again.
	reasonOutdated gpu.Reason = "InjectionOutdated" // the injected devices are outdated
	reasonMissing  gpu.Reason = "InjectionMissing"  // nothing was injected
	reasonFolder   gpu.Reason = "KubeletFolderReplaced"
	reasonFailed   gpu.Reason = "PluginFailed"
)

// update applies a change and publishes the result, to the kubelet first, since a
// broken GPU may be about to be allocated.
func (p *Plugin) update(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	p.releaseGPUs()
	p.rebuildPlan()
	if p.onView != nil {
		p.reportView()
		p.journal.Plan(p.plan)
		return
	}
	// Before the first snapshot, remembered devices are not sent as a list.
	if p.snapshot.Driver.Version != "" {
		p.updateServices(p.plan.Resources)
	}
	p.meters.SetPlan(p.plan)
	p.journal.Plan(p.plan)
	p.storeState()
}

// rebuildPlan computes the plan. p.mu is held.
func (p *Plugin) rebuildPlan() {
	p.plan = plan.Compute(p.settings, p.snapshot, p.health)
	p.applyNaming()
	p.markUnallocatable(p.plan.Resources)
}

// recordEnd records why the plugin ends. The first reason counts.
func (p *Plugin) recordEnd(why ending) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended == nil {
		p.ended = &why
	}
	p.storeState()
}

// failureReason returns the reason why the plugin cannot continue.
func failureReason(err error) gpu.Reason {
	switch {
	case errors.Is(err, kubelet.ErrDirectory):
		return reasonFolder
	case errors.Is(err, kubelet.ErrTimeout):
		return reasonNoKubelet
	}
	return reasonFailed
}

// storeState publishes the state for other programs and for the next process. p.mu is
// held.
func (p *Plugin) storeState() {
	s := p.state()
	p.updateMetrics(s)
	if len(p.plan.Resources) == 0 && p.health.Doubt().Reason != "" {
		return // keep the unreadable file: it alone records the doubt
	}
	p.enqueueState(s)
}

// updateMetrics sets the metrics of a state.
func (p *Plugin) updateMetrics(s nodestate.State) {
	registered := map[string]bool{}
	for _, r := range p.plan.Resources {
		service, known := p.services[r.Name]
		registered[r.Name] = known && service.kubelet.Registered
	}
	p.meters.SetState(s.Phase, s.Reason, registered)
	p.meters.SetConfigRefused(p.refused != nil && !errors.Is(p.refused, ErrNotChosen))
}

// enqueueState hands a state to the writer: a slow disk must not delay the kubelet.
// p.mu is held.
func (p *Plugin) enqueueState(s nodestate.State) {
	p.pendingState = s
	select {
	case p.dirty <- struct{}{}:
	default:
	}
}

// writeRetry is the delay before a failed write of the state is repeated: no event
// signals that a disk has room again.
const writeRetry = 10 * time.Second

// writeStates writes the latest state whenever there is a new one.
func (p *Plugin) writeStates(ctx context.Context) error {
	for {
		var again <-chan time.Time
		if p.writeErr != "" {
			again = time.After(writeRetry)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-again:
			p.flush()
		case <-p.dirty:
			p.flushLists(ctx)
			p.flush()
		}
	}
}

// flushLists waits until the lists were sent to the kubelet, but no longer than that
// usually takes. The remaining work is less urgent.
func (p *Plugin) flushLists(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
	defer cancel()
	p.mu.Lock()
	services := slices.Collect(maps.Values(p.services))
	p.mu.Unlock()
	for _, s := range services {
		s.server.Flush(ctx)
	}
}

// flush writes the state if it is not written yet. It is called by one goroutine at a
// time.
func (p *Plugin) flush() {
	p.mu.Lock()
	s := p.pendingState
	p.mu.Unlock()
	if s.DevicePlugin == nil {
		return // no state yet
	}
	info := *s.DevicePlugin
	info.Labels = p.labels.Publish(p.labelNode())
	s.DevicePlugin = &info
	if reflect.DeepEqual(s, p.written) {
		return
	}
	dir := p.stateDir(nodestate.DevicePlugin)
	if err := nodestate.Write(dir, s); err != nil {
		if p.writeErr != err.Error() {
			p.writeErr = err.Error()
			p.cfg.Log.Error("the state cannot be written; until it can be, other programs know nothing of the GPUs, and after a restart every GPU counts as unhealthy", "path", dir, "message", err.Error())
		}
		p.written = nodestate.State{} // the earlier file is void
		return
	}
	p.written, p.writeErr = s, ""
}

// state returns the current state.
func (p *Plugin) state() nodestate.State {
	registered, _ := p.registered()
	info := &nodestate.DevicePluginInfo{KubeletSocket: p.cfg.KubeletSocket, Registered: registered, Faults: p.health.Faults(), IgnoredKeys: p.ignored}
	for _, r := range p.plan.Resources {
		resource := nodestate.Resource{Name: r.Name}
		for d := range r.Parts() {
			one := nodestate.Device{ID: string(d.UUID()), GPU: d.UUID(), Replicas: d.Replicas, Health: nodestate.Healthy}
			if d.NUMANode >= 0 {
				one.NUMANode = &d.NUMANode
			}
			if m := d.MIG; m.UUID != "" {
				one.MIG = &nodestate.MIG{Parent: d.GPU, Index: m.Index, Profile: m.Profile, GPUInstance: m.GPUInstance, ComputeInstance: m.ComputeInstance}
			}
			if !d.Healthy() {
				one.Health, one.Reason, one.Message, one.Since = nodestate.Unhealthy, d.Fault.Reason, d.Fault.Message, d.Since.UTC()
			}
			resource.Devices = append(resource.Devices, one)
		}
		info.Resources = append(info.Resources, resource)
	}
	for _, l := range p.plan.LeftOut {
		info.Unallocatable = append(info.Unallocatable, nodestate.UnallocatableDevice{GPU: l.UUID(), Reason: l.Reason, Message: l.Message})
	}
	s := nodestate.State{Component: nodestate.DevicePlugin, BootID: p.boot, DevicePlugin: info}
	if d := p.snapshot.Driver; d.Version != "" {
		s.Driver = &nodestate.DriverInfo{Root: p.root, Version: d.Version, CUDAVersion: d.CUDAVersion, Simulated: d.Simulated}
	} else if v := p.health.DriverVersion(); v != "" {
		s.Driver = &nodestate.DriverInfo{Root: p.root, Version: v}
	}
	s.Phase, s.Reason, s.Message = p.phase()
	return s
}

// phase summarises the state. The worst problem comes first.
func (p *Plugin) phase() (nodestate.Phase, gpu.Reason, string) {
	devices, healthy, hindered, unserved := 0, 0, 0, gpu.Fault{}
	byMPS := 0
	for _, r := range p.plan.Resources {
		for _, d := range r.Devices {
			devices++
			switch {
			case d.Healthy():
				healthy++
			case d.Fault.Reason == unallocatable.ReasonCDI:
				hindered++
			case d.Fault.Reason == unallocatable.ReasonMPS:
				byMPS++
				unserved = d.Fault
			}
		}
	}
	registered, waiting := p.registered()
	left := slices.IndexFunc(p.plan.LeftOut, func(l plan.LeftOut) bool { return !l.AsConfigured() })
	switch {
	case p.ended != nil:
		return p.ended.phase, p.ended.reason, p.ended.message
	case p.refused != nil && !p.configured():
		why, message := p.refusal()
		if why == reasonUnchosen {
			return nodestate.Waiting, why, message
		}
		return nodestate.Failed, why, message
	case p.absent != nil:
		return nodestate.Waiting, p.absent.reason, p.absent.message
	case p.snapshot.Driver.Version == "":
		return nodestate.Waiting, reasonStarting, "the driver has not been read yet"
	case devices == 0 && left >= 0:
		return nodestate.Failed, p.plan.LeftOut[left].Reason, leftText(p.plan.LeftOut[left])
	case devices == 0 && len(p.plan.LeftOut) > 0 && p.refused != nil: // the refused one may fix it
		why, message := p.refusal()
		return nodestate.Degraded, why, message
	case devices == 0 && len(p.plan.LeftOut) > 0:
		return nodestate.Ready, reasonNothing, "the configuration leaves every GPU of this node out"
	case devices == 0:
		return nodestate.Ready, reasonNoGPU, "the driver shows no GPU on this node"
	case !registered:
		return nodestate.Waiting, reasonNoKubelet, "waiting for " + waiting
	case healthy == 0 && hindered == devices:
		return nodestate.Failed, unallocatable.ReasonCDI, p.cdi.Text()
	case healthy == 0 && byMPS == devices:
		return nodestate.Waiting, unallocatable.ReasonMPS, unserved.Message
	case healthy == 0:
		return nodestate.Failed, reasonNoHealthy, fmt.Sprintf("none of %d devices is healthy", devices)
	case p.refused != nil:
		why, message := p.refusal()
		return nodestate.Degraded, why, message
	case p.cdi.Problem() != "" || hindered > 0:
		return nodestate.Degraded, unallocatable.ReasonCDI, p.cdi.Text()
	case healthy < devices:
		return nodestate.Degraded, reasonUnhealthy, fmt.Sprintf("%d of %d devices are unhealthy", devices-healthy, devices)
	case left >= 0:
		return nodestate.Degraded, reasonLeftOut, leftText(p.plan.LeftOut[left])
	}
	return nodestate.Ready, "", ""
}

func leftText(l plan.LeftOut) string {
	name := fmt.Sprintf("GPU %d", l.Index)
	if l.MIG != (gpu.MIGDevice{}) {
		name = fmt.Sprintf("MIG device %d:%d", l.Index, l.MIG.Index)
	}
	return fmt.Sprintf("%s is left out: %s: %s", name, l.Reason, l.Message)
}
