package health

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// ReasonForgotten is the fault of every GPU when the state file of this boot exists but
// cannot be read: the faults in it are unknown.
const ReasonForgotten gpu.Reason = "StateUnreadable"

// evidenceNames spells evidence in a state file.
var evidenceNames = []string{snapshotOnly: "snapshot", quiet: "quiet", reset: "reset", reload: "reload"}

// Faults returns the faults to remember. Quiet periods are not remembered, since
// nothing watches while there is no process.
func (s State) Faults() []nodestate.Fault {
	var faults []nodestate.Fault
	for _, g := range s.GPUs() {
		for _, m := range g.marks {
			f := nodestate.Fault{
				GPU: g.Device.UUID, Reason: m.fault.Reason, Message: m.fault.Message, XID: m.fault.XID, Since: m.since,
				Needs: evidenceNames[m.needs],
			}
			if m.scope.gpuInstance >= 0 {
				f.GPUInstance = &m.scope.gpuInstance
			}
			if m.proof >= reset {
				f.Evidence = evidenceNames[m.proof]
			}
			faults = append(faults, f)
		}
	}
	return faults
}

// Restore returns the State that a state file of this boot describes. Its GPUs are known
// but not present, and their faults still hold. Whether a GPU can be watched is not
// remembered but found out again. Gaps in the file are read to the GPU's disadvantage.
func Restore(file nodestate.State) State {
	s := State{gpus: map[gpu.UUID]GPU{}}
	if file.Driver != nil {
		s.driver = file.Driver.Version
	}
	if file.DevicePlugin == nil {
		return s
	}
	index, parts := 0, map[gpu.UUID]bool{} // a device may be listed under several names
	ensureGPU := func(id gpu.UUID) GPU {
		g, known := s.gpus[id]
		if !known {
			g.Device = gpu.Device{UUID: id, Index: index, NUMANode: -1}
			index++
		}
		return g
	}
	for _, r := range file.DevicePlugin.Resources {
		for _, d := range r.Devices {
			id := d.GPU
			if id.IsMIG() {
				if d.MIG == nil {
					continue // written by an earlier version; the snapshot names its GPU
				}
				id = d.MIG.Parent
			}
			g := ensureGPU(id)
			if d.NUMANode != nil {
				g.Device.NUMANode = *d.NUMANode
			}
			if d.GPU.IsMIG() && !parts[d.GPU] {
				g, parts[d.GPU] = g.withMIGDevice(d), true
			}
			s.gpus[id] = g
		}
	}
	for _, f := range file.DevicePlugin.Faults {
		s.gpus[f.GPU] = ensureGPU(f.GPU).withFault(f)
	}
	return s
}

// withMIGDevice returns the GPU with a MIG device that a state file lists.
func (g GPU) withMIGDevice(d nodestate.Device) GPU {
	m := gpu.MIGDevice{Index: d.MIG.Index, UUID: d.GPU, Profile: d.MIG.Profile, GPUInstance: d.MIG.GPUInstance, ComputeInstance: d.MIG.ComputeInstance}
	g.Device.MIGEnabled = true
	g.Device.MIG = slices.SortedFunc(slices.Values(append(slices.Clone(g.Device.MIG), m)), func(a, b gpu.MIGDevice) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
	return g
}

// withFault returns the GPU with a fault from a state file.
func (g GPU) withFault(f nodestate.Fault) GPU {
	at := whole
	if f.GPUInstance != nil && *f.GPUInstance >= 0 {
		at.gpuInstance = *f.GPUInstance // earlier versions recorded one compute instance of it
	}
	needs := reset
	if f.Needs != "" {
		if needs = evidence(slices.Index(evidenceNames, f.Needs)); needs < 0 {
			needs = reload
		}
	}
	proof := snapshotOnly
	if e := evidence(slices.Index(evidenceNames, f.Evidence)); e >= reset {
		proof = e
	}
	held := slices.IndexFunc(g.marks, func(m mark) bool { return m.scope == at })
	if held >= 0 && recordsOutage(f) {
		return g.withReset(held)
	}
	g = g.addMark(at, gpu.Fault{Reason: f.Reason, Message: f.Message, XID: f.XID}, needs, f.Since)
	for i := range g.marks {
		// The quiet period starts when this process watches; the clock may have been set since.
		if m := &g.marks[i]; m.scope == at {
			m.last = time.Time{}
			if held < 0 {
				m.proof = proof
			}
		}
	}
	return g
}

// recordsOutage reports whether an entry is not a fault of its own. Earlier versions,
// which did not write Needs or Evidence, wrote a second entry for a GPU to record that
// it was out of service since the first.
func recordsOutage(f nodestate.Fault) bool {
	return f.Needs == "" && f.GPUInstance == nil && f.XID == 0 && f.Reason == gpu.ReasonMissing
}

// withReset returns the GPU with evidence of a reset for the mark at index held.
func (g GPU) withReset(held int) GPU {
	g.marks = slices.Clone(g.marks)
	g.marks[held].proof = reset
	return g
}
