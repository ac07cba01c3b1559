// Package inventory turns the inventory that the device plugin publishes into the devices of
// ResourceSlices. It does no I/O.
//
// Names, attributes and capacities are those of NVIDIA's DRA driver (cmd/gpu-kubelet-plugin/deviceinfo.go
// of k8s-dra-driver-gpu), so that existing CEL selectors keep working. A GPU in MIG mode is not
// published itself; its MIG devices are, and with --mig=dynamic of the device plugin its partitions
// (partition.go). A partition is a MIG device that is created only when a claim for it is prepared.
package inventory

import (
	"cmp"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// Driver is the name of the DRA driver. Other programs select NVIDIA's devices by it.
const Driver = "gpu.nvidia.com"

// Inventory lists the devices that the node offers at one moment.
type Inventory struct {
	// Devices are sorted by GPU: GPUs near each other by NVLink together, otherwise by index, missing
	// ones last. A GPU in MIG mode is replaced by its MIG devices and then its partitions.
	Devices []Device
	// Counters has a set for each GPU that can be partitioned: what partitions that do not overlap may
	// consume together.
	Counters []resourceapi.CounterSet
	// Withheld lists the devices of the node that are not offered: all of them while the device plugin
	// offers the node's GPUs, otherwise those that the device plugin's pods still use.
	Withheld []Device
	// Serve says who offers the node's GPUs, the device plugin or DRA. SwitchID identifies the last
	// change between the two. Both are "" until the device plugin has written its state.
	Serve, SwitchID string
	// Why is the reason why there is no device, or why all of them have a taint. The zero Problem means
	// that no device has a taint for such a reason.
	Why Problem

	parents   map[gpu.UUID]gpu.UUID     // of the MIG devices on the node, whether they are published or not
	instances map[gpu.UUID]map[int]bool // the numbers of the GPU instances of each GPU
	lost      map[gpu.UUID]bool         // the GPUs that nothing reaches
}

// Device is a GPU, a MIG device or a possible partition that a claim may be given.
type Device struct {
	Name string // in the pool: "gpu-0", "gpu-0-mig-1g12gb-1-0"
	Hardware
	Shares   int    // number of claims that may have it at once; 0: one
	MPS      string // resource whose MPS control daemon serves it; "": none
	Fault    nodestate.Condition
	API      resourceapi.Device // as published, with the taint of Fault
	Withheld nodestate.Withheld // why it is withheld; zero: it is not, or Inventory.Why has it

	instance *int // number of its GPU instance; nil: it has none, or is a partition that does not exist
}

// Hardware is the part of a GPU that a device occupies.
type Hardware struct {
	UUID   gpu.UUID // of the GPU or the MIG device; "": a partition, which may not exist yet
	Parent gpu.UUID // of a MIG device or partition; "": a whole GPU
	// Placement is the place of a partition that is created when a claim for it is prepared, and of an
	// existing MIG device's GPU instance; nil: it is not known.
	Placement *gpu.Placement
	Partition bool // created only when a claim for it is prepared
}

// String returns the name, with the UUID if the device exists.
func (d Device) String() string {
	if d.UUID == "" {
		return d.Name
	}
	return d.Name + " (" + string(d.UUID) + ")"
}

// IsMIG reports whether the device is a MIG device or a partition.
func (h Hardware) IsMIG() bool { return h.Parent != "" }

// Overlaps reports whether two devices share hardware: they are the same, one is a MIG device of the
// other, or one is a partition in a place where the other is. A MIG device whose place is not known
// may be anywhere on its GPU.
func (h Hardware) Overlaps(o Hardware) bool {
	switch {
	case h.UUID != "" && (h.UUID == o.UUID || h.UUID == o.Parent), o.UUID != "" && o.UUID == h.Parent:
		return true
	case !h.Partition && !o.Partition || h.Parent != o.Parent:
		return false
	case h.Placement == nil || o.Placement == nil:
		return true
	}
	return h.Placement.Overlaps(*o.Placement)
}

// Hardware returns the hardware of a GPU or MIG device on the node, published or not. Of one that is not
// known it has the UUID alone.
func (i Inventory) Hardware(id gpu.UUID) Hardware {
	for _, d := range slices.Concat(i.Devices, i.Withheld) {
		if d.UUID == id {
			return d.Hardware
		}
	}
	return Hardware{UUID: id, Parent: i.parents[id]}
}

// Find returns the device of a name.
func (i Inventory) Find(name string) (Device, bool) {
	at := slices.IndexFunc(i.Devices, func(d Device) bool { return d.Name == name })
	if at < 0 {
		return Device{}, false
	}
	return i.Devices[at], true
}

// FindAny is like Find, but also returns a device that is withheld.
func (i Inventory) FindAny(name string) (Device, bool) {
	if d, found := i.Find(name); found {
		return d, true
	}
	at := slices.IndexFunc(i.Withheld, func(d Device) bool { return d.Name == name })
	if at < 0 {
		return Device{}, false
	}
	return i.Withheld[at], true
}

// PCIeRoots looks up the PCIe root of a GPU, "pci0000:00"; "": it is not known.
type PCIeRoots func(gpu.PCIAddress) string

// New returns the inventory of a state of the device plugin. With a problem every healthy device gets a
// taint for it; an unhealthy one has that of its own fault. Without a usable state there is no device.
// created lists the partitions for which this driver has created MIG devices: the partition stays
// published and its MIG device is not, since both are the same hardware.
func New(s nodestate.State, problem Problem, roots PCIeRoots, created ...gpu.Placement) Inventory {
	inv := Inventory{Why: problem}
	info := s.DevicePlugin
	switch {
	case info == nil:
		inv.Why = cmp.Or(problem, Problem{Reason: ReasonUnknown, Message: "gpu-device-plugin has not published its inventory",
			Action: "see that gpu-device-plugin runs on this node"})
		return inv
	case info.Serve != nodestate.ServeDRA:
		inv.Why = Problem{Reason: ReasonServedByPlugin, Message: "the device plugin offers this node's GPUs to the kubelet, and no GPU may be offered twice",
			Action: "label the Node " + nodestate.ServeLabel + "=" + nodestate.ServeDRA + ", or start gpu-device-plugin with --serve=dra"}
	}
	inv.Serve, inv.SwitchID = cmp.Or(info.Serve, nodestate.ServePlugin), info.SwitchID
	withheld := map[gpu.UUID]nodestate.Withheld{}
	for _, w := range info.Withheld {
		withheld[w.GPU] = w
	}
	excluded := info.Excluded()
	gpus := slices.Clone(info.Inventory)
	index := map[gpu.UUID]int{}
	inv.parents, inv.instances, inv.lost = map[gpu.UUID]gpu.UUID{}, map[gpu.UUID]map[int]bool{}, map[gpu.UUID]bool{}
	for _, g := range gpus {
		index[g.UUID] = g.Index
		inv.lost[g.UUID] = g.Missing || isLost(g.WholeCondition())
		inv.instances[g.UUID] = map[int]bool{}
		for _, m := range g.MIG {
			inv.parents[m.UUID] = g.UUID
			inv.instances[g.UUID][m.GPUInstance] = true
		}
		for _, i := range g.Instances {
			inv.instances[g.UUID][i.ID] = true
		}
	}
	slices.SortStableFunc(gpus, func(a, b nodestate.GPU) int {
		return cmp.Or(missingLast(a, b), compareGroups(index, a, b), cmp.Compare(a.Index, b.Index))
	})
	for _, g := range gpus {
		devices := devicesOf(g, s.Driver, roots)
		if info.MIG == nodestate.MIGDynamic && g.MIGEnabled {
			devices = withoutCreated(devices, created) // even if the profiles are not known
		}
		if info.MIG == nodestate.MIGDynamic && g.Minor >= 0 && len(g.Profiles) > 0 && !excluded[g.UUID] {
			// The number of a missing GPU, and so the name of its counters, may be another's by now.
			if set, partitions := partitionsOf(g, s.Driver, roots, created); !inv.hasCounters(set.Name) {
				devices = append(devices, partitions...)
				inv.Counters = append(inv.Counters, set)
			}
		}
		for _, d := range devices {
			// The number of a missing GPU (minor), and so its name, may belong to another GPU by now, which came first.
			_, taken := inv.FindAny(d.Name)
			if taken || excluded[d.UUID] || excluded[d.Parent] {
				continue
			}
			if problem.Reason != "" && d.Fault.Health == nodestate.Healthy {
				d.Fault = nodestate.Condition{Health: nodestate.Unhealthy, Reason: problem.Reason, Message: problem.Message, Action: problem.Action, Since: problem.Since}
			}
			d.API.Taints = taints(d.Fault)
			id := d.UUID
			if d.Partition { // it is withheld with its GPU
				id = d.Parent
			}
			switch w, isWithheld := withheld[id]; {
			case inv.Serve != nodestate.ServeDRA:
				inv.Withheld = append(inv.Withheld, d)
			case isWithheld:
				d.Withheld = w
				inv.Withheld = append(inv.Withheld, d)
			default:
				inv.Devices = append(inv.Devices, d)
			}
		}
	}
	if inv.Serve != nodestate.ServeDRA {
		inv.Counters = nil
	}
	return inv
}

// hasCounters reports whether there is a set of counters with a name.
func (i Inventory) hasCounters(name string) bool {
	return slices.ContainsFunc(i.Counters, func(c resourceapi.CounterSet) bool { return c.Name == name })
}

// isLost reports whether nothing reaches a GPU of a condition.
func isLost(c nodestate.Condition) bool {
	return c.Reason == gpu.ReasonLost || c.Reason == gpu.ReasonMissing
}

// IsLost reports whether nothing reaches a GPU: it is lost, or the driver does not list it any more.
func (i Inventory) IsLost(id gpu.UUID) bool { return i.lost[id] }

// compareGroups sorts GPUs that are near by NVLink beside each other: the scheduler takes the first that
// fit, so claims for one GPU fill a group before they begin the next. A group is named by the UUID of one
// of its GPUs, whose index is the group's place.
func compareGroups(index map[gpu.UUID]int, a, b nodestate.GPU) int {
	first := func(g nodestate.GPU, group gpu.UUID) int {
		if i, known := index[group]; known {
			return i
		}
		return g.Index
	}
	return cmp.Or(cmp.Compare(first(a, a.NVLinkDomain), first(b, b.NVLinkDomain)), cmp.Compare(first(a, a.NVLinkNearest), first(b, b.NVLinkNearest)))
}

// missingLast sorts missing GPUs last, so that a GPU that is there keeps its name.
func missingLast(a, b nodestate.GPU) int {
	missing := func(g nodestate.GPU) int {
		if g.Missing || g.Reason == gpu.ReasonMissing { // of an earlier version of the device plugin
			return 1
		}
		return 0
	}
	return cmp.Compare(missing(a), missing(b))
}

// Slices distributes the devices among ResourceSlices, 64 in each: the limit of a slice that has
// taints (resource.k8s.io/v1, ResourceSliceSpec), so that a taint moves no device to another slice.
// Counters have slices of their own, as the API demands, of at most 8 sets. There is at least one
// slice, since an empty one shows that the driver runs.
func (i Inventory) Slices() []resourceslice.Slice {
	var all []resourceslice.Slice
	for part := range slices.Chunk(i.Counters, resourceapi.ResourceSliceMaxCounterSets) {
		all = append(all, resourceslice.Slice{SharedCounters: part})
	}
	for part := range slices.Chunk(i.Devices, resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures) {
		var s resourceslice.Slice
		for _, d := range part {
			s.Devices = append(s.Devices, d.API)
		}
		all = append(all, s)
	}
	if all == nil {
		all = []resourceslice.Slice{{}}
	}
	return all
}

// WithoutPartitions returns the inventory for a cluster whose API server drops counters: without them
// the scheduler would choose partitions that overlap.
func (i Inventory) WithoutPartitions() Inventory {
	i.Counters = nil
	i.Devices = slices.DeleteFunc(slices.Clone(i.Devices), func(d Device) bool { return d.Partition })
	return i
}
