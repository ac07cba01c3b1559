package inventory

import (
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// The limits of a set of counters, from which partitions consume. The names of memory slices and
// engines, and of the set, are those of NVIDIA's driver.
const (
	counterCompute = "compute-slices"
	// counterProfile limits a profile of which fewer instances may exist than fit side by side, such as
	// 1g.10gb+me.
	counterProfile = "profile-%d"
	counterMemory  = "memory-slice-%d"
)

// quantities are the counters of a set, or what a partition consumes of them.
type quantities map[string]int

// partitionsOf returns a device for each profile and placement of a GPU in MIG mode, and the set of
// counters from which they consume. What other GPU instances occupy is not in the set.
func partitionsOf(g nodestate.GPU, driver *nodestate.DriverInfo, roots PCIeRoots, created []gpu.Placement) (resourceapi.CounterSet, []Device) {
	set := fmt.Sprintf("gpu-%d-counter-set", g.Minor)
	total := totalOf(g.Profiles)
	for _, i := range g.Instances {
		if !slices.Contains(created, instancePlacement(g.UUID, i)) {
			total.subtract(g.Profiles, i)
		}
	}
	var all []Device
	for _, p := range g.Profiles {
		for _, start := range p.Starts {
			// NVIDIA's name: it ends in the numbers of profile and placement.
			name := fmt.Sprintf("gpu-%d-mig-%s-%d-%d", g.Minor, profileName(p.Name), p.ID, start)
			at := gpu.Placement{GPU: g.UUID, Profile: p.ID, Start: start, Size: p.Size}
			d := Device{
				Name: name, Hardware: Hardware{Parent: g.UUID, Placement: &at, Partition: true},
				Fault: g.ConditionAt(p.ID, start, p.Size), instance: instanceAt(g, at), API: resourceapi.Device{Name: name},
			}
			a := newAttributes(g, driver, roots)
			a.text("type", typeMIG)
			a.text("parentUUID", string(g.UUID))
			a.text("profile", p.Name)
			c := capacities{}
			c.bytes("memory", p.MemoryBytes)
			c.engines(p.Multiprocessors, p.CopyEngines, p.Decoders, p.Encoders, p.JPEGEngines, p.OFAEngines)
			consumed := consumptionOf(p, start)
			consumed.removeUncounted(total)
			d.API.Attributes, d.API.Capacity = a, c
			d.API.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: set, Counters: consumed.counters()}}
			all = append(all, d)
		}
	}
	return resourceapi.CounterSet{Name: set, Counters: total.counters()}, all
}

// totalOf returns the counters of an empty GPU. A GPU has of each kind of engine what all instances
// of the profile with most of them have together.
func totalOf(profiles []nodestate.MIGProfile) quantities {
	total := quantities{}
	for _, p := range profiles {
		for _, start := range p.Starts {
			for slice := start; slice < start+p.Size; slice++ {
				total[fmt.Sprintf(counterMemory, slice)] = 1
			}
		}
		for name, n := range engines(p) {
			total[name] = max(total[name], n*p.Count)
		}
		if p.Count < sideBySide(p) && len(total) < resourceapi.ResourceSliceMaxCountersPerCounterSet {
			total[fmt.Sprintf(counterProfile, p.ID)] = p.Count
		}
	}
	maps.DeleteFunc(total, func(_ string, n int) bool { return n == 0 })
	return total
}

// engines returns what each instance of a profile has of what its GPU has a number of, wherever it is
// placed.
func engines(p nodestate.MIGProfile) quantities {
	return quantities{
		counterCompute: p.Slices, "copy-engines": p.CopyEngines, "decoders": p.Decoders, "encoders": p.Encoders, "jpeg-engines": p.JPEGEngines, "ofa-engines": p.OFAEngines,
	}
}

// sideBySide returns how many instances of a profile have a place beside each other.
func sideBySide(p nodestate.MIGProfile) int {
	n, next := 0, 0
	for _, start := range p.Starts { // sorted
		if start >= next {
			n, next = n+1, start+p.Size
		}
	}
	return n
}

// consumptionOf returns what an instance of a profile at a placement occupies.
func consumptionOf(p nodestate.MIGProfile, start int) quantities {
	c := engines(p)
	for slice := start; slice < start+p.Size; slice++ {
		c[fmt.Sprintf(counterMemory, slice)] = 1
	}
	c[fmt.Sprintf(counterProfile, p.ID)] = 1
	return c
}

// subtract removes what an existing GPU instance occupies. Of one with an unknown profile only the
// memory slices are known: nothing else is left.
func (q quantities) subtract(profiles []nodestate.MIGProfile, i nodestate.GPUInstance) {
	at := slices.IndexFunc(profiles, func(p nodestate.MIGProfile) bool { return p.ID == i.Profile })
	if at < 0 {
		for name := range q {
			q[name] = 0
		}
		return
	}
	for name, n := range consumptionOf(profiles[at], i.Start) {
		if has, known := q[name]; known {
			q[name] = max(0, has-n)
		}
	}
}

// removeUncounted removes what a set does not count, and what is not consumed.
func (q quantities) removeUncounted(set quantities) {
	for name, n := range q {
		if _, counted := set[name]; !counted || n == 0 {
			delete(q, name)
		}
	}
}

func (q quantities) counters() map[string]resourceapi.Counter {
	all := map[string]resourceapi.Counter{}
	for name, n := range q {
		all[name] = resourceapi.Counter{Value: *resource.NewQuantity(int64(n), resource.DecimalSI)}
	}
	return all
}

func instancePlacement(id gpu.UUID, i nodestate.GPUInstance) gpu.Placement {
	return gpu.Placement{GPU: id, Profile: i.Profile, Start: i.Start, Size: i.Size}
}

// placementOf returns where the GPU instance of a MIG device is; nil: the state does not have it.
func placementOf(g nodestate.GPU, m nodestate.MIGDevice) *gpu.Placement {
	for _, i := range g.Instances {
		if i.ID == m.GPUInstance {
			at := instancePlacement(g.UUID, i)
			return &at
		}
	}
	return nil
}

// instanceAt returns the number of the GPU instance at a placement; nil: there is none.
func instanceAt(g nodestate.GPU, at gpu.Placement) *int {
	for _, i := range g.Instances {
		if instancePlacement(g.UUID, i) == at {
			return &i.ID
		}
	}
	return nil
}

// withoutCreated removes the MIG devices of partitions that were created for claims. A MIG device whose
// place is not known may be one that was destroyed while the GPU was read.
func withoutCreated(devices []Device, created []gpu.Placement) []Device {
	return slices.DeleteFunc(devices, func(d Device) bool { return d.Placement == nil || slices.Contains(created, *d.Placement) })
}
