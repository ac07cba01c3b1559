package health

import (
	"cmp"
	"slices"

	"github.com/gpuready/gpuready/internal/gpu"
)

// nameless is a GPU that is too broken to report its UUID, and where it may be.
type nameless struct {
	fault         gpu.Fault
	at            gpu.PCIAddress // "": unknown, see the bounds
	after, before gpu.PCIAddress // bounds of its address; "": no such bound
}

// namelessIn returns the nameless GPUs of a snapshot. The driver numbers GPUs by PCI
// address, so the neighbors by number bound where one is, unless other devices
// contradict that order.
func namelessIn(snap gpu.Snapshot) []nameless {
	var known []gpu.Device // devices whose address is known
	for _, d := range snap.Devices {
		if d.PCI != "" {
			known = append(known, d)
		}
	}
	ordered := slices.IsSortedFunc(known, func(a, b gpu.Device) int { return compareAddress(a.PCI, b.PCI) })
	var list []nameless
	for _, d := range snap.Devices {
		if d.UUID != "" {
			continue
		}
		n := nameless{fault: d.Fault, at: d.PCI}
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

// couldBe reports whether it can be the GPU at an address, or "" for an unknown
// address.
func (n nameless) couldBe(pci gpu.PCIAddress) bool {
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
