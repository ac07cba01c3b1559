package health

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// ReasonForgotten is the reason of every GPU's fault when the state file of this boot exists but
// cannot be read, so that the recorded faults are lost.
const ReasonForgotten gpu.Reason = "StateUnreadable"

// evidenceNames holds the names of evidence in a state file.
var evidenceNames = []nodestate.Evidence{
	snapshotOnly: nodestate.EvidenceSnapshot, quiet: nodestate.EvidenceQuiet, reset: nodestate.EvidenceReset, reload: nodestate.EvidenceReload,
}

// Faults returns the faults for the state file. The evidence of quiet is left out, since nothing
// watches the GPUs between two processes.
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
			if m.evidence >= reset {
				f.Evidence = evidenceNames[m.evidence]
			}
			faults = append(faults, f)
		}
	}
	return faults
}

// Restore returns the State that a state file of this boot describes. Its GPUs are known
// but not present, and their faults still hold. Whether a GPU can be watched is not
// remembered but found out again. Where the file is incomplete, Restore
// assumes the worse for the GPU.
func Restore(file nodestate.State) State {
	s := State{gpus: map[gpu.UUID]GPU{}}
	if file.Driver != nil {
		s.driverVersion = file.Driver.Version
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
	for _, known := range file.DevicePlugin.Inventory {
		s.gpus[known.UUID] = restoreGPU(ensureGPU(known.UUID), known)
		for _, m := range known.MIG {
			parts[m.UUID] = true
		}
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
				g, parts[d.GPU] = g.addMIGDevice(d), true
			}
			s.gpus[id] = g
		}
	}
	for _, f := range file.DevicePlugin.Faults {
		s.gpus[f.GPU] = ensureGPU(f.GPU).restoreFault(f)
	}
	return s
}

// restoreGPU returns a GPU with the data of a state file's inventory.
func restoreGPU(g GPU, known nodestate.GPU) GPU {
	d := &g.Device
	d.Index, d.Minor, d.Product, d.Brand, d.Architecture = known.Index, known.Minor, known.Product, known.Brand, known.Architecture
	d.PCI, d.MemoryBytes, d.MIGEnabled, d.AddressingMode = known.PCI, known.MemoryBytes, known.MIGEnabled, known.AddressingMode
	d.ComputeMode, d.Fabric = gpu.ParseComputeMode(known.ComputeMode), gpu.ParseFabric(known.FabricClique)
	d.NVLink = gpu.NVLinkGroup{Domain: known.NVLinkDomain, Nearest: known.NVLinkNearest}
	if known.NUMANode != nil {
		d.NUMANode = *known.NUMANode
	}
	// A capability that cannot be read stays unknown.
	_, _ = fmt.Sscanf(known.ComputeCapability, "%d.%d", &d.Compute.Major, &d.Compute.Minor)
	d.MIG, d.Profiles, d.Instances = nil, nil, nil
	for _, p := range known.Profiles {
		d.Profiles = append(d.Profiles, gpu.PartitionProfile{
			ID: p.ID, Name: p.Name, Slices: p.Slices, Size: p.Size, Instances: p.Count, Starts: p.Starts, MemoryBytes: p.MemoryBytes,
			Attributes: gpu.Attributes{
				Multiprocessors: p.Multiprocessors, CopyEngines: p.CopyEngines, Decoders: p.Decoders, Encoders: p.Encoders, JPEGEngines: p.JPEGEngines, OFAEngines: p.OFAEngines,
			},
		})
	}
	for _, i := range known.Instances {
		d.Instances = append(d.Instances, gpu.Instance{ID: i.ID, Profile: i.Profile, Start: i.Start, Size: i.Size})
	}
	for _, m := range known.MIG {
		d.MIG = append(d.MIG, gpu.MIGDevice{
			UUID: m.UUID, Index: m.Index, Profile: m.Profile, GPUInstance: m.GPUInstance, ComputeInstance: m.ComputeInstance, MemoryBytes: m.MemoryBytes,
			Attributes: gpu.Attributes{
				Multiprocessors: m.Multiprocessors, CopyEngines: m.CopyEngines, Decoders: m.Decoders, Encoders: m.Encoders, JPEGEngines: m.JPEGEngines, OFAEngines: m.OFAEngines,
			},
		})
	}
	return g
}

// addMIGDevice returns the GPU with a MIG device that a state file lists.
func (g GPU) addMIGDevice(d nodestate.Device) GPU {
	m := gpu.MIGDevice{Index: d.MIG.Index, UUID: d.GPU, Profile: d.MIG.Profile, GPUInstance: d.MIG.GPUInstance, ComputeInstance: d.MIG.ComputeInstance}
	g.Device.MIGEnabled = true
	g.Device.MIG = slices.SortedFunc(slices.Values(append(slices.Clone(g.Device.MIG), m)), func(a, b gpu.MIGDevice) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
	return g
}

// restoreFault returns the GPU with a fault from a state file.
func (g GPU) restoreFault(f nodestate.Fault) GPU {
	at := wholeGPU
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
	index := slices.IndexFunc(g.marks, func(m faultMark) bool { return m.scope == at })
	if index >= 0 && isResetRecord(f) {
		return g.setReset(index)
	}
	g = g.addMark(at, gpu.Fault{Reason: f.Reason, Message: f.Message, XID: f.XID}, needs, f.Since)
	for i := range g.marks {
		// The quiet period starts when this process watches; the clock may have been set since.
		if m := &g.marks[i]; m.scope == at {
			m.lastEvent = time.Time{}
			if index < 0 {
				m.evidence = proof
			}
		}
	}
	return g
}

// isResetRecord reports whether an entry is not a fault, but the evidence of a reset.
// Earlier versions, which did not write Needs or Evidence, wrote a second entry for a GPU
// to record that it was out of service since the first.
func isResetRecord(f nodestate.Fault) bool {
	return f.Needs == "" && f.GPUInstance == nil && f.XID == 0 && f.Reason == gpu.ReasonMissing
}

// setReset returns the GPU with evidence of a reset for the mark at index held.
func (g GPU) setReset(index int) GPU {
	g.marks = slices.Clone(g.marks)
	g.marks[index].evidence = reset
	return g
}
