package health

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// ReasonForgotten is held against every GPU when the state file of this boot
// exists and cannot be read: what it said against them is not known.
const ReasonForgotten gpu.Reason = "StateUnreadable"

// evidenceWords spell evidence in a state file.
var evidenceWords = []string{shown: "snapshot", quiet: "quiet", reset: "reset", reload: "reload"}

// Faults is what has to be remembered. Since when a device has been quiet is
// not: nobody listens while there is no process.
func (s State) Faults() []nodestate.Fault {
	var faults []nodestate.Fault
	for _, g := range s.GPUs() {
		for _, m := range g.marks {
			f := nodestate.Fault{
				GPU: g.Device.UUID, Reason: m.fault.Reason, Message: m.fault.Message, XID: m.fault.XID, Since: m.since,
				Needs: evidenceWords[m.needs],
			}
			if m.scope.gpuInstance >= 0 {
				f.GPUInstance = &m.scope.gpuInstance
			}
			if m.proof >= reset {
				f.Evidence = evidenceWords[m.proof]
			}
			faults = append(faults, f)
		}
	}
	return faults
}

// Recall is the State that a state file of this boot stands for: its GPUs are
// known, nothing of them is seen yet, and what was held against them still is.
// Whether a GPU could be watched is not remembered; that is found out anew. A
// file that leaves something open is read to the GPU's disadvantage.
func Recall(file nodestate.State) State {
	s := State{gpus: map[gpu.UUID]GPU{}}
	if file.Driver != nil {
		s.driver = file.Driver.Version
	}
	if file.DevicePlugin == nil {
		return s
	}
	index, parts := 0, map[gpu.UUID]bool{} // a device may be listed under several names
	know := func(id gpu.UUID) GPU {
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
					continue // written by an earlier version: the snapshot knows of which GPU it is
				}
				id = d.MIG.Parent
			}
			g := know(id)
			if d.NUMANode != nil {
				g.Device.NUMANode = *d.NUMANode
			}
			if d.GPU.IsMIG() && !parts[d.GPU] {
				g, parts[d.GPU] = g.divided(d), true
			}
			s.gpus[id] = g
		}
	}
	for _, f := range file.DevicePlugin.Faults {
		s.gpus[f.GPU] = know(f.GPU).recall(f)
	}
	return s
}

// divided is the GPU with a MIG device that a state file lists.
func (g GPU) divided(d nodestate.Device) GPU {
	m := gpu.MIGDevice{Index: d.MIG.Index, UUID: d.GPU, Profile: d.MIG.Profile, GPUInstance: d.MIG.GPUInstance, ComputeInstance: d.MIG.ComputeInstance}
	g.Device.MIGEnabled = true
	g.Device.MIG = slices.SortedFunc(slices.Values(append(slices.Clone(g.Device.MIG), m)), func(a, b gpu.MIGDevice) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
	return g
}

// recall is the GPU with what a state file holds against it.
func (g GPU) recall(f nodestate.Fault) GPU {
	at := whole
	if f.GPUInstance != nil && *f.GPUInstance >= 0 {
		at.gpuInstance = *f.GPUInstance // earlier versions held it against one compute instance of it
	}
	needs := reset
	if f.Needs != "" {
		if needs = evidence(slices.Index(evidenceWords, f.Needs)); needs < 0 {
			needs = reload
		}
	}
	proof := shown
	if e := evidence(slices.Index(evidenceWords, f.Evidence)); e >= reset {
		proof = e
	}
	held := slices.IndexFunc(g.marks, func(m mark) bool { return m.scope == at })
	if held >= 0 && outSince(f) {
		return g.provedOut(held)
	}
	g = g.note(at, gpu.Fault{Reason: f.Reason, Message: f.Message, XID: f.XID}, needs, f.Since)
	for i := range g.marks {
		// Being quiet counts from when this process listens, and the clock may have been set since.
		if m := &g.marks[i]; m.scope == at {
			m.last = time.Time{}
			if held < 0 {
				m.proof = proof
			}
		}
	}
	return g
}

// outSince says that an entry is none of its own: earlier versions, which did not
// write Needs or Evidence, said with a second entry for a GPU that it was seen out
// of service since the first.
func outSince(f nodestate.Fault) bool {
	return f.Needs == "" && f.GPUInstance == nil && f.XID == 0 && f.Reason == gpu.ReasonMissing
}

// provedOut is the GPU where what is held was followed by its being out of service.
func (g GPU) provedOut(held int) GPU {
	g.marks = slices.Clone(g.marks)
	g.marks[held].proof = reset
	return g
}
