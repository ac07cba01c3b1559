package plugin

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/allocate"
	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/kubelet"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/deviceplugin/prefer"
	"github.com/gpuready/gpuready/deviceplugin/serve"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// state is all that the plugin knows of its node. It is immutable: Next returns a new state,
// and nothing that a state refers to is ever changed.
type state struct {
	kubeletSocket     string      // of the kubelet, on the host
	otherPluginServes bool        // another plugin serves the node
	serve             serve.State // who offers the GPUs: where it is gpu-dra-driver, no device is advertised
	partitions        bool        // the MIG layout is changed as gpu-dra-driver asks

	configured bool           // settings are in force
	settings   *config.Config // in force, or empty
	refused    error          // why the latest configuration was refused; nil: it was not
	ignored    []string       // unknown keys of the settings' file

	health        health.State
	snapshot      gpu.Snapshot
	layoutRead    time.Time            // when the reading began that first showed the present GPU instances; zero: there was none
	topology      *prefer.Topology     // of the snapshot
	root          string               // of the driver
	deviceNodes   allocate.DeviceNodes // device nodes besides those of GPUs
	inputsVersion int                  // counts changes of settings and snapshot, after which deviceNodes must be found again
	absent        *absence             // why there is no driver; nil: there is one, or it has not been looked for
	ended         *ending              // why the plugin ends; nil: it runs

	toolkitNaming allocate.Naming           // CDI names according to the toolkit
	mps           allocate.MPSState         // readiness of the MPS control daemons
	registrations map[string]kubelet.Status // by resource, of those that have a service

	// Derived from the fields above by derive.
	plan          plan.Plan              // what is advertised, health included
	shares        map[gpu.UUID]sharing   // how claims share the GPUs and MIG devices
	unserved      allocate.Unallocatable // devices that claims are to share by MPS, and that no control daemon serves
	choice        allocate.Choice        // how containers get their devices
	serving       *config.Config         // settings, with the chosen device list strategies
	cdi           allocate.Naming        // toolkitNaming if the choice needs CDI names, else zero
	unallocatable allocate.Unallocatable // devices that are offered, but as unhealthy, since no container could get them
	withheld      []nodestate.Withheld   // devices that nobody is offered, until the other side's pods have ended
}

// Next returns the state after a fact. changed reports whether the derived fields were computed
// again. A registration does not concern them, and there are several at a start: hundreds of
// replicas would be planned each time.
func (s state) Next(f fact, at time.Time) (next state, changed bool) {
	if !f(&s, at) && s.serving != nil { // the first fact is followed by the first derive
		return s, false
	}
	return s.derive(at), true
}

// derive returns the state with its derived fields computed.
func (s state) derive(at time.Time) state {
	settings := s.planSettings()
	s.plan = plan.Compute(settings, s.snapshot, s.health)
	if s.servesPartitions() { // a GPU without MIG devices waits for claims
		s.plan.LeftOut = slices.DeleteFunc(slices.Clone(s.plan.LeftOut), func(l plan.LeftOut) bool { return l.Reason == plan.ReasonNoMIGDevice })
	}
	s.withheld = s.serve.Withheld(s.devices(), s.withheld, at)
	s.shares, s.unserved = s.claimShares(at)
	s.choice = s.toolkitNaming.Choose(settings.Flags.Plugin)
	s.serving = s.choice.Config(settings)
	// Without a CDI strategy the NVIDIA container runtime gets UUIDs or indices, and it does not
	// matter how the toolkit names the devices.
	if s.cdi = s.toolkitNaming; !s.serving.Flags.Plugin.CDI() {
		s.cdi = allocate.Naming{}
	}
	// MarkDevices sets faults in the plan. Before the first snapshot that concerns devices that an
	// earlier process recorded; their faults, which it recorded too, are kept as they are.
	unallocatable := s.unallocatable.MarkDevices(s.plan.Resources, allocate.Node{
		Config: s.serving, Unserved: s.choice.Problem, DeviceNodes: s.deviceNodes, DriverRead: s.hasSnapshot(), Names: s.cdi, MPS: s.mps, OtherPluginServes: s.otherPluginServes,
		Withheld: s.withheldFaults(),
	}, at)
	if s.hasSnapshot() {
		s.unallocatable = unallocatable
	}
	if s.servesPartitions() {
		s.clearUnnamed()
	}
	return s
}

// servesPartitions reports whether gpu-dra-driver offers partitions of the GPUs in MIG mode.
func (s state) servesPartitions() bool {
	return s.partitions && s.serve.Current == nodestate.ServeDRA
}

// clearUnnamed removes the faults of MIG devices that the toolkit does not name: one that was just
// created for a claim has no name for some milliseconds, and gpu-dra-driver waits for it.
func (s state) clearUnnamed() {
	for _, r := range s.plan.Resources {
		for i := range r.Devices {
			if d := &r.Devices[i]; d.MIG.UUID != "" && d.Fault.Reason == allocate.ReasonCDI {
				d.Fault = gpu.Fault{}
			}
		}
	}
}

// hasRoomForPartitions reports whether gpu-dra-driver offers partitions of a GPU that is healthy as a whole,
// whatever the MIG devices on it are.
func (s state) hasRoomForPartitions() bool {
	return s.servesPartitions() && slices.ContainsFunc(s.snapshot.Devices, func(d gpu.Device) bool {
		fault, _ := s.health.WholeVerdict(d.UUID)
		return d.MIGEnabled && len(d.Profiles) > 0 && fault.Reason == ""
	})
}

// planSettings returns the settings by which the devices are planned. gpu-dra-driver offers each whole GPU
// and each MIG device by itself: of the settings for resources, only what is excluded concerns it.
func (s state) planSettings() *config.Config {
	if s.serve.Current != nodestate.ServeDRA {
		return s.settings
	}
	c := *s.settings
	mixed := config.MIGMixed
	c.Flags.MigStrategy, c.Sharing = &mixed, config.Sharing{}
	c.Resources = config.Resources{MIG: []config.Resource{{Pattern: "*", Name: config.GPU}}}
	return &c
}

// hasSnapshot reports whether this process has read the GPUs. Before that the plan holds the
// devices that an earlier process recorded. They may be gone, so they are not sent to the
// kubelet.
func (s state) hasSnapshot() bool { return s.snapshot.Driver.Version != "" }

// sharesByMPS reports whether the settings share GPUs by MPS.
func (s state) sharesByMPS() bool {
	strategy, _ := s.settings.Sharing.Active()
	return strategy == config.SharingMPS
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

// advertised returns the resources for the kubelet: those of the plan, or none where
// gpu-dra-driver offers the GPUs, or is about to.
func (s state) advertised() []plan.Resource {
	if !s.serve.Advertises() {
		return nil
	}
	return s.plan.Resources
}

// registered reports whether every resource is registered with the kubelet. If not, waiting
// names what is waited for.
func (s state) registered() (all bool, waiting string) {
	waiting = "the kubelet"
	for _, r := range s.advertised() {
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
	info := &nodestate.DevicePluginInfo{KubeletSocket: s.kubeletSocket, Registered: registered, Faults: s.health.Faults(), IgnoredKeys: s.ignored, Inventory: s.inventory(), Serve: cmp.Or(s.serve.Current, nodestate.ServePlugin), SwitchID: s.serve.ID, DRADriverSeen: s.serve.Seen, Withheld: s.withheld}
	if s.serve.Wanted != s.serve.Current && s.serve.Wanted != "" {
		info.Wanted = s.serve.Wanted
	}
	if s.partitions {
		info.MIG, info.LayoutRead = nodestate.MIGDynamic, s.layoutRead.UTC()
	}
	for _, r := range s.advertised() {
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
		file.Unserved = s.choice.Remarks
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
	case devices == 0 && s.servesPartitions() && len(s.snapshot.Devices) > 0:
		return nodestate.Ready, "", ""
	case devices == 0:
		return nodestate.Ready, reasonNoGPU, "the driver shows no GPU on this node"
	case s.serve.Draining():
		return nodestate.Waiting, serve.ReasonDraining, "the kubelet is being told that the device plugin offers no device any more; then gpu-dra-driver offers them"
	case !registered && s.serve.Advertises():
		return nodestate.Waiting, reasonNoKubelet, "waiting for " + waiting
	case healthy == 0 && withoutCDIName == devices:
		return nodestate.Failed, allocate.ReasonCDI, s.cdi.Text()
	case healthy == 0 && withoutWay == devices:
		return nodestate.Failed, allocate.ReasonList, s.choice.Problem
	case healthy == 0 && withoutMPS == devices:
		return nodestate.Waiting, allocate.ReasonMPS, mpsFault.Message
	case healthy == 0 && len(s.withheld) > 0:
		return nodestate.Waiting, serve.ReasonWithheld, s.withheldText()
	case healthy == 0 && !s.hasRoomForPartitions():
		return nodestate.Failed, reasonNoHealthy, fmt.Sprintf("none of %d devices is healthy", devices)
	case s.refused != nil:
		why, message := s.refusal()
		return nodestate.Degraded, why, message
	case s.serve.Refused != "":
		return nodestate.Degraded, serve.ReasonRefused, s.serve.Refused
	case s.cdi.Problem() != "" || withoutCDIName > 0:
		return nodestate.Degraded, allocate.ReasonCDI, s.cdi.Text()
	case len(s.withheld) > 0:
		return nodestate.Degraded, serve.ReasonWithheld, s.withheldText()
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
