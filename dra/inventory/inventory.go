// Package inventory turns the inventory that the device plugin publishes into the devices of
// ResourceSlices. It does no I/O.
//
// Names, attributes and capacities are those of NVIDIA's DRA driver (cmd/gpu-kubelet-plugin/deviceinfo.go
// of k8s-dra-driver-gpu), so that people's CEL selectors hold. A GPU in MIG mode is not published
// itself; its MIG devices are.
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
	Devices []Device // sorted: GPUs by index, MIG devices by their index on the GPU
	// Why is the reason why there is no device, or why all of them have a taint; zero: there is
	// neither.
	Why Problem
}

// Device is a GPU or a MIG device that a claim may be given.
type Device struct {
	Name   string   // in the pool: "gpu-0", "gpu-0-mig-1g12gb-1-0"
	UUID   gpu.UUID // of the GPU or the MIG device
	Parent gpu.UUID // of a MIG device; "": a whole GPU
	Fault  nodestate.Condition
	API    resourceapi.Device // as published, with the taint of Fault
}

// IsMIG reports whether the device is a MIG device.
func (d Device) IsMIG() bool { return d.Parent != "" }

// Overlaps reports whether two devices share hardware: they are the same, or one is a MIG device of
// the other.
func Overlaps(a, aParent, b, bParent gpu.UUID) bool {
	return a == b || a == bParent || aParent == b
}

// Find returns the device of a name.
func (i Inventory) Find(name string) (Device, bool) {
	at := slices.IndexFunc(i.Devices, func(d Device) bool { return d.Name == name })
	if at < 0 {
		return Device{}, false
	}
	return i.Devices[at], true
}

// Places looks up the PCIe root of a GPU, "pci0000:00"; "": it is not known.
type Places func(gpu.PCIAddress) string

// New returns the inventory of a state of the device plugin. With a problem every device has its
// taint; without a usable state there is no device.
func New(s nodestate.State, problem Problem, root Places) Inventory {
	inv := Inventory{Why: problem}
	info := s.DevicePlugin
	switch {
	case info == nil:
		inv.Why = cmp.Or(problem, Problem{Reason: ReasonUnknown, Message: "gpu-device-plugin has not published its inventory",
			Action: "see that gpu-device-plugin runs on this node"})
		return inv
	case info.Serve != nodestate.ServeDRA:
		inv.Why = Problem{Reason: ReasonServedByPlugin, Message: "the device plugin offers this node's GPUs to the kubelet, and no GPU may be offered twice",
			Action: "start gpu-device-plugin with --serve=dra"}
		return inv
	}
	excluded := info.Excluded()
	gpus := slices.Clone(info.Inventory)
	slices.SortStableFunc(gpus, func(a, b nodestate.GPU) int { return cmp.Or(healthOrder(a, b), cmp.Compare(a.Index, b.Index)) })
	for _, g := range gpus {
		for _, d := range devicesOf(g, s.Driver, root) {
			_, taken := inv.Find(d.Name) // by a GPU that took the number of one that is gone
			if taken || excluded[d.UUID] || excluded[d.Parent] {
				continue
			}
			if problem.Reason != "" && d.Fault.Health == nodestate.Healthy {
				d.Fault = nodestate.Condition{Health: nodestate.Unhealthy, Reason: problem.Reason, Message: problem.Message, Action: problem.Action, Since: problem.Since}
			}
			d.API.Taints = taints(d.Fault)
			inv.Devices = append(inv.Devices, d)
		}
	}
	return inv
}

// healthOrder sorts missing GPUs last, so that a GPU that is there keeps its name.
func healthOrder(a, b nodestate.GPU) int {
	missing := func(g nodestate.GPU) int {
		if g.Reason == gpu.ReasonMissing {
			return 1
		}
		return 0
	}
	return cmp.Compare(missing(a), missing(b))
}

// Slices distributes the devices among ResourceSlices, 64 in each: the limit of a slice that has
// taints (resource.k8s.io/v1, ResourceSliceSpec), so that a taint moves no device to another slice.
// There is at least one slice, since an empty one shows that the driver runs.
func (i Inventory) Slices() []resourceslice.Slice {
	var all []resourceslice.Slice
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
