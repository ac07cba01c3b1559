package plan

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/internal/gpu"
)

// Plan is what is advertised on a node, and what is not.
type Plan struct {
	Resources []Resource // by name; each has a device
	Left      []Left     // in the order of the GPUs
}

// Resource is a resource of the node with its devices, in the order of their
// GPUs, MIG devices and replicas.
type Resource struct {
	Name    string
	Devices []Device
}

// Parts are the GPUs and MIG devices of the resource, each of them once, however
// often it is shared.
func (r Resource) Parts() iter.Seq[Device] {
	return func(yield func(Device) bool) {
		for _, d := range r.Devices {
			if d.Replica == 0 && !yield(d) {
				return
			}
		}
	}
}

// Left is a GPU or MIG device that is not advertised.
type Left struct {
	GPU     gpu.UUID // "" where the driver does not tell it
	PCI     gpu.PCIAddress
	Index   int
	Product string
	MIG     gpu.MIGDevice // zero: the whole GPU
	Reason  gpu.Reason
	Message string // what to do about it, one sentence
}

// UUID is that of what is left out, "" where the driver cannot say.
func (l Left) UUID() gpu.UUID {
	if l.MIG != (gpu.MIGDevice{}) {
		return l.MIG.UUID
	}
	return l.GPU
}

// AsConfigured says that somebody wants the device to be left out.
func (l Left) AsConfigured() bool {
	return l.Reason == ReasonExcluded || l.Reason == ReasonNotIncluded
}

// Reasons for which a device is left out.
const (
	ReasonExcluded    gpu.Reason = "Excluded"          // devices.exclude names it
	ReasonNotIncluded gpu.Reason = "NotIncluded"       // devices.include does not name it
	ReasonNoUUID      gpu.Reason = "NoUUID"            // too broken to say which one it is
	ReasonNoMIGDevice gpu.Reason = "NoMIGDevice"       // in MIG mode, and not divided
	ReasonMIGDiffers  gpu.Reason = "MIGProfilesDiffer" // with the strategy single
	ReasonMIGPartly   gpu.Reason = "MIGOnSomeGPUs"     // with the strategy single
	ReasonNoResource  gpu.Reason = "NoResource"        // nothing names it
	ReasonTooMany     gpu.Reason = "TooManyReplicas"   // the kubelet would refuse the list
	ReasonMPS         gpu.Reason = "MPSNotPossible"    // it is to be shared by MPS, which cannot
)

// part is that which one device is made of: a GPU, or a MIG device of it.
type part struct {
	gpu     gpu.Device
	mig     gpu.MIGDevice
	present bool // the GPU is in the last snapshot
}

func (p part) isMIG() bool { return p.mig != gpu.MIGDevice{} }

// sound says that the driver has just said all about the GPU, whether it is
// divided above all.
func (p part) sound() bool { return p.present && p.gpu.Fault.Reason == "" }

func (p part) left(reason gpu.Reason, format string, args ...any) Left {
	return Left{
		GPU: p.gpu.UUID, PCI: p.gpu.PCI, Index: p.gpu.Index, Product: p.gpu.Product, MIG: p.mig,
		Reason: reason, Message: fmt.Sprintf(format, args...),
	}
}

// Make says what is advertised: the GPUs of the snapshot and those that health
// remembers, named and shared as the configuration has it.
//
// The names are those of the reference (github.com/NVIDIA/k8s-device-plugin,
// internal/rm/device_map.go, v0.20.0). Where it ends with an error for the whole
// node, because of one device that it cannot name, only that device is left out.
// Other than there, the resources, rename and devices of the file have an effect.
func Make(c *config.Config, s gpu.Snapshot, h health.State) Plan {
	var plan Plan
	parts := plan.divide(c, s, h)
	parts = plan.choose(c.Devices, parts)
	if c.Flags.MIG() == config.MIGSingle {
		parts = plan.alike(parts)
	}
	plan.share(c.Sharing, plan.name(c, parts), h)
	order := func(index int, id gpu.UUID, m gpu.MIGDevice) string {
		return fmt.Sprintf("%8d %s %8d", index, id, m.Index)
	}
	slices.SortStableFunc(plan.Left, func(a, b Left) int {
		return cmp.Compare(order(a.Index, a.GPU, a.MIG), order(b.Index, b.GPU, b.MIG))
	})
	return plan
}

// divide lists the GPUs, and in the place of those in MIG mode their MIG devices.
// With the strategy none MIG makes no difference, as to the reference.
func (p *Plan) divide(c *config.Config, s gpu.Snapshot, h health.State) []part {
	var parts []part
	for _, whole := range gpus(s, h) {
		d := whole.gpu
		switch {
		case d.UUID == "":
			p.Left = append(p.Left, whole.left(ReasonNoUUID, "the driver cannot say which GPU this is: %s; reset it, or replace it", d.Fault))
		case !d.MIGEnabled || c.Flags.MIG() == config.MIGNone:
			parts = append(parts, whole)
		case len(d.MIG) == 0:
			p.Left = append(p.Left, whole.left(ReasonNoMIGDevice, "in MIG mode and not divided; create MIG devices on it, or turn MIG mode off"))
		default:
			for _, m := range d.MIG {
				one := part{gpu: d, mig: m, present: whole.present}
				if m.UUID == "" {
					p.Left = append(p.Left, one.left(ReasonNoUUID, "the driver cannot say which MIG device this is; create it anew"))
					continue
				}
				parts = append(parts, one)
			}
		}
	}
	return parts
}

// gpus returns every GPU that health knows, and those of the snapshot that it
// does not know, by index.
func gpus(s gpu.Snapshot, h health.State) []part {
	var all []part
	known := map[gpu.UUID]bool{}
	for _, g := range h.GPUs() {
		known[g.Device.UUID] = true
		all = append(all, part{gpu: g.Device, present: g.Present})
	}
	for _, d := range s.Devices {
		if !known[d.UUID] {
			all = append(all, part{gpu: d, present: true})
		}
	}
	slices.SortStableFunc(all, func(a, b part) int {
		return cmp.Or(cmp.Compare(a.gpu.Index, b.gpu.Index), cmp.Compare(a.gpu.UUID, b.gpu.UUID))
	})
	return all
}

// choose leaves out what devices.include and devices.exclude leave out.
func (p *Plan) choose(d config.Devices, parts []part) []part {
	return slices.DeleteFunc(parts, func(one part) bool {
		if s := named(d.Exclude, one); s != "" {
			p.Left = append(p.Left, one.left(ReasonExcluded, "devices.exclude has %q", s))
			return true
		}
		if len(d.Include) > 0 && named(d.Include, one) == "" {
			p.Left = append(p.Left, one.left(ReasonNotIncluded, "devices.include does not name it"))
			return true
		}
		return false
	})
}

// named returns the first selector that means the part, by itself or its GPU.
func named(selectors []config.Selector, one part) config.Selector {
	for _, s := range selectors {
		if s.MatchesGPU(one.gpu) || one.isMIG() && s.MatchesMIG(one.gpu, one.mig) {
			return s
		}
	}
	return ""
}

// alike leaves out what has no place on a node with the strategy single, on
// which all devices have one name: MIG devices of several profiles, which nobody
// could tell from each other, and MIG devices beside whole GPUs. A GPU that
// cannot be read has no say in that; it would take its neighbours down.
func (p *Plan) alike(parts []part) []part {
	var whole, divided []part
	profiles := map[string]bool{}
	for _, one := range parts {
		switch {
		case !one.sound():
		case one.isMIG():
			divided = append(divided, one)
			profiles[one.mig.Profile] = true
		default:
			whole = append(whole, one)
		}
	}
	return slices.DeleteFunc(parts, func(one part) bool {
		switch {
		case len(divided) == 0:
			return false
		case len(whole) > 0:
			p.Left = append(p.Left, one.left(ReasonMIGPartly, "with the MIG strategy single all GPUs must be divided, or none: GPU %d is, GPU %d is not; "+
				"divide all alike, or write migStrategy: mixed", divided[0].gpu.Index, whole[0].gpu.Index))
		case len(profiles) > 1 && one.isMIG():
			p.Left = append(p.Left, one.left(ReasonMIGDiffers, "with the MIG strategy single all MIG devices must have one profile, and there are %s; "+
				"divide all GPUs alike, or write migStrategy: mixed", strings.Join(slices.Sorted(maps.Keys(profiles)), ", ")))
		case !one.isMIG(): // the others are divided, and this one cannot be read
			p.Left = append(p.Left, one.left(gpu.ReasonUnreadable, "cannot be read, and so whether it is divided is not known"))
		default:
			return false
		}
		return true
	})
}

// group are the parts that have one name.
type group struct {
	name  string
	parts []part
}

// name gives each part the name of its resource.
func (p *Plan) name(c *config.Config, parts []part) []group {
	var groups []group
	for _, one := range parts {
		name := nameOf(c, one)
		if name == "" {
			p.Left = append(p.Left, unnamed(one))
			continue
		}
		i := slices.IndexFunc(groups, func(g group) bool { return g.name == name })
		if i < 0 {
			i = len(groups)
			groups = append(groups, group{name: name})
		}
		groups[i].parts = append(groups[i].parts, one)
	}
	return groups
}

// nameOf is the name of a part's resource; "" where it has none.
func nameOf(c *config.Config, one part) string {
	text, named := one.gpu.Product, c.Resources.GPUs
	if one.isMIG() {
		text, named = one.mig.Profile, c.Resources.MIG
	}
	for _, r := range named {
		if r.Pattern.Matches(text) {
			return r.Name
		}
	}
	switch {
	case one.isMIG() && c.Flags.MIG() == config.MIGMixed:
		name, _ := config.MIGName(one.mig.Profile)
		return name
	case text == "" && len(named) > 0:
		return "" // remembered without its product: any of the patterns may be meant
	}
	return config.GPU
}

func unnamed(one part) Left {
	if one.isMIG() {
		return one.left(ReasonNoResource, "profile %s has no resource of its own, being a part of a GPU instance or not known; name one in resources.mig", one.mig.Profile)
	}
	return one.left(ReasonNoResource, "was there in this boot, and which product it is, and so which resource, is not known any more")
}
