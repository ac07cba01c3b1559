package plugin

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/allocate"
	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/kubelet"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/deviceplugin/prefer"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// state is all that the plugin knows of its node. It is immutable: Next returns a new state,
// and nothing that a state refers to is ever changed.
type state struct {
	kubeletSocket     string // of the kubelet, on the host
	otherPluginServes bool   // another plugin serves the node

	configured bool           // settings are in force
	settings   *config.Config // in force, or empty
	refused    error          // why the latest configuration was refused; nil: it was not
	ignored    []string       // unknown keys of the settings' file

	health        health.State
	snapshot      gpu.Snapshot
	topology      *prefer.Topology     // of the snapshot
	root          string               // of the driver
	deviceNodes   allocate.DeviceNodes // device nodes besides those of GPUs
	inputsVersion int                  // counts changes of settings and snapshot, after which deviceNodes must be found again
	absent        *absence             // why there is no driver; nil: there is one, or it has not been looked for
	ended         *ending              // why the plugin ends; nil: it runs

	toolkitNaming allocate.Naming           // CDI names according to the toolkit
	mps           allocate.MPSState         // readiness of the MPS control daemons
	registrations map[string]kubelet.Status // by resource, of those that have a service

	// Derived from the fields above by Next.
	plan          plan.Plan              // what is advertised, health included
	choice        allocate.Choice        // how containers get their devices
	serving       *config.Config         // settings, with the chosen device list strategies
	cdi           allocate.Naming        // toolkitNaming if the choice needs CDI names, else zero
	unallocatable allocate.Unallocatable // devices that are offered, but as unhealthy, since no container could get them
}

// fact changes the fields of a state that are not derived. at is the current time.
type fact func(s *state, at time.Time)

// Next returns the state after a fact.
func (s state) Next(f fact, at time.Time) state {
	f(&s, at)
	s.plan = plan.Compute(s.settings, s.snapshot, s.health)
	s.choice = s.toolkitNaming.Choose(s.settings.Flags.Plugin)
	s.serving = s.choice.Config(s.settings)
	// Without a CDI strategy the NVIDIA container runtime gets UUIDs or indices, and it does not
	// matter how the toolkit names the devices.
	if s.cdi = s.toolkitNaming; !s.serving.Flags.Plugin.CDI() {
		s.cdi = allocate.Naming{}
	}
	// MarkDevices sets faults in the plan. Before the first snapshot that concerns devices that an
	// earlier process recorded; their faults, which it recorded too, are kept as they are.
	unallocatable := s.unallocatable.MarkDevices(s.plan.Resources, allocate.Node{
		Config: s.serving, Unserved: s.choice.Problem, DeviceNodes: s.deviceNodes, DriverRead: s.hasSnapshot(), Names: s.cdi, MPS: s.mps, OtherPluginServes: s.otherPluginServes,
	}, at)
	if s.hasSnapshot() {
		s.unallocatable = unallocatable
	}
	return s
}

// hasSnapshot reports whether this process has read the GPUs. Before that the plan holds the
// devices that an earlier process recorded. They may be gone, so they are not sent to the
// kubelet.
func (s state) hasSnapshot() bool { return s.snapshot.Driver.Version != "" }

// configInForce replaces the settings in force.
func configInForce(c Settings) fact {
	return func(s *state, _ time.Time) {
		s.configured, s.refused = true, nil
		s.inputsVersion++
		s.settings, s.ignored = c.Config, limitKeys(c.Ignored)
		s.health = s.health.WithPolicy(c.Health)
	}
}

// configRefused records why a configuration is invalid, or that none is chosen. The one in
// force stays.
func configRefused(err error) fact {
	return func(s *state, _ time.Time) { s.refused = err }
}

// driverFound applies the first snapshot of an opened driver. Unless its events are watched,
// the GPUs are listed as unhealthy.
func driverFound(snap gpu.Snapshot, root string, watched bool) fact {
	return func(s *state, at time.Time) {
		s.absent = nil
		s.setSnapshot(snap, root, at)
		if watched {
			s.health = s.health.SetAllWatched(at)
		}
	}
}

// eventsSeen applies events of the driver.
func eventsSeen(events []gpu.Event) fact {
	return func(s *state, at time.Time) {
		for _, e := range events {
			s.health = s.health.ApplyEvent(e, at)
		}
	}
}

// snapshotRead applies a later snapshot. Its reading began at began, after the events. The pending
// events arrived during the reading: they are not applied yet, but a GPU with one does not pass its
// probe.
//
// An unwatched GPU counts as watched again if the last of its events is EventChanged, not
// EventUnwatched, and the snapshot shows no fault of it. An event without a UUID concerns all GPUs:
// EventChanged then means that the driver responds again.
func snapshotRead(snap gpu.Snapshot, root string, events, pending []gpu.Event, began time.Time) fact {
	return func(s *state, at time.Time) {
		// The plugin may not run programs on a GPU. Its probe is that the GPU can be
		// read completely and shows no fault.
		for _, id := range s.health.DueProbes(began) {
			s.health = s.health.ApplyProbe(health.Probe{ID: id, Began: began, Passed: isHealthy(snap, pending, id)}, at)
		}
		s.setSnapshot(snap, root, at)
		reportedChanged := map[gpu.UUID]bool{}
		for _, e := range events {
			switch e.Kind {
			case gpu.EventChanged:
				reportedChanged[e.UUID] = true
			case gpu.EventUnwatched:
				delete(reportedChanged, e.UUID)
			}
		}
		if reportedChanged[""] { // of all GPUs
			s.health = s.health.SetResponding(at)
		}
		for _, d := range snap.Devices {
			if reportedChanged[d.UUID] && d.Fault.Reason == "" {
				s.health = s.health.SetWatched(d.UUID, at)
			}
		}
	}
}

// setSnapshot replaces the snapshot and the fields that depend on it. root is the driver root.
func (s *state) setSnapshot(snap gpu.Snapshot, root string, at time.Time) {
	s.snapshot, s.root = snap, root
	s.inputsVersion++
	if topology := prefer.NewTopology(snap); !topology.Equal(s.topology) {
		s.topology = topology // an unchanged one is kept, with its cache
	}
	s.health = s.health.ApplySnapshot(snap, at)
}

// isHealthy reports whether the GPU, or the parent of the MIG device, has no fault in the
// snapshot and none among the pending events.
func isHealthy(snap gpu.Snapshot, pending []gpu.Event, id gpu.UUID) bool {
	return slices.ContainsFunc(snap.Devices, func(d gpu.Device) bool {
		return d.Fault.Reason == "" &&
			(d.UUID == id || slices.ContainsFunc(d.MIG, func(m gpu.MIGDevice) bool { return m.UUID == id })) &&
			!slices.ContainsFunc(pending, func(e gpu.Event) bool {
				return e.Kind != gpu.EventChanged && (e.UUID == d.UUID || e.UUID == "") // "": of all GPUs
			})
	})
}

// watchFailed records that the plugin gets no events of the GPUs any more. unloaded: the kernel
// module is gone, not only the access to it.
func watchFailed(err error, unloaded bool) fact {
	return func(s *state, at time.Time) { s.health = s.health.SetUnwatchable(unwatchedFault(err), unloaded, at) }
}

// driverAbsent records why there is no driver.
func driverAbsent(why absence, err error, unloaded bool) fact {
	return func(s *state, at time.Time) {
		s.absent = &why
		watchFailed(err, unloaded)(s, at)
	}
}

// unwatchedFault returns the fault of GPUs whose events cannot be received.
func unwatchedFault(err error) gpu.Fault {
	return gpu.Fault{Reason: gpu.ReasonUnwatched, Message: "its health cannot be watched: " + err.Error()}
}

// toolkitNames sets how the toolkit names CDI devices, by its state file.
func toolkitNames(names allocate.Naming) fact {
	return func(s *state, _ time.Time) { s.toolkitNaming = names }
}

// mpsServes sets for which GPUs the MPS control daemons are ready.
func mpsServes(served allocate.MPSState) fact {
	return func(s *state, _ time.Time) { s.mps = served }
}

// kubeletReached sets the status of a resource's registration.
func kubeletReached(resource string, status kubelet.Status) fact {
	return func(s *state, _ time.Time) {
		if s.registrations = maps.Clone(s.registrations); s.registrations == nil {
			s.registrations = map[string]kubelet.Status{}
		}
		s.registrations[resource] = status
	}
}

// resourceRetired removes the status of a resource whose service has ended.
func resourceRetired(resource string) fact {
	return func(s *state, _ time.Time) {
		s.registrations = maps.Clone(s.registrations)
		delete(s.registrations, resource)
	}
}

// pluginEnds records why the plugin ends. Only the first call has an effect.
func pluginEnds(why ending) fact {
	return func(s *state, _ time.Time) {
		if s.ended == nil {
			s.ended = &why
		}
	}
}

// absence describes why there is no driver.
type absence struct {
	reason  gpu.Reason
	message string
	idle    bool // the machine has no GPU and needs no driver
}

// ending describes why the plugin ends. The phase in the state file stays at it.
type ending struct {
	phase   nodestate.Phase
	reason  gpu.Reason
	message string
}

// labelInput returns the inputs of the labels. known reports whether both the driver and
// the settings are known; until then the previous labels stay.
func (s state) labelInput() (n plan.LabelInput, known bool) {
	n = plan.LabelInput{Snapshot: s.snapshot, Health: s.health, Config: s.settings, Plan: s.plan}
	idle := s.absent != nil && s.absent.idle && len(s.health.GPUs()) == 0 // no GPU in this boot
	return n, s.configured && (s.hasSnapshot() || idle)
}

// refusal returns the reason and message of a refused configuration. s.refused must be set.
func (s state) refusal() (gpu.Reason, string) {
	if errors.Is(s.refused, ErrNotChosen) {
		return reasonUnchosen, s.refused.Error()
	}
	// The error has one line for each mistake; this is one sentence.
	return reasonRefused, strings.ReplaceAll(s.refused.Error(), "\n", "; ")
}

// registered reports whether every resource is registered with the kubelet. If not, waiting
// names what is waited for.
func (s state) registered() (all bool, waiting string) {
	waiting = "the kubelet"
	for _, r := range s.plan.Resources {
		status, known := s.registrations[r.Name]
		switch {
		case !known:
			return false, waiting
		case !status.Registered:
			return false, status.Waiting
		}
		all = true
	}
	return all, waiting
}

// stateFile returns the content of the state file.
func (s state) stateFile(boot string) nodestate.State {
	registered, _ := s.registered()
	registered = registered && s.ended == nil
	info := &nodestate.DevicePluginInfo{KubeletSocket: s.kubeletSocket, Registered: registered, Faults: s.health.Faults(), IgnoredKeys: s.ignored}
	for _, r := range s.plan.Resources {
		resource := nodestate.Resource{Name: r.Name}
		for d := range r.Parts() {
			device := nodestate.Device{ID: string(d.UUID()), GPU: d.UUID(), Replicas: d.Replicas, Health: nodestate.Healthy}
			if d.NUMANode >= 0 {
				device.NUMANode = &d.NUMANode
			}
			if m := d.MIG; m.UUID != "" {
				device.MIG = &nodestate.MIG{Parent: d.GPU, Index: m.Index, Profile: m.Profile, GPUInstance: m.GPUInstance, ComputeInstance: m.ComputeInstance}
			}
			if !d.Healthy() {
				device.Health, device.Reason, device.Message, device.Since = nodestate.Unhealthy, d.Fault.Reason, d.Fault.Message, d.Since.UTC()
				device.Action = d.Fault.NextAction(d.UUID())
			}
			resource.Devices = append(resource.Devices, device)
		}
		info.Resources = append(info.Resources, resource)
	}
	for _, l := range s.plan.LeftOut {
		info.LeftOut = append(info.LeftOut, nodestate.LeftOutDevice{GPU: l.UUID(), Reason: l.Reason, Message: l.Message})
	}
	file := nodestate.State{Component: nodestate.DevicePlugin, BootID: boot, DevicePlugin: info}
	if s.configured {
		file.Unserved = s.choice.Unserved
	}
	if d := s.snapshot.Driver; s.hasSnapshot() {
		file.Driver = &nodestate.DriverInfo{Root: s.root, Version: d.Version, CUDAVersion: d.CUDAVersion, Simulated: d.Simulated}
	} else if v := s.health.DriverVersion(); v != "" {
		file.Driver = &nodestate.DriverInfo{Root: s.root, Version: v}
	}
	file.Phase, file.Reason, file.Message = s.phase()
	return file
}

// phase returns phase, reason and message for the state file. The first case that applies counts;
// each assumes that those above it do not.
func (s state) phase() (nodestate.Phase, gpu.Reason, string) {
	devices, healthy, withoutCDIName, mpsFault := 0, 0, 0, gpu.Fault{}
	withoutMPS, withoutWay := 0, 0
	for _, r := range s.plan.Resources {
		for _, d := range r.Devices {
			devices++
			switch {
			case d.Healthy():
				healthy++
			case d.Fault.Reason == allocate.ReasonCDI:
				withoutCDIName++
			case d.Fault.Reason == allocate.ReasonList:
				withoutWay++
			case d.Fault.Reason == allocate.ReasonMPS:
				withoutMPS++
				mpsFault = d.Fault
			}
		}
	}
	registered, waiting := s.registered()
	unintended := slices.IndexFunc(s.plan.LeftOut, func(l plan.LeftOut) bool { return !l.AsConfigured() })
	switch {
	case s.ended != nil:
		return s.ended.phase, s.ended.reason, s.ended.message
	case s.refused != nil && !s.configured:
		why, message := s.refusal()
		if why == reasonUnchosen {
			return nodestate.Waiting, why, message
		}
		return nodestate.Failed, why, message
	case s.absent != nil:
		return nodestate.Waiting, s.absent.reason, s.absent.message
	case !s.hasSnapshot():
		return nodestate.Waiting, reasonStarting, "the driver has not been read yet"
	case devices == 0 && unintended >= 0:
		return nodestate.Failed, s.plan.LeftOut[unintended].Reason, leftOutText(s.plan.LeftOut[unintended])
	case devices == 0 && len(s.plan.LeftOut) > 0 && s.refused != nil: // the refused one may fix it
		why, message := s.refusal()
		return nodestate.Degraded, why, message
	case devices == 0 && len(s.plan.LeftOut) > 0:
		return nodestate.Ready, reasonNothing, "the configuration leaves every GPU of this node out"
	case devices == 0:
		return nodestate.Ready, reasonNoGPU, "the driver shows no GPU on this node"
	case !registered:
		return nodestate.Waiting, reasonNoKubelet, "waiting for " + waiting
	case healthy == 0 && withoutCDIName == devices:
		return nodestate.Failed, allocate.ReasonCDI, s.cdi.Text()
	case healthy == 0 && withoutWay == devices:
		return nodestate.Failed, allocate.ReasonList, s.choice.Problem
	case healthy == 0 && withoutMPS == devices:
		return nodestate.Waiting, allocate.ReasonMPS, mpsFault.Message
	case healthy == 0:
		return nodestate.Failed, reasonNoHealthy, fmt.Sprintf("none of %d devices is healthy", devices)
	case s.refused != nil:
		why, message := s.refusal()
		return nodestate.Degraded, why, message
	case s.cdi.Problem() != "" || withoutCDIName > 0:
		return nodestate.Degraded, allocate.ReasonCDI, s.cdi.Text()
	case healthy < devices:
		return nodestate.Degraded, reasonUnhealthy, fmt.Sprintf("%d of %d devices are unhealthy", devices-healthy, devices)
	case unintended >= 0:
		return nodestate.Degraded, reasonLeftOut, leftOutText(s.plan.LeftOut[unintended])
	}
	return nodestate.Ready, "", ""
}

// leftOutText describes a device that is not advertised.
func leftOutText(l plan.LeftOut) string {
	name := fmt.Sprintf("GPU %d", l.Index)
	if l.MIG != (gpu.MIGDevice{}) {
		name = fmt.Sprintf("MIG device %d:%d", l.Index, l.MIG.Index)
	}
	return fmt.Sprintf("%s is left out: %s: %s", name, l.Reason, l.Message)
}
