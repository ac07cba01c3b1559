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

// state is all that the plugin knows of its node. It is pure: Next returns the state after a
// fact, and nothing that a state refers to is ever changed.
type state struct {
	socket string // of the kubelet, on the host
	beside bool   // another plugin serves the node

	configured bool           // settings are in force
	settings   *config.Config // in force, or empty
	refused    error          // why the latest configuration was refused; nil: it was not
	ignored    []string       // unknown keys of the settings' file

	health   health.State
	snapshot gpu.Snapshot
	topology *prefer.Topology // of the snapshot
	root     string           // of the driver
	host     allocate.Host    // device nodes besides those of GPUs
	inputs   int              // counts the changes of settings and snapshot, from which host follows
	absent   *absence
	ended    *ending

	toolkitNaming allocate.Naming           // CDI names according to the toolkit
	mps           allocate.Served           // served by the MPS control daemons
	kubelets      map[string]kubelet.Status // by resource that is served

	// What follows from the above.
	plan          plan.Plan       // what is advertised, health included
	cdi           allocate.Naming // toolkitNaming, if the settings need CDI names
	unallocatable allocate.Known  // devices that could not be given to a container
}

// fact changes a state, whose derived fields are computed afterwards.
type fact func(s *state, at time.Time)

// Next returns the state after a fact.
func (s state) Next(f fact, at time.Time) state {
	f(&s, at)
	s.plan = plan.Compute(s.settings, s.snapshot, s.health)
	// The NVIDIA container runtime needs no CDI names.
	if s.cdi = s.toolkitNaming; !s.settings.Flags.Plugin.CDI() {
		s.cdi = allocate.Naming{}
	}
	unallocatable := s.unallocatable.MarkDevices(s.plan.Resources, allocate.Node{
		Config: s.settings, Host: s.host, Read: s.read(), Names: s.cdi, MPS: s.mps, Beside: s.beside,
	}, at)
	if s.read() {
		s.unallocatable = unallocatable
	}
	return s
}

// read reports whether this process has read the driver. Before that the plan holds
// remembered devices, not present ones, and is no list to send.
func (s state) read() bool { return s.snapshot.Driver.Version != "" }

// configInForce puts settings into force.
func configInForce(c Settings) fact {
	return func(s *state, _ time.Time) {
		s.configured, s.refused = true, nil
		s.inputs++
		s.settings, s.ignored = c.Config, ignored(c.Ignored)
		s.health = s.health.WithPolicy(c.Health)
	}
}

// configRefused records why a configuration is not put into force. The one in force stays.
func configRefused(err error) fact {
	return func(s *state, _ time.Time) { s.refused = err }
}

// deviceNodesFound replaces the device nodes of the snapshot and the settings.
func deviceNodesFound(host allocate.Host) fact {
	return func(s *state, _ time.Time) { s.host = host }
}

// driverFound is the first snapshot of a driver. Unless its GPUs are watched, they are listed,
// but as unhealthy.
func driverFound(snap gpu.Snapshot, root string, watched bool) fact {
	return func(s *state, at time.Time) {
		s.absent = nil
		s.setSnapshot(snap, root, at)
		if watched {
			s.health = s.health.Watching(at)
		}
	}
}

// eventsSeen are events of the driver, to be applied before anything slow is done.
func eventsSeen(events []gpu.Event) fact {
	return func(s *state, at time.Time) {
		for _, e := range events {
			s.health = s.health.ApplyEvent(e, at)
		}
	}
}

// snapshotRead is a later snapshot, read after the events since began. An unwatched GPU for
// which an event reported a change is watched again, unless the source has reported otherwise
// since. Events that came while the snapshot was read are pending: they are not applied yet,
// but a probe takes them into account.
func snapshotRead(snap gpu.Snapshot, root string, events, pending []gpu.Event, began time.Time) fact {
	return func(s *state, at time.Time) {
		// The plugin may not run programs on a GPU. Its probe is that the GPU can be
		// read completely and shows no fault.
		for _, id := range s.health.Due(began) {
			s.health = s.health.ApplyProbe(health.Probe{ID: id, Began: began, Passed: isHealthy(snap, pending, id)}, at)
		}
		s.setSnapshot(snap, root, at)
		told := map[gpu.UUID]bool{}
		for _, e := range events {
			switch e.Kind {
			case gpu.EventChanged:
				told[e.UUID] = true
			case gpu.EventUnwatched:
				delete(told, e.UUID)
			}
		}
		if told[""] {
			s.health = s.health.SetResponding(at)
		}
		for _, d := range snap.Devices {
			if told[d.UUID] && d.Fault.Reason == "" {
				s.health = s.health.Watched(d.UUID, at)
			}
		}
	}
}

func (s *state) setSnapshot(snap gpu.Snapshot, root string, at time.Time) {
	s.snapshot, s.root = snap, root
	s.inputs++
	if now := prefer.NewTopology(snap); !now.Equal(s.topology) {
		s.topology = now // an unchanged one is kept, with its cache
	}
	s.health = s.health.ApplySnapshot(snap, at)
}

// isHealthy reports whether the GPU, or the parent of the MIG device, has no fault.
func isHealthy(snap gpu.Snapshot, pending []gpu.Event, id gpu.UUID) bool {
	return slices.ContainsFunc(snap.Devices, func(d gpu.Device) bool {
		return d.Fault.Reason == "" &&
			(d.UUID == id || slices.ContainsFunc(d.MIG, func(m gpu.MIGDevice) bool { return m.UUID == id })) &&
			!slices.ContainsFunc(pending, func(e gpu.Event) bool {
				return e.Kind != gpu.EventChanged && (e.UUID == d.UUID || e.UUID == "")
			})
	})
}

// watchFailed records that the GPUs cannot be watched any more. unloaded reports whether the
// kernel module is gone, and not only access to it.
func watchFailed(err error, unloaded bool) fact {
	return func(s *state, at time.Time) { s.health = s.health.SetUnwatchable(unwatched(err), unloaded, at) }
}

// driverAbsent records why there is no driver.
func driverAbsent(why absence, err error, unloaded bool) fact {
	return func(s *state, at time.Time) {
		s.absent = &why
		watchFailed(err, unloaded)(s, at)
	}
}

func unwatched(err error) gpu.Fault {
	return gpu.Fault{Reason: gpu.ReasonUnwatched, Message: "its health cannot be watched: " + err.Error()}
}

// toolkitNames sets how the toolkit names CDI devices, by its state file.
func toolkitNames(names allocate.Naming) fact {
	return func(s *state, _ time.Time) { s.toolkitNaming = names }
}

// mpsServes sets the GPUs that the MPS control daemons serve.
func mpsServes(served allocate.Served) fact {
	return func(s *state, _ time.Time) { s.mps = served }
}

// kubeletReached is the state of a resource's registration.
func kubeletReached(resource string, status kubelet.Status) fact {
	return func(s *state, _ time.Time) {
		if s.kubelets = maps.Clone(s.kubelets); s.kubelets == nil {
			s.kubelets = map[string]kubelet.Status{}
		}
		s.kubelets[resource] = status
	}
}

// resourceRetired is the end of a resource's service.
func resourceRetired(resource string) fact {
	return func(s *state, _ time.Time) {
		s.kubelets = maps.Clone(s.kubelets)
		delete(s.kubelets, resource)
	}
}

// pluginEnds records why the plugin ends. The first reason counts.
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

// ending describes why the plugin ends. Later changes are not reported.
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
	return n, s.configured && (s.snapshot.Driver.Version != "" || idle)
}

// refusal returns why no other configuration is in force, for phase.
func (s state) refusal() (gpu.Reason, string) {
	if errors.Is(s.refused, ErrNotChosen) {
		return reasonUnchosen, s.refused.Error()
	}
	// The error has one line for each mistake; this is one sentence.
	return reasonRefused, strings.ReplaceAll(s.refused.Error(), "\n", "; ")
}

// registered reports whether every resource is registered with the kubelet, and if not,
// what is waited for.
func (s state) registered() (all bool, waiting string) {
	waiting = "the kubelet"
	for _, r := range s.plan.Resources {
		status, served := s.kubelets[r.Name]
		switch {
		case !served:
			return false, waiting
		case !status.Registered:
			return false, status.Waiting
		}
		all = true
	}
	return all, waiting
}

// file returns the content of the state file.
func (s state) file(boot string) nodestate.State {
	registered, _ := s.registered()
	info := &nodestate.DevicePluginInfo{KubeletSocket: s.socket, Registered: registered, Faults: s.health.Faults(), IgnoredKeys: s.ignored}
	for _, r := range s.plan.Resources {
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
	for _, l := range s.plan.LeftOut {
		info.Unallocatable = append(info.Unallocatable, nodestate.UnallocatableDevice{GPU: l.UUID(), Reason: l.Reason, Message: l.Message})
	}
	file := nodestate.State{Component: nodestate.DevicePlugin, BootID: boot, DevicePlugin: info}
	if d := s.snapshot.Driver; d.Version != "" {
		file.Driver = &nodestate.DriverInfo{Root: s.root, Version: d.Version, CUDAVersion: d.CUDAVersion, Simulated: d.Simulated}
	} else if v := s.health.DriverVersion(); v != "" {
		file.Driver = &nodestate.DriverInfo{Root: s.root, Version: v}
	}
	file.Phase, file.Reason, file.Message = s.phase()
	return file
}

// phase summarises the state. The worst problem comes first.
func (s state) phase() (nodestate.Phase, gpu.Reason, string) {
	devices, healthy, hindered, unserved := 0, 0, 0, gpu.Fault{}
	byMPS := 0
	for _, r := range s.plan.Resources {
		for _, d := range r.Devices {
			devices++
			switch {
			case d.Healthy():
				healthy++
			case d.Fault.Reason == allocate.ReasonCDI:
				hindered++
			case d.Fault.Reason == allocate.ReasonMPS:
				byMPS++
				unserved = d.Fault
			}
		}
	}
	registered, waiting := s.registered()
	left := slices.IndexFunc(s.plan.LeftOut, func(l plan.LeftOut) bool { return !l.AsConfigured() })
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
	case s.snapshot.Driver.Version == "":
		return nodestate.Waiting, reasonStarting, "the driver has not been read yet"
	case devices == 0 && left >= 0:
		return nodestate.Failed, s.plan.LeftOut[left].Reason, leftText(s.plan.LeftOut[left])
	case devices == 0 && len(s.plan.LeftOut) > 0 && s.refused != nil: // the refused one may fix it
		why, message := s.refusal()
		return nodestate.Degraded, why, message
	case devices == 0 && len(s.plan.LeftOut) > 0:
		return nodestate.Ready, reasonNothing, "the configuration leaves every GPU of this node out"
	case devices == 0:
		return nodestate.Ready, reasonNoGPU, "the driver shows no GPU on this node"
	case !registered:
		return nodestate.Waiting, reasonNoKubelet, "waiting for " + waiting
	case healthy == 0 && hindered == devices:
		return nodestate.Failed, allocate.ReasonCDI, s.cdi.Text()
	case healthy == 0 && byMPS == devices:
		return nodestate.Waiting, allocate.ReasonMPS, unserved.Message
	case healthy == 0:
		return nodestate.Failed, reasonNoHealthy, fmt.Sprintf("none of %d devices is healthy", devices)
	case s.refused != nil:
		why, message := s.refusal()
		return nodestate.Degraded, why, message
	case s.cdi.Problem() != "" || hindered > 0:
		return nodestate.Degraded, allocate.ReasonCDI, s.cdi.Text()
	case healthy < devices:
		return nodestate.Degraded, reasonUnhealthy, fmt.Sprintf("%d of %d devices are unhealthy", devices-healthy, devices)
	case left >= 0:
		return nodestate.Degraded, reasonLeftOut, leftText(s.plan.LeftOut[left])
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
