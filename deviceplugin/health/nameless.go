package health

import (
	"cmp"
	"slices"

	"github.com/gpuready/gpuready/internal/gpu"
)

// unnamedGPU is a GPU that is too broken to report its UUID, with what is known of its address.
type unnamedGPU struct {
	fault         gpu.Fault
	at            gpu.PCIAddress // "": unknown, see the bounds
	after, before gpu.PCIAddress // the address lies between these; "": no such bound
}

// listUnnamed returns the GPUs of a snapshot that have no UUID. The driver numbers GPUs by PCI
// address, so the neighbors by number bound where one is, unless other devices
// contradict that order.
func listUnnamed(snap gpu.Snapshot) []unnamedGPU {
	var known []gpu.Device // devices whose address is known
	for _, d := range snap.Devices {
		if d.PCI != "" {
			known = append(known, d)
		}
	}
	ordered := slices.IsSortedFunc(known, func(a, b gpu.Device) int { return compareAddress(a.PCI, b.PCI) })
	var list []unnamedGPU
	for _, d := range snap.Devices {
		if d.UUID != "" {
			continue
		}
		n := unnamedGPU{fault: d.Fault, at: d.PCI}
		if n.fault.Reason == "" {
			n.fault = gpu.Fault{Reason: gpu.ReasonUnreadable, Message: "its UUID cannot be read"}
		}
		for _, other := range known {
			switch {
			case !ordered || d.PCI != "":
			case other.Index < d.Index:
				n.after = other.PCI
			case n.before == "":
				n.before = other.PCI
			}
		}
		list = append(list, n)
	}
	return list
}

// couldBe reports whether n can be the GPU at an address; "": its address is not known.
func (n unnamedGPU) couldBe(pci gpu.PCIAddress) bool {
	switch {
	case pci == "":
		return true
	case n.at != "":
		return n.at == pci
	}
	return (n.after == "" || compareAddress(n.after, pci) < 0) && (n.before == "" || compareAddress(pci, n.before) < 0)
}

// compareAddress orders addresses by number: a domain may have more digits than four.
func compareAddress(a, b gpu.PCIAddress) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}
