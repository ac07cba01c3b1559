package nodestate

import (
	"cmp"
	"slices"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// sanitized returns a copy of s with the messages and names from other programs cut and
// cleaned, so that it passes validate.
func (s State) sanitized() State {
	s.Message = record.Clean(s.Message, maxMessage)
	s.Unserved = slices.Clone(s.Unserved[:min(len(s.Unserved), MaxUnserved)])
	for i, u := range s.Unserved {
		s.Unserved[i] = Setting{Name: cmp.Or(record.Clean(u.Name, 256), "?"), Message: record.Clean(u.Message, maxMessage)}
	}
	if s.Toolkit != nil {
		t := *s.Toolkit
		if t.Runtime != nil {
			r := *t.Runtime
			r.Message = record.Clean(r.Message, maxMessage)
			t.Runtime = &r
		}
		if t.Injection != nil {
			i := *t.Injection
			i.Message = record.Clean(i.Message, maxMessage)
			i.Missed = slices.Clone(i.Missed)
			for j := range i.Missed {
				i.Missed[j] = record.Clean(i.Missed[j], maxMissedBytes)
			}
			t.Injection = &i
		}
		s.Toolkit = &t
	}
	if s.MPS != nil {
		m := *s.MPS
		m.Resources = slices.Clone(m.Resources)
		for i := range m.Resources {
			m.Resources[i].Message = record.Clean(m.Resources[i].Message, maxMessage)
		}
		s.MPS = &m
	}
	if s.DRADriver != nil {
		d := *s.DRADriver
		d.Kept = sanitizeWithheld(d.Kept)
		s.DRADriver = &d
	}
	if s.DevicePlugin == nil {
		return s
	}
	p := *s.DevicePlugin
	p.Withheld = sanitizeWithheld(p.Withheld)
	p.Resources = slices.Clone(p.Resources)
	for i := range p.Resources {
		devices := slices.Clone(p.Resources[i].Devices)
		for j := range devices {
			devices[j].Message = record.Clean(devices[j].Message, maxMessage)
			devices[j].Action = record.Clean(devices[j].Action, maxMessage)
			if m := devices[j].MIG; m != nil {
				described := *m
				described.Profile = record.Clean(m.Profile, maxWord)
				devices[j].MIG = &described
			}
		}
		p.Resources[i].Devices = devices
	}
	p.LeftOut = slices.Clone(p.LeftOut)
	for i := range p.LeftOut {
		p.LeftOut[i].Message = record.Clean(p.LeftOut[i].Message, maxMessage)
	}
	p.Inventory = slices.Clone(p.Inventory)
	for i := range p.Inventory {
		g := &p.Inventory[i]
		g.Condition = g.sanitized()
		g.sanitizeModel()
		g.Notes = slices.Clone(g.Notes[:min(len(g.Notes), MaxNotes)])
		for j := range g.Notes {
			g.Notes[j].Message = record.Clean(g.Notes[j].Message, maxMessage)
		}
		g.MIG = slices.Clone(g.MIG)
		for j := range g.MIG {
			g.MIG[j].Condition = g.MIG[j].sanitized()
			g.MIG[j].Profile = record.Clean(g.MIG[j].Profile, maxWord)
		}
		g.sanitizePartitions()
	}
	p.Faults = slices.Clone(p.Faults)
	for i := range p.Faults {
		p.Faults[i].Message = record.Clean(p.Faults[i].Message, maxMessage)
	}
	s.DevicePlugin = &p
	return s
}

func (c Condition) sanitized() Condition {
	c.Message, c.Action = record.Clean(c.Message, maxMessage), record.Clean(c.Action, maxMessage)
	return c
}

// sanitizeModel cleans the texts that the driver reports about a GPU.
func (g *GPU) sanitizeModel() {
	g.Product = record.Clean(g.Product, maxName)
	for _, text := range []*string{&g.Brand, &g.Architecture, &g.ComputeMode, &g.AddressingMode, &g.FabricClique} {
		*text = record.Clean(*text, maxWord)
	}
	if g.Whole != nil {
		whole := g.Whole.sanitized()
		g.Whole = &whole
	}
}

// sanitizePartitions drops the profiles and GPU instances that cannot be described. A driver that reports
// one must not keep all other GPUs from being described.
func (g *GPU) sanitizePartitions() {
	fits := func(check func(*validation)) bool {
		v := &validation{}
		check(v)
		return v.err == nil
	}
	g.Profiles = slices.Clone(g.Profiles)
	for i := range g.Profiles {
		g.Profiles[i].Name = record.Clean(g.Profiles[i].Name, maxWord)
	}
	g.Profiles = slices.DeleteFunc(g.Profiles, func(p MIGProfile) bool { return !fits(func(v *validation) { v.profile("", p) }) })
	g.Instances = slices.Clone(g.Instances)
	for i, one := range g.Instances {
		if one.Condition != nil {
			c := one.Condition.sanitized()
			g.Instances[i].Condition = &c
		}
	}
	g.Instances = slices.DeleteFunc(g.Instances, func(i GPUInstance) bool { return !fits(func(v *validation) { v.placedInstance("", i) }) })
}

func sanitizeWithheld(all []Withheld) []Withheld {
	all = slices.Clone(all)
	for i := range all {
		all[i].Message = record.Clean(all[i].Message, maxMessage)
	}
	return all
}
