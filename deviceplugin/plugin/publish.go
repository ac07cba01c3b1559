package plugin

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/kubelet"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/deviceplugin/prefer"
	"github.com/gpuready/gpuready/deviceplugin/server"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// Why the plugin is not Ready, besides what package driver says.
const (
	reasonStarting   gpu.Reason = "Starting"
	reasonNoGPU      gpu.Reason = "NoGPU"
	reasonNoKubelet  gpu.Reason = "NoKubelet"
	reasonNoHealthy  gpu.Reason = "NoHealthyDevice"
	reasonUnhealthy  gpu.Reason = "UnhealthyDevices"
	reasonCDIMissing gpu.Reason = "CDIUnavailable"
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
	v := p.look()
	// Before the first snapshot of this process what it remembers is no list.
	if p.snapshot.Driver.Version != "" {
		p.server.Set(listed(v.devices))
		if len(v.devices) > 0 {
			select {
			case <-p.ready:
			default:
				close(p.ready)
			}
		}
	}
	p.metrics.devices(v.devices)
	p.logDevices(v.devices)
	p.write(v.devices)
}

// look makes the view anew.
func (p *Plugin) look() *view {
	v := &view{devices: plan.Devices(p.health), byID: map[string]plan.Device{}}
	var parts []prefer.Device
	for _, d := range v.devices {
		v.byID[d.ID] = d
		parts = append(parts, prefer.Device{ID: d.ID, GPU: d.GPU, Late: !d.Healthy()})
	}
	v.chooser = prefer.New(prefer.NewTopology(p.snapshot), parts, prefer.Options{Policy: prefer.Aligned})
	p.view.Store(v)
	return v
}

func listed(devices []plan.Device) []server.Device {
	var list []server.Device
	for _, d := range devices {
		s := server.Device{ID: d.ID, Healthy: d.Healthy()}
		if d.NUMANode >= 0 {
			s.NUMANodes = []int64{int64(d.NUMANode)}
		}
		list = append(list, s)
	}
	return list
}

// logDevices has one line for each change of a device.
func (p *Plugin) logDevices(devices []plan.Device) {
	for _, d := range devices {
		was, before := p.logged[d.ID]
		switch {
		case before && was == d.Fault:
		case d.Healthy() && before && was.Reason != "":
			p.cfg.Log.Info("device is healthy again", "gpu", d.ID, "before", string(was.Reason))
		case !d.Healthy():
			p.cfg.Log.Warn("device is unhealthy", "gpu", d.ID, "reason", string(d.Fault.Reason), "message", d.Fault.Message, "since", d.Since.UTC().Format(time.RFC3339Nano))
		}
		p.logged[d.ID] = d.Fault
	}
}

// kubeletChanged is told how things stand with the kubelet.
func (p *Plugin) kubeletChanged(s kubelet.Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kubelet = s
	p.write(p.view.Load().devices)
}

// end leaves word of why the plugin ends: the first thing that is said counts.
func (p *Plugin) end(why ending) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended == nil {
		p.ended = &why
	}
	p.write(p.view.Load().devices)
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
func (p *Plugin) write(devices []plan.Device) {
	if len(devices) == 0 && p.health.Doubt().Reason != "" {
		return // the file that cannot be read is all there is to keep the doubt alive
	}
	p.store(p.state(devices))
}

// store hands a state to the writer: a disk that takes its time must not hold up
// the kubelet. p.mu is held.
func (p *Plugin) store(s nodestate.State) {
	if reflect.DeepEqual(s, p.stored) {
		return
	}
	p.stored = s
	select {
	case p.dirty <- struct{}{}:
	default:
	}
}

// writeStates writes the latest state whenever there is a new one.
func (p *Plugin) writeStates(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.dirty:
			p.flush()
		}
	}
}

// flush writes the state if it is not written yet. One goroutine calls it at a
// time.
func (p *Plugin) flush() {
	p.mu.Lock()
	s := p.stored
	p.mu.Unlock()
	if reflect.DeepEqual(s, p.written) {
		return
	}
	dir := p.stateDir(nodestate.DevicePlugin)
	if err := nodestate.Write(dir, s); err != nil {
		if p.writeErr != err.Error() {
			p.writeErr = err.Error()
			p.cfg.Log.Error("the state cannot be written; health will not be remembered over a restart", "path", dir, "message", err.Error())
		}
		return
	}
	p.written, p.writeErr = s, ""
}

// state says how things are.
func (p *Plugin) state(devices []plan.Device) nodestate.State {
	resource := nodestate.Resource{Name: Resource}
	healthy := 0
	for _, d := range devices {
		s := nodestate.Device{ID: d.ID, GPU: d.GPU, Health: nodestate.Healthy}
		if d.NUMANode >= 0 {
			s.NUMANode = &d.NUMANode
		}
		if d.Healthy() {
			healthy++
		} else {
			s.Health, s.Reason, s.Message, s.Since = nodestate.Unhealthy, d.Fault.Reason, d.Fault.Message, d.Since.UTC()
		}
		resource.Devices = append(resource.Devices, s)
	}
	s := nodestate.State{
		Component: nodestate.DevicePlugin,
		BootID:    p.boot,
		DevicePlugin: &nodestate.DevicePluginInfo{
			KubeletSocket: p.cfg.KubeletSocket,
			Registered:    p.kubelet.Registered,
			Resources:     []nodestate.Resource{resource},
			Faults:        p.health.Faults(),
		},
	}
	if d := p.snapshot.Driver; d.Version != "" {
		s.Driver = &nodestate.DriverInfo{Root: p.root, Version: d.Version, CUDAVersion: d.CUDAVersion, Simulated: d.Simulated}
	} else if v := p.health.DriverVersion(); v != "" {
		s.Driver = &nodestate.DriverInfo{Root: p.root, Version: v}
	}
	s.Phase, s.Reason, s.Message = p.phase(len(devices), healthy)
	return s
}

// phase sums it up: what keeps the plugin from its work most comes first.
func (p *Plugin) phase(devices, healthy int) (nodestate.Phase, gpu.Reason, string) {
	switch {
	case p.ended != nil:
		return p.ended.phase, p.ended.reason, p.ended.message
	case p.absent != nil:
		return nodestate.Waiting, p.absent.reason, p.absent.message
	case p.snapshot.Driver.Version == "":
		return nodestate.Waiting, reasonStarting, "the driver has not been read yet"
	case devices == 0 && p.unread != "":
		return nodestate.Failed, gpu.ReasonUnreadable, p.unread
	case devices == 0:
		return nodestate.Ready, reasonNoGPU, "the driver shows no GPU on this node"
	case !p.kubelet.Registered:
		return nodestate.Waiting, reasonNoKubelet, "waiting for " + p.kubelet.Waiting
	case healthy == 0:
		return nodestate.Failed, reasonNoHealthy, fmt.Sprintf("none of %d devices is healthy", devices)
	case p.toolkit != "":
		return nodestate.Degraded, reasonCDIMissing, p.toolkit
	case healthy < devices:
		return nodestate.Degraded, reasonUnhealthy, fmt.Sprintf("%d of %d devices are unhealthy", devices-healthy, devices)
	}
	return nodestate.Ready, "", ""
}
