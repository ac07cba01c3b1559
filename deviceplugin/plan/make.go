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

// Plan lists the devices that are advertised on a node, and those that are not.
type Plan struct {
	Resources []Resource // by name; each has at least one device
	LeftOut   []LeftOut  // in the order of the GPUs
}

// Resource is a resource of the node with its devices, in the order of their
// GPUs, MIG devices and replicas.
type Resource struct {
	Name    string // "nvidia.com/gpu"
	Devices []Device
}

// Parts yields the GPUs and MIG devices of the resource, each once even if it is
// shared.
func (r Resource) Parts() iter.Seq[Device] {
	return func(yield func(Device) bool) {
		for _, d := range r.Devices {
			if d.Replica == 0 && !yield(d) {
				return
			}
		}
	}
}

// LeftOut is a GPU or MIG device that is not advertised.
type LeftOut struct {
	GPU     gpu.UUID // "" if the driver does not report it
	PCI     gpu.PCIAddress
	Index   int
	Product string
	MIG     gpu.MIGDevice // zero: the whole GPU
	Reason  gpu.Reason
	Message string // one sentence: why, and what to do about it
}

// UUID returns the UUID of the device, or "" if the driver does not report it.
func (l LeftOut) UUID() gpu.UUID {
	if l.MIG != (gpu.MIGDevice{}) {
		return l.MIG.UUID
	}
	return l.GPU
}

// AsConfigured reports whether the configuration asks to leave the device out.
func (l LeftOut) AsConfigured() bool {
	return l.Reason == ReasonExcluded || l.Reason == ReasonNotIncluded
}

// Reasons for which a device is left out.
const (
	ReasonExcluded    gpu.Reason = "Excluded"          // devices.exclude names it
	ReasonNotIncluded gpu.Reason = "NotIncluded"       // devices.include does not name it
	ReasonNoUUID      gpu.Reason = "NoUUID"            // too broken to report its UUID
	ReasonNoMIGDevice gpu.Reason = "NoMIGDevice"       // in MIG mode without MIG devices
	ReasonMIGDiffers  gpu.Reason = "MIGProfilesDiffer" // with the strategy single
	ReasonMIGPartly   gpu.Reason = "MIGOnSomeGPUs"     // with the strategy single
	ReasonNoResource  gpu.Reason = "NoResource"        // it has no resource name
	ReasonTooMany     gpu.Reason = "TooManyReplicas"   // the kubelet would refuse the list
	ReasonMPS         gpu.Reason = "MPSNotPossible"    // it is to be shared by MPS, which does not support it
)

// part is a GPU, or a MIG device of it, before it gets a name and replicas.
type part struct {
	gpu     gpu.Device
	mig     gpu.MIGDevice // zero: the whole GPU
	present bool          // the GPU is in the last snapshot
}

func (p part) isMIG() bool { return p.mig != gpu.MIGDevice{} }

// isReadable reports whether the last snapshot has the GPU's data, such as whether it is divided
// into MIG devices.
func (p part) isReadable() bool { return p.present && p.gpu.Fault.Reason == "" }

// leftOut returns the part as left out for a reason.
func (p part) leftOut(reason gpu.Reason, format string, args ...any) LeftOut {
	return LeftOut{
		GPU: p.gpu.UUID, PCI: p.gpu.PCI, Index: p.gpu.Index, Product: p.gpu.Product, MIG: p.mig,
		Reason: reason, Message: fmt.Sprintf(format, args...),
	}
}

// Compute computes the plan: the GPUs of the snapshot and those that health remembers,
// named and shared as configured.
//
// The names are those of NVIDIA's device plugin (github.com/NVIDIA/k8s-device-plugin,
// internal/rm/device_map.go, v0.20.0). Where NVIDIA's device plugin ends with an error for the
// whole node because of one device that it cannot name, only that device is left out.
// NVIDIA's device plugin ignores the keys resources, rename and devices of the file; here they
// have an effect.
func Compute(c *config.Config, s gpu.Snapshot, h health.State) Plan {
	var plan Plan
	parts := plan.listParts(c, s, h)
	parts = plan.filterSelected(c.Devices, parts)
	if c.Flags.MIG() == config.MIGSingle {
		parts = plan.requireUniform(parts)
	}
	plan.addResources(c.Sharing, plan.groupByName(c, parts), h)
	order := func(index int, id gpu.UUID, m gpu.MIGDevice) string {
		return fmt.Sprintf("%8d %s %8d", index, id, m.Index)
	}
	slices.SortStableFunc(plan.LeftOut, func(a, b LeftOut) int {
		return cmp.Compare(order(a.Index, a.GPU, a.MIG), order(b.Index, b.GPU, b.MIG))
	})
	return plan
}

// listParts lists the GPUs, or instead of a GPU in MIG mode its MIG devices. With the strategy
// none it lists all GPUs, as NVIDIA's device plugin does.
func (p *Plan) listParts(c *config.Config, s gpu.Snapshot, h health.State) []part {
	var parts []part
	for _, whole := range listGPUs(s, h) {
		d := whole.gpu
		switch {
		case d.UUID == "":
			p.LeftOut = append(p.LeftOut, whole.leftOut(ReasonNoUUID, "the driver cannot say which GPU this is: %s; reset it, or replace it", d.Fault))
		case !d.MIGEnabled || c.Flags.MIG() == config.MIGNone:
			parts = append(parts, whole)
		case len(d.MIG) == 0:
			p.LeftOut = append(p.LeftOut, whole.leftOut(ReasonNoMIGDevice, "in MIG mode and not divided; create MIG devices on it, or turn MIG mode off"))
		default:
			for _, m := range d.MIG {
				instance := part{gpu: d, mig: m, present: whole.present}
				if m.UUID == "" {
					p.LeftOut = append(p.LeftOut, instance.leftOut(ReasonNoUUID, "the driver cannot say which MIG device this is; create it again"))
					continue
				}
				parts = append(parts, instance)
			}
		}
	}
	return parts
}

// listGPUs returns every GPU that health knows and the other GPUs of the snapshot, by
// index.
func listGPUs(s gpu.Snapshot, h health.State) []part {
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

// filterSelected applies devices.include and devices.exclude.
func (p *Plan) filterSelected(d config.Devices, parts []part) []part {
	return slices.DeleteFunc(parts, func(one part) bool {
		if s := matchingSelector(d.Exclude, one); s != "" {
			p.LeftOut = append(p.LeftOut, one.leftOut(ReasonExcluded, "devices.exclude has %q", s))
			return true
		}
		if len(d.Include) > 0 && matchingSelector(d.Include, one) == "" {
			p.LeftOut = append(p.LeftOut, one.leftOut(ReasonNotIncluded, "devices.include does not name it"))
			return true
		}
		return false
	})
}

// matchingSelector returns the first selector that matches the part or its GPU.
func matchingSelector(selectors []config.Selector, one part) config.Selector {
	for _, s := range selectors {
		if s.MatchesGPU(one.gpu) || one.isMIG() && s.MatchesMIG(one.gpu, one.mig) {
			return s
		}
	}
	return ""
}

// requireUniform leaves out the devices that the strategy single does not allow, with
// which all devices of a node have one name: MIG devices of several profiles, which
// could not be told apart, and MIG devices beside whole GPUs. An unreadable GPU does
// not count, so that it does not affect its neighbours.
func (p *Plan) requireUniform(parts []part) []part {
	var whole, divided []part
	profiles := map[string]bool{}
	for _, one := range parts {
		switch {
		case !one.isReadable():
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
			p.LeftOut = append(p.LeftOut, one.leftOut(ReasonMIGPartly, "with the MIG strategy single all GPUs must be divided, or none: GPU %d is, GPU %d is not; "+
				"divide all alike, or write migStrategy: mixed", divided[0].gpu.Index, whole[0].gpu.Index))
		case len(profiles) > 1 && one.isMIG():
			p.LeftOut = append(p.LeftOut, one.leftOut(ReasonMIGDiffers, "with the MIG strategy single all MIG devices must have one profile, and there are %s; "+
				"divide all GPUs alike, or write migStrategy: mixed", strings.Join(slices.Sorted(maps.Keys(profiles)), ", ")))
		case !one.isMIG(): // the others are divided, and this one cannot be read
			p.LeftOut = append(p.LeftOut, one.leftOut(gpu.ReasonUnreadable, "cannot be read, so it is not known whether it is divided"))
		default:
			return false
		}
		return true
	})
}

// resourceGroup holds the parts with one resource name.
type resourceGroup struct {
	name  string
	parts []part
}

// groupByName groups the parts by the name of their resource.
func (p *Plan) groupByName(c *config.Config, parts []part) []resourceGroup {
	var groups []resourceGroup
	for _, one := range parts {
		name := resourceName(c, one)
		if name == "" {
			p.LeftOut = append(p.LeftOut, leftOutNoResource(one))
			continue
		}
		i := slices.IndexFunc(groups, func(g resourceGroup) bool { return g.name == name })
		if i < 0 {
			i = len(groups)
			groups = append(groups, resourceGroup{name: name})
		}
		groups[i].parts = append(groups[i].parts, one)
	}
	return groups
}

// resourceName returns the name of a part's resource, or "" if it has none.
func resourceName(c *config.Config, one part) string {
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
		return "" // remembered without its product: any of the patterns may match
	}
	return config.GPU
}

// leftOutNoResource returns a part as left out because no resource has it.
func leftOutNoResource(one part) LeftOut {
	if one.isMIG() {
		return one.leftOut(ReasonNoResource, "profile %s has no resource of its own, since it is unknown or a part of a GPU instance; name one in resources.mig", one.mig.Profile)
	}
	return one.leftOut(ReasonNoResource, "was present in this boot, but its product, and so its resource, is no longer known")
}
