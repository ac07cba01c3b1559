package plugin

import (
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// inventory returns the GPUs of this boot for the state file, whatever the configuration makes of
// them; nil before anything is known. A GPU without a UUID cannot be named and is left out.
func (s state) inventory() []nodestate.GPU {
	known := s.health.GPUs()
	if len(known) == 0 && !s.hasSnapshot() {
		return nil
	}
	all := make([]nodestate.GPU, 0, len(known))
	for _, g := range known {
		if d := g.Device; d.UUID != "" && len(all) < nodestate.MaxGPUs {
			one := s.inventoryGPU(d)
			one.Missing = s.hasSnapshot() && !g.Present
			all = append(all, one)
		}
	}
	return all
}

func (s state) inventoryGPU(d gpu.Device) nodestate.GPU {
	g := nodestate.GPU{
		UUID: d.UUID, Index: d.Index, Minor: d.Minor, Product: d.Product, Brand: d.Brand, Architecture: d.Architecture, PCI: d.PCI,
		ComputeMode: d.ComputeMode.String(), NVLinkDomain: d.NVLink.Domain, NVLinkNearest: d.NVLink.Nearest, FabricClique: d.Fabric.String(),
		MemoryBytes: d.MemoryBytes, MIGEnabled: d.MIGEnabled, Sharing: s.sharing(d.UUID), Condition: s.condition(d.UUID),
		AddressingMode: d.AddressingMode,
	}
	fault, since := s.health.WholeVerdict(d.UUID)
	whole := conditionOf(d.UUID, fault, since)
	if d.MIGEnabled && whole != g.Condition {
		g.Whole = &whole
	}
	if d.Compute != (gpu.Compute{}) {
		g.ComputeCapability = d.Compute.String()
	}
	if d.NUMANode >= 0 {
		g.NUMANode = &d.NUMANode
	}
	for _, n := range d.Notes {
		g.Notes = append(g.Notes, nodestate.Note(n))
	}
	for _, p := range d.Profiles[:min(len(d.Profiles), nodestate.MaxMIGDevices)] {
		a := p.Attributes
		g.Profiles = append(g.Profiles, nodestate.MIGProfile{
			ID: p.ID, Name: p.Name, Slices: p.Slices, Size: p.Size, Count: p.Instances, Starts: p.Starts, MemoryBytes: p.MemoryBytes,
			Multiprocessors: a.Multiprocessors, CopyEngines: a.CopyEngines, Decoders: a.Decoders, Encoders: a.Encoders, JPEGEngines: a.JPEGEngines, OFAEngines: a.OFAEngines,
		})
	}
	for _, i := range d.Instances[:min(len(d.Instances), nodestate.MaxMIGDevices)] {
		one := nodestate.GPUInstance{ID: i.ID, Profile: i.Profile, Start: i.Start, Size: i.Size}
		fault, since := s.health.InstanceVerdict(d.UUID, i.ID)
		if c := conditionOf(d.UUID, fault, since); c != whole {
			one.Condition = &c
		}
		g.Instances = append(g.Instances, one)
	}
	for _, m := range d.MIG {
		if m.UUID == "" || len(g.MIG) == nodestate.MaxMIGDevices {
			continue
		}
		a := m.Attributes
		g.MIG = append(g.MIG, nodestate.MIGDevice{
			UUID: m.UUID, Index: m.Index, Profile: m.Profile, GPUInstance: m.GPUInstance, ComputeInstance: m.ComputeInstance, MemoryBytes: m.MemoryBytes,
			Multiprocessors: a.Multiprocessors, CopyEngines: a.CopyEngines, Decoders: a.Decoders, Encoders: a.Encoders, JPEGEngines: a.JPEGEngines, OFAEngines: a.OFAEngines,
			Sharing: s.sharing(m.UUID), Condition: s.condition(m.UUID),
		})
	}
	return g
}
