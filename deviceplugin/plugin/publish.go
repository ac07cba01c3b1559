package plugin

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/allocate"
	"github.com/gpuready/gpuready/deviceplugin/kubelet"
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

// update applies a fact and publishes what follows, to the kubelet first, since a broken GPU
// may be about to be allocated.
func (p *Plugin) update(f fact) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.applyNext(f)
	p.releaseGPUs()
	if p.onView != nil {
		p.reportView()
		p.journal.Plan(p.state.plan)
		return
	}
	if p.state.read() {
		p.updateServices(p.state.plan.Resources)
		p.flushLists()
	}
	p.meters.SetPlan(p.state.plan)
	p.journal.Plan(p.state.plan)
	p.storeState()
}

// record applies a fact that changes no device, and publishes the state alone.
func (p *Plugin) record(f fact) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.applyNext(f)
	p.storeState()
}

// applyNext makes the state after a fact the current one, with the device nodes that belong to
// it. p.mu is held.
func (p *Plugin) applyNext(f fact) {
	before := p.state
	p.state = before.Next(f, time.Now())
	if p.state.read() && p.state.inputs != before.inputs {
		p.state = p.state.Next(deviceNodesFound(p.findDeviceNodes()), time.Now())
	}
	switch now := p.state.cdi.Problem(); {
	case now == before.cdi.Problem():
	case now == "":
		p.cfg.Log.Info("the toolkit has published the devices' CDI names")
	default:
		p.cfg.Log.Warn("containers may not get the GPUs that they are allocated", "reason", string(allocate.ReasonCDI), "message", now)
	}
	if p.state.configured && !before.configured {
		close(p.configuredCh)
	}
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
	s := p.state.file(p.boot)
	p.updateMetrics(s)
	if len(p.state.plan.Resources) == 0 && p.state.health.Doubt().Reason != "" {
		return // keep the unreadable file: it alone records the doubt
	}
	p.enqueueState(s)
}

// updateMetrics sets the metrics of a state.
func (p *Plugin) updateMetrics(s nodestate.State) {
	registered := map[string]bool{}
	for _, r := range p.state.plan.Resources {
		registered[r.Name] = p.state.kubelets[r.Name].Registered
	}
	p.meters.SetState(s.Phase, s.Reason, registered)
	p.meters.SetConfigRefused(p.state.refused != nil && !errors.Is(p.state.refused, ErrNotChosen))
}

// enqueueState hands a state to the writer: a slow disk must not delay the kubelet.
// p.mu is held.
func (p *Plugin) enqueueState(s nodestate.State) {
	p.pending = s
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
	p.afterStart(ctx)
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
			p.flush()
		}
	}
}

// flushLists waits until the lists were sent to the kubelet, but no longer than that
// usually takes. The remaining work is less urgent: metrics, the log, the state, and the next
// reading of the GPUs. p.mu is held, which no call of the kubelet needs.
func (p *Plugin) flushLists() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	for _, s := range p.services {
		s.server.Flush(ctx)
	}
}

// flush writes the state if it is not written yet. It is called by one goroutine at a
// time.
func (p *Plugin) flush() {
	p.mu.Lock()
	s, labels := p.pending, p.state.labelInput
	p.mu.Unlock()
	if s.DevicePlugin == nil {
		return // no state yet
	}
	info := *s.DevicePlugin
	info.Labels = p.labels.Publish(labels())
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
