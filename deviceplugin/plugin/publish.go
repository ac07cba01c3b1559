package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/hindrance"
	"github.com/gpuready/gpuready/deviceplugin/kubelet"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// Why the plugin is not Ready, besides what package driver says.
const (
	reasonStarting  gpu.Reason = "Starting"
	reasonNoGPU     gpu.Reason = "NoGPU"
	reasonNoKubelet gpu.Reason = "NoKubelet"
	reasonNoHealthy gpu.Reason = "NoHealthyDevice"
	reasonUnhealthy gpu.Reason = "UnhealthyDevices"
	reasonLeftOut   gpu.Reason = "DevicesLeftOut"
	reasonNothing   gpu.Reason = "NothingAdvertised" // as it is configured
	// The container has to be created anew.
	reasonOutdated gpu.Reason = "InjectionOutdated" // to be given what there is now
	reasonMissing  gpu.Reason = "InjectionMissing"  // it was given nothing
	reasonFolder   gpu.Reason = "KubeletFolderReplaced"
	reasonFailed   gpu.Reason = "PluginFailed"
)

// update changes what is known and publishes what follows from it: to the
// kubelet first, since somebody may be about to be given a broken GPU.
func (p *Plugin) update(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	p.letGo()
	p.look()
	if p.seenBy != nil {
		p.tell()
		p.journal.Plan(p.plan)
		return
	}
	// Before the first snapshot of this process what it remembers is no list.
	if p.snapshot.Driver.Version != "" {
		p.serve(p.plan.Resources)
	}
	p.meters.Plan(p.plan)
	p.journal.Plan(p.plan)
	p.write()
}

// look makes the plan anew. p.mu is held.
func (p *Plugin) look() {
	p.plan = plan.Make(p.settings, p.snapshot, p.health)
	p.believe()
	p.hinder(p.plan.Resources)
}

// end leaves word of why the plugin ends: the first thing that is said counts.
func (p *Plugin) end(why ending) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended == nil {
		p.ended = &why
	}
	p.write()
}

// failure names in one word why the plugin cannot go on.
func failure(err error) gpu.Reason {
	switch {
	case errors.Is(err, kubelet.ErrDirectory):
		return reasonFolder
	case errors.Is(err, kubelet.ErrTimeout):
		return reasonNoKubelet
	}
	return reasonFailed
}

// write leaves the state for others, and for the plugin's own next life. p.mu
// is held.
func (p *Plugin) write() {
	s := p.state()
	p.show(s)
	if len(p.plan.Resources) == 0 && p.health.Doubt().Reason != "" {
		return // the file that cannot be read is all there is to keep the doubt alive
	}
	p.store(s)
}

// show makes metrics of a state.
func (p *Plugin) show(s nodestate.State) {
	registered := map[string]bool{}
	for _, r := range p.plan.Resources {
		service, known := p.services[r.Name]
		registered[r.Name] = known && service.kubelet.Registered
	}
	p.meters.State(s.Phase, s.Reason, registered)
	p.meters.Refused(p.refused != nil && !errors.Is(p.refused, ErrNotChosen))
}

// store hands a state to the writer: a disk that takes its time must not hold up
// the kubelet. p.mu is held.
func (p *Plugin) store(s nodestate.State) {
	p.stored = s
	select {
	case p.dirty <- struct{}{}:
	default:
	}
}

// writeAgain is how long to wait before a state that could not be written is tried again:
// no event tells of room on a disk.
const writeAgain = 10 * time.Second

// writeStates writes the latest state whenever there is a new one.
func (p *Plugin) writeStates(ctx context.Context) error {
	for {
		var again <-chan time.Time
		if p.writeErr != "" {
			again = time.After(writeAgain)
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

// flushLists waits until the kubelet has been sent what there is to tell it, or for
// longer than that takes: the rest of the work is for those who are in less of a hurry.
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

// flush writes the state if it is not written yet. One goroutine calls it at a
// time.
func (p *Plugin) flush() {
	p.mu.Lock()
	s := p.stored
	p.mu.Unlock()
	if s.DevicePlugin == nil {
		return // nothing is known yet
	}
	info := *s.DevicePlugin
	info.Labels = p.labels.Publish(p.node())
	s.DevicePlugin = &info
	if reflect.DeepEqual(s, p.written) {
		return
	}
	dir := p.stateDir(nodestate.DevicePlugin)
	if err := nodestate.Write(dir, s); err != nil {
		if p.writeErr != err.Error() {
			p.writeErr = err.Error()
			p.cfg.Log.Error("the state cannot be written; until it can be, others know nothing of the GPUs, and after a restart every GPU counts as unhealthy", "path", dir, "message", err.Error())
		}
		p.written = nodestate.State{} // what stood there is void
		return
	}
	p.written, p.writeErr = s, ""
}

// state says how things are.
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
	for _, l := range p.plan.Left {
		info.Left = append(info.Left, nodestate.Left{GPU: l.UUID(), Reason: l.Reason, Message: l.Message})
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

// phase sums it up: what keeps the plugin from its work most comes first.
func (p *Plugin) phase() (nodestate.Phase, gpu.Reason, string) {
	devices, healthy, hindered, unserved := 0, 0, 0, gpu.Fault{}
	byMPS := 0
	for _, r := range p.plan.Resources {
		for _, d := range r.Devices {
			devices++
			switch {
			case d.Healthy():
				healthy++
			case d.Fault.Reason == hindrance.ReasonCDI:
				hindered++
			case d.Fault.Reason == hindrance.ReasonMPS:
				byMPS++
				unserved = d.Fault
			}
		}
	}
	registered, waiting := p.registered()
	left := slices.IndexFunc(p.plan.Left, func(l plan.Left) bool { return !l.AsConfigured() })
	switch {
	case p.ended != nil:
		return p.ended.phase, p.ended.reason, p.ended.message
	case p.refused != nil && !p.chosen():
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
		return nodestate.Failed, p.plan.Left[left].Reason, leftText(p.plan.Left[left])
	case devices == 0 && len(p.plan.Left) > 0 && p.refused != nil: // it may be the cure
		why, message := p.refusal()
		return nodestate.Degraded, why, message
	case devices == 0 && len(p.plan.Left) > 0:
		return nodestate.Ready, reasonNothing, "the configuration leaves every GPU of this node out"
	case devices == 0:
		return nodestate.Ready, reasonNoGPU, "the driver shows no GPU on this node"
	case !registered:
		return nodestate.Waiting, reasonNoKubelet, "waiting for " + waiting
	case healthy == 0 && hindered == devices:
		return nodestate.Failed, hindrance.ReasonCDI, p.cdi.Text()
	case healthy == 0 && byMPS == devices:
		return nodestate.Waiting, hindrance.ReasonMPS, unserved.Message
	case healthy == 0:
		return nodestate.Failed, reasonNoHealthy, fmt.Sprintf("none of %d devices is healthy", devices)
	case p.refused != nil:
		why, message := p.refusal()
		return nodestate.Degraded, why, message
	case p.cdi.Trouble() != "" || hindered > 0:
		return nodestate.Degraded, hindrance.ReasonCDI, p.cdi.Text()
	case healthy < devices:
		return nodestate.Degraded, reasonUnhealthy, fmt.Sprintf("%d of %d devices are unhealthy", devices-healthy, devices)
	case left >= 0:
		return nodestate.Degraded, reasonLeftOut, leftText(p.plan.Left[left])
	}
	return nodestate.Ready, "", ""
}

func leftText(l plan.Left) string {
	name := fmt.Sprintf("GPU %d", l.Index)
	if l.MIG != (gpu.MIGDevice{}) {
		name = fmt.Sprintf("MIG device %d:%d", l.Index, l.MIG.Index)
	}
	return fmt.Sprintf("%s is left out: %s: %s", name, l.Reason, l.Message)
}
