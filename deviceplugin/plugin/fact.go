package plugin

import (
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/allocate"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/kubelet"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/deviceplugin/prefer"
	"github.com/gpuready/gpuready/internal/gpu"
)

// fact changes the fields of a state that are not derived. It reports whether the derived ones may
// change with them. at is the current time.
type fact func(s *state, at time.Time) (concernsDevices bool)

// configInForce replaces the settings in force.
func configInForce(c Settings) fact {
	return func(s *state, _ time.Time) bool {
		s.configured, s.refused = true, nil
		s.inputsVersion++
		s.settings, s.ignored = c.Config, limitKeys(c.Ignored)
		s.health = s.health.WithPolicy(c.Health)
		return true
	}
}

// configRefused records why a configuration is invalid, or that none is chosen. The one in
// force stays.
func configRefused(err error) fact {
	return func(s *state, _ time.Time) bool {
		s.refused = err
		return false
	}
}

// driverFound applies the first snapshot of an opened driver. Unless its events are watched,
// the GPUs are listed as unhealthy.
func driverFound(snap gpu.Snapshot, root string, watched bool) fact {
	return func(s *state, at time.Time) bool {
		s.absent = nil
		s.setSnapshot(snap, root, at, at)
		if watched {
			s.health = s.health.SetAllWatched(at)
		}
		return true
	}
}

// eventsSeen applies events of the driver.
func eventsSeen(events []gpu.Event) fact {
	return func(s *state, at time.Time) bool {
		for _, e := range events {
			if !s.hitsNeighbours(e) {
				s.health = s.health.ApplyEvent(e, at)
			}
		}
		return true
	}
}

// hitsNeighbours reports whether an event is an XID of a program that shares what it would make unhealthy with
// other programs, which have done nothing: the GPU, or a GPU instance. Somebody may have chosen that it counts.
func (s state) hitsNeighbours(e gpu.Event) bool {
	info, known := gpu.XID(e.XID)
	if e.Kind != gpu.EventXID || !known || info.Class != gpu.XIDApplication || info.Hardware || !s.health.Policy().IsDefault(e.XID) {
		return false
	}
	d, known := s.snapshot.Device(e.UUID)
	if !known {
		return e.UUID == "" && len(s.snapshot.Devices) > 1
	}
	if !d.MIGEnabled {
		return s.isShared(d.UUID)
	}
	parts := slices.DeleteFunc(slices.Clone(d.MIG), func(m gpu.MIGDevice) bool { return e.GPUInstance >= 0 && m.GPUInstance != e.GPUInstance })
	return len(parts) > 1 || len(parts) == 1 && s.isShared(parts[0].UUID)
}

// isShared reports whether several containers may have a GPU or MIG device at once.
func (s state) isShared(id gpu.UUID) bool {
	if _, shared := s.shares[id]; shared {
		return true
	}
	return slices.ContainsFunc(s.plan.Resources, func(r plan.Resource) bool {
		return slices.ContainsFunc(r.Devices, func(d plan.Device) bool { return d.UUID() == id && d.Replicas > 1 })
	})
}

// snapshotRead applies a later snapshot. Its reading began at began, after the events. The pending
// events arrived during the reading: they are not applied yet, but a GPU with one does not pass its
// probe.
//
// An unwatched GPU counts as watched again if the last of its events is EventChanged, not
// EventUnwatched, and the snapshot shows no fault of it. An event without a UUID concerns all GPUs:
// EventChanged then means that the driver responds again.
func snapshotRead(snap gpu.Snapshot, root string, events, pending []gpu.Event, began time.Time) fact {
	return func(s *state, at time.Time) bool {
		// The plugin may not run programs on a GPU. Its probe is that the GPU can be
		// read completely and shows no fault.
		for _, id := range s.health.DueProbes(began) {
			s.health = s.health.ApplyProbe(health.Probe{ID: id, Began: began, Passed: s.isHealthy(snap, pending, id)}, at)
		}
		s.setSnapshot(snap, root, began, at)
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
			if reportedChanged[d.UUID] && s.health.Policy().Judge(d).Fault.Reason == "" {
				s.health = s.health.SetWatched(d.UUID, at)
			}
		}
		return true
	}
}

// setSnapshot replaces the snapshot, whose reading began at began, and the fields that depend on it. root is
// the driver root.
func (s *state) setSnapshot(snap gpu.Snapshot, root string, began, at time.Time) {
	snap = prefer.GroupByNVLink(snap)
	s.snapshot, s.root = snap, root
	s.inputsVersion++
	if topology := prefer.NewTopology(snap); !topology.Equal(s.topology) {
		s.topology = topology // an unchanged one is kept, with its cache
	}
	before := instancesOf(s.health)
	s.health = s.health.ApplySnapshot(snap, at)
	if now := instancesOf(s.health); !reflect.DeepEqual(before, now) || s.layoutRead.IsZero() && len(now) > 0 {
		s.layoutRead = began
	}
}

// instancesOf returns the GPU instances of all GPUs that have some.
func instancesOf(h health.State) map[gpu.UUID][]gpu.Instance {
	all := map[gpu.UUID][]gpu.Instance{}
	for _, g := range h.GPUs() {
		if len(g.Device.Instances) > 0 {
			all[g.Device.UUID] = g.Device.Instances
		}
	}
	return all
}

// instanceDestroyed records that a GPU instance was destroyed.
func instanceDestroyed(at gpu.Placement) fact {
	return func(s *state, now time.Time) bool {
		s.health = s.health.ApplyDestroyed(at, now)
		return true
	}
}

// instanceCreated records that a GPU instance was created.
func instanceCreated(made gpu.Partition) fact {
	return func(s *state, now time.Time) bool {
		before := len(s.health.Faults())
		s.health = s.health.ApplyCreated(made, now)
		return len(s.health.Faults()) != before
	}
}

// isHealthy reports whether the GPU, or the parent of the MIG device, has no fault in the
// snapshot, as the policy judges it, and none among the pending events. An XID that is not held against it is none.
func (s *state) isHealthy(snap gpu.Snapshot, pending []gpu.Event, id gpu.UUID) bool {
	return slices.ContainsFunc(snap.Devices, func(d gpu.Device) bool {
		return s.health.Policy().Judge(d).Fault.Reason == "" &&
			(d.UUID == id || slices.ContainsFunc(d.MIG, func(m gpu.MIGDevice) bool { return m.UUID == id })) &&
			!slices.ContainsFunc(pending, func(e gpu.Event) bool {
				ignored := e.Kind == gpu.EventXID && (s.health.Policy().Rule(e.XID).Action == gpu.ActionIgnore || s.hitsNeighbours(e))
				return e.Kind != gpu.EventChanged && !ignored && (e.UUID == d.UUID || e.UUID == "") // "": of all GPUs
			})
	})
}

// watchFailed records that the plugin gets no events of the GPUs any more. unloaded: the kernel
// module is gone, not only the access to it.
func watchFailed(err error, unloaded bool) fact {
	return func(s *state, at time.Time) bool {
		s.health = s.health.SetUnwatchable(unwatchedFault(err), unloaded, at)
		return true
	}
}

// driverAbsent records why there is no driver.
func driverAbsent(why absence, err error, unloaded bool) fact {
	return func(s *state, at time.Time) bool {
		s.absent = &why
		return watchFailed(err, unloaded)(s, at)
	}
}

// unwatchedFault returns the fault of GPUs whose events cannot be received.
func unwatchedFault(err error) gpu.Fault {
	return gpu.Fault{Reason: gpu.ReasonUnwatched, Message: "its health cannot be watched: " + err.Error()}
}

// toolkitNames sets how the toolkit names CDI devices, by its state file.
func toolkitNames(names allocate.Naming) fact {
	return func(s *state, _ time.Time) bool {
		s.toolkitNaming = names
		return true
	}
}

// mpsServes sets for which GPUs the MPS control daemons are ready.
func mpsServes(served allocate.MPSState) fact {
	return func(s *state, _ time.Time) bool {
		s.mps = served
		return s.sharesByMPS()
	}
}

// kubeletReached sets the status of a resource's registration.
func kubeletReached(resource string, status kubelet.Status) fact {
	return func(s *state, _ time.Time) bool {
		if s.registrations = maps.Clone(s.registrations); s.registrations == nil {
			s.registrations = map[string]kubelet.Status{}
		}
		s.registrations[resource] = status
		return false
	}
}

// resourceRetired removes the status of a resource whose service has ended.
func resourceRetired(resource string) fact {
	return func(s *state, _ time.Time) bool {
		s.registrations = maps.Clone(s.registrations)
		delete(s.registrations, resource)
		return false
	}
}

// pluginEnds records why the plugin ends. Only the first call has an effect.
func pluginEnds(why ending) fact {
	return func(s *state, _ time.Time) bool {
		if s.ended == nil {
			s.ended = &why
		}
		return false
	}
}
