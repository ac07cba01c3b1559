package gpu

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Clone returns a Snapshot that shares nothing with s.
func (s Snapshot) Clone() Snapshot {
	s.Devices = slices.Clone(s.Devices)
	for i := range s.Devices {
		d := &s.Devices[i]
		d.MIG, d.Profiles, d.Instances, d.Notes = slices.Clone(d.MIG), slices.Clone(d.Profiles), slices.Clone(d.Instances), slices.Clone(d.Notes)
	}
	s.Links = slices.Clone(s.Links)
	return s
}

// Sorted returns a copy of s in the documented order of a Snapshot: devices and MIG
// devices by index, and the ends of each link and the links themselves in the order
// of the devices.
func (s Snapshot) Sorted() Snapshot {
	s = s.Clone()
	slices.SortStableFunc(s.Devices, func(a, b Device) int { return cmp.Compare(a.Index, b.Index) })
	place := make(map[UUID]int, len(s.Devices))
	for i, d := range s.Devices {
		place[d.UUID] = i
		slices.SortStableFunc(d.MIG, func(a, b MIGDevice) int { return cmp.Compare(a.Index, b.Index) })
	}
	for i, l := range s.Links {
		if place[l.A] > place[l.B] {
			s.Links[i].A, s.Links[i].B = l.B, l.A
		}
	}
	slices.SortStableFunc(s.Links, func(x, y Link) int {
		return cmp.Or(cmp.Compare(place[x.A], place[y.A]), cmp.Compare(place[x.B], place[y.B]))
	})
	return s
}

// Equal reports whether two snapshots are equal, with devices and links in the same order.
func (s Snapshot) Equal(o Snapshot) bool {
	return s.Driver == o.Driver &&
		slices.EqualFunc(s.Devices, o.Devices, Device.Equal) &&
		slices.Equal(s.Links, o.Links)
}

// Equal reports whether two devices are equal in every field.
func (d Device) Equal(o Device) bool {
	return d.Index == o.Index && d.UUID == o.UUID && d.Product == o.Product && d.PCI == o.PCI &&
		d.Brand == o.Brand && d.Architecture == o.Architecture &&
		d.Minor == o.Minor && d.MemoryBytes == o.MemoryBytes && d.NUMANode == o.NUMANode &&
		d.Compute == o.Compute && d.ComputeMode == o.ComputeMode && d.NVLink == o.NVLink && d.MIGCapable == o.MIGCapable && d.MIGEnabled == o.MIGEnabled &&
		d.AddressingMode == o.AddressingMode && d.Fault == o.Fault && d.Fabric == o.Fabric && d.FabricState == o.FabricState && slices.Equal(d.MIG, o.MIG) &&
		d.Recovery == o.Recovery && d.Remap == o.Remap && slices.Equal(d.Notes, o.Notes) && slices.Equal(d.Instances, o.Instances) && slices.EqualFunc(d.Profiles, o.Profiles, PartitionProfile.Equal)
}

// String returns the capability as CUDA writes it: "9.0".
func (c Compute) String() string { return fmt.Sprintf("%d.%d", c.Major, c.Minor) }

// String returns the part of the NVLink fabric that the GPU has joined, as NVIDIA's label gpu.clique has it:
// the cluster's UUID, a dot, and the number of the clique. It is "" if the fabric does not reach beyond
// the machine.
func (f Fabric) String() string {
	c := f.Cluster
	if c == ([16]byte{}) {
		return ""
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x.%d", c[:4], c[4:6], c[6:8], c[8:10], c[10:], f.Clique)
}

// ParseFabric reads what String returns. Any other text is the zero Fabric.
func ParseFabric(text string) (f Fabric) {
	cluster, clique, _ := strings.Cut(text, ".")
	data, err := hex.DecodeString(strings.ReplaceAll(cluster, "-", ""))
	n, badClique := strconv.ParseUint(clique, 10, 32)
	if err != nil || badClique != nil || len(data) != len(f.Cluster) {
		return Fabric{}
	}
	return Fabric{Cluster: [16]byte(data), Clique: uint32(n)}
}

// String returns "reason: message", the reason alone if there is no message, and "none" for the zero Fault.
func (f Fault) String() string {
	switch {
	case f == Fault{}:
		return "none"
	case f.Message == "":
		return string(f.Reason)
	default:
		return string(f.Reason) + ": " + f.Message
	}
}

// linkNames holds the names in the order of the kinds.
var linkNames = []string{"X", "SYS", "NODE", "PHB", "PXB", "PIX", "BOARD", "NVLINK"}

// String returns the kind of link as nvidia-smi topo -m names it, with three exceptions. X
// is an unknown link. BOARD is a link on one board, for which nvidia-smi has no name. NVLINK
// stands for NV1, NV2 and so on: Link.Lanes has the number.
func (k LinkKind) String() string { return name(linkNames, int(k)) }

// eventNames holds the names in the order of the EventKinds.
var eventNames = []string{"", "XID", "ECC", "Lost", "Changed", "Unwatched", "Gap"}

// String returns the kind of event in one word, or its number if it is unknown.
func (k EventKind) String() string { return name(eventNames, int(k)) }

func name(names []string, i int) string {
	if i < 0 || i >= len(names) || names[i] == "" {
		return strconv.Itoa(i)
	}
	return names[i]
}
