package plugin

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"slices"
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
	reasonNothing   gpu.Reason = "NothingAdvertised" // the configuration selects no device
	// The plugin's own container must be created again.
	reasonOutdated gpu.Reason = "InjectionOutdated" // the toolkit injected other devices into it than now
	reasonMissing  gpu.Reason = "InjectionMissing"  // the toolkit injected nothing into it
	reasonFolder   gpu.Reason = "KubeletFolderReplaced"
	reasonReplaced gpu.Reason = "FolderReplaced" // another folder of the host
	reasonFailed   gpu.Reason = "PluginFailed"
	reasonStopped  gpu.Reason = "DevicePluginStopped"
)

// ReportRefused writes to the state file that a plugin ends at its start because its configuration is
// refused. The faults of an earlier process stay in it. A state that cannot be read is left alone.
func ReportRefused(hostRoot, stateDir string, refused error) error {
	boot, err := nodestate.BootIDAt(hostRoot)
	if err != nil {
		return err
	}
	dir := filepath.Join("/", hostRoot, stateDir, string(nodestate.DevicePlugin))
	s, err := nodestate.ReadBoot(dir, boot)
	switch {
	case nodestate.IsAbsent(err):
		s = nodestate.State{Component: nodestate.DevicePlugin, BootID: boot}
	case err != nil:
		return err
	}
	var info nodestate.DevicePluginInfo
	if s.DevicePlugin != nil {
		info = *s.DevicePlugin
	}
	info.Registered = false
	s.DevicePlugin = &info
	s.Phase = nodestate.Failed
	s.Reason, s.Message = state{refused: refused}.refusal()
	return nodestate.Write(dir, s)
}

// applyAndPublish applies a fact and publishes the new state: to the kubelet first, since a
// broken GPU may be about to be allocated, then to the metrics, the log and the state file.
func (p *Plugin) applyAndPublish(f fact) {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := p.applyFact(f)
	if changed {
		p.releaseGPUs()
	}
	if p.reportOnly != nil { // shadow mode: only report; register and store nothing
		p.reportView()
		p.journal.LogPlan(p.state.plan)
		return
	}
	if changed {
		if p.state.hasSnapshot() || !p.state.serve.Advertises() {
			p.updateServices(p.state.advertised(), p.state.serve.Resources())
			p.waitForLists()
		}
		p.metrics.SetPlan(p.state.plan)
		p.metrics.SetGPUs(p.state.snapshot.Devices)
		p.journal.LogPlan(p.state.plan)
		p.journal.LogNotes(p.state.snapshot.Devices)
	}
	p.storeState()
}

// applyAndStore applies a fact that concerns no device, such as a registration. It updates the
// metrics and the state file, but sends no device list.
func (p *Plugin) applyAndStore(f fact) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.applyFact(f)
	p.storeState()
}

// applyFact replaces the state by the one after a fact. If the fact changed the settings or the
// GPUs, it also finds the device nodes for them. It reports whether the derived fields of the state
// were computed again. p.mu is held.
func (p *Plugin) applyFact(f fact) (changed bool) {
	before := p.state
	p.state, changed = before.Next(func(s *state, at time.Time) bool {
		concernsDevices := f(s, at)
		if s.hasSnapshot() && s.inputsVersion != before.inputsVersion {
			s.deviceNodes = p.findDeviceNodes(s)
		}
		return concernsDevices
	}, time.Now())
	p.logChoice(before)
	p.logServe(before)
	p.wakeSwitch()
	switch problem := p.state.cdi.Problem(); {
	case problem == before.cdi.Problem():
	case problem == "":
		p.cfg.Log.Info("the toolkit has published the devices' CDI names")
	default:
		p.cfg.Log.Warn("containers may not get the GPUs that they are allocated", "reason", string(allocate.ReasonCDI), "message", problem)
	}
	if p.state.configured && !before.configured {
		close(p.configuredCh)
	}
	return changed
}

// logChoice logs each configured device list strategy that is not in use since the state before.
func (p *Plugin) logChoice(before state) {
	if !p.state.configured {
		return
	}
	for _, u := range p.state.choice.Remarks {
		if !before.configured || !slices.Contains(before.choice.Remarks, u) {
			p.cfg.Log.Warn("setting has no effect on this node", "setting", u.Name, "message", u.Message)
		}
	}
	if problem := p.state.choice.Problem; problem != "" && problem != before.choice.Problem {
		p.cfg.Log.Error("containers get no GPUs", "reason", string(allocate.ReasonList), "message", problem)
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

// storeState sets the metrics and passes the state on to be written to its file. p.mu is held.
func (p *Plugin) storeState() {
	s := p.state.stateFile(p.boot)
	p.updateMetrics(s)
	if len(p.state.plan.Resources) == 0 && p.state.health.LostRecord().Reason != "" {
		// Keep the file of the last process. It could not be read, which makes every GPU
		// unhealthy; overwriting it would lose that fact.
		return
	}
	p.enqueueState(s)
}

// updateMetrics sets the metrics of a state.
func (p *Plugin) updateMetrics(s nodestate.State) {
	registered := map[string]bool{}
	for _, r := range p.state.advertised() {
		registered[r.Name] = p.state.registrations[r.Name].Registered
	}
	p.metrics.SetState(s.Phase, s.Reason, registered)
	p.metrics.SetServing(s.DevicePlugin.Serve, s.DevicePlugin.Withheld)
	p.metrics.SetConfigRefused(p.state.refused != nil && !errors.Is(p.state.refused, ErrNotChosen))
}

// enqueueState hands a state to writeStates: a slow disk must not delay the kubelet.
// p.mu is held.
func (p *Plugin) enqueueState(s nodestate.State) {
	p.pendingState = s
	select {
	case p.stateChanged <- struct{}{}:
	default:
	}
}

// writeStates writes the state file whenever there is a new state, and tries again while it cannot
// be written, until ctx ends.
func (p *Plugin) writeStates(ctx context.Context) error {
	p.waitForStart(ctx)
	for {
		var retry <-chan time.Time
		if delay := p.writeFault.Delay(); delay > 0 {
			retry = time.After(delay)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-retry:
			p.writePendingState()
		case <-p.stateChanged:
			p.writePendingState()
		}
	}
}

// waitForLists waits until the kubelet has been sent the device lists, at most 5 ms, which is
// longer than that usually takes. The work after it is less urgent: metrics, the log, the state
// file, and the next reading of the GPUs. p.mu is held meanwhile. That is safe: the goroutines
// that serve the kubelet do not take it.
func (p *Plugin) waitForLists() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	for _, s := range p.services {
		s.server.Flush(ctx)
	}
}

// writePendingState writes the pending state and the labels to the state file, unless the file
// has this content already. Only one goroutine at a time may call it.
func (p *Plugin) writePendingState() {
	p.mu.Lock()
	s, labelInput := p.pendingState, p.state.labelInput
	p.mu.Unlock()
	if s.DevicePlugin == nil {
		return // no state yet
	}
	info := *s.DevicePlugin
	info.Labels = p.labels.Publish(labelInput())
	s.DevicePlugin = &info
	if reflect.DeepEqual(s, p.writtenState) {
		return
	}
	dir := p.stateDir(nodestate.DevicePlugin)
	err := nodestate.Write(dir, s)
	if err == nil {
		err = p.holdState(dir, s)
	}
	p.metrics.SetStateUnwritten(err != nil)
	switch changed := p.writeFault.Record(err); {
	case changed && err != nil:
		p.cfg.Log.Error("the state cannot be written; until it can be, other programs know nothing of the GPUs, and after a restart every GPU counts as unhealthy",
			"reason", string(nodestate.ReasonNotWritable), "path", dir, "message", err.Error())
	case changed:
		p.cfg.Log.Info("the state is written again", "path", dir)
	}
	p.writtenState = s
	if err != nil {
		p.writtenState = nodestate.State{} // Write may have emptied or removed the file
	}
}

// holdState marks this process as the living writer of its state, and writes the state again:
// readers look for the holder when the state changes. Only gpu-dra-driver needs the mark, so a
// failure to make it does not make the state unwritten.
func (p *Plugin) holdState(dir string, s nodestate.State) error {
	if p.stateHold != nil {
		return nil
	}
	held, err := nodestate.Hold(dir)
	if err != nil {
		p.cfg.Log.Warn("gpu-dra-driver cannot find out that this process lives, and offers no GPU", "path", dir, "message", err.Error())
		return nil
	}
	p.stateHold = held
	return nodestate.Write(dir, s)
}
