package health

import (
	"cmp"
	"slices"

	"github.com/gpuready/gpuready/internal/gpu"
)

// nameless is a GPU that is too broken to tell its UUID, and where it may be.
type nameless struct {
	fault         gpu.Fault
	at            gpu.PCIAddress // "": it is not known, but
	after, before gpu.PCIAddress // it lies between these; "": no such bound
}

// namelessIn returns those of a snapshot. The driver numbers GPUs by their PCI
// addresses, so that the numbers next to it bound where one is; not where the others
// contradict that.
func namelessIn(snap gpu.Snapshot) []nameless {
	var known []gpu.Device // where they are
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
			n.fault = gpu.Fault{Reason: gpu.ReasonUnreadable, Message: "it does not tell its UUID"}
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

// maybe says whether it can be the GPU that was at an address, "" where that is not
// known.
func (n nameless) maybe(pci gpu.PCIAddress) bool {
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
