package prefer_test

import (
	"slices"

	"github.com/NVIDIA/go-gpuallocator/gpuallocator"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/deviceplugin/prefer"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

// wired is a node of n GPUs with NVLinks, on two NUMA nodes, each two GPUs on a
// PCIe switch.
func wired(n int, lanes func(a, b int) int) gpu.Snapshot {
	s := gputest.Node("l40s", n)
	i := 0
	for a := range n {
		for b := a + 1; b < n; b++ {
			if l := lanes(a, b); l > 0 {
				s.Links[i].Kind, s.Links[i].Lanes = gpu.LinkNVLink, l
			}
			i++
		}
	}
	return s
}

// bridged joins each size neighbours by NVLink bridges.
func bridged(size, lanes int) func(a, b int) int {
	return func(a, b int) int {
		if a/size == b/size {
			return lanes
		}
		return 0
	}
}

// meshed is the hybrid cube mesh of a DGX-1 with V100: lanes as NVIDIA's DGX-1
// system architecture white paper draws them.
func meshed(a, b int) int {
	return map[[2]int]int{
		{0, 1}: 1, {0, 2}: 1, {0, 3}: 2, {1, 2}: 2, {1, 3}: 1, {2, 3}: 2,
		{4, 5}: 1, {4, 6}: 1, {4, 7}: 2, {5, 6}: 2, {5, 7}: 1, {6, 7}: 2,
		{0, 4}: 2, {1, 5}: 2, {2, 6}: 1, {3, 7}: 1,
	}[[2]int{a, b}]
}

// machine is a common kind of node.
type machine struct {
	name string
	node gpu.Snapshot
}

// machines returns gputest's machines with n GPUs, and others for which the choice of
// GPUs matters.
func machines(n int) []machine {
	var all []machine
	for _, name := range gputest.Profiles() {
		all = append(all, machine{name, gputest.Node(name, n)})
	}
	all = append(all,
		machine{"bridged pairs", wired(n, bridged(2, 4))},
		machine{"bridged quads", wired(n, bridged(4, 6))},
		machine{"quads of pairs", wired(n, func(a, b int) int { return max(bridged(2, 4)(a, b), bridged(4, 2)(a, b)) })},
		machine{"two boards", wired(n, bridged(max(n/2, 1), 12))},
	)
	if n == 8 {
		all = append(all, machine{"cube mesh", wired(n, meshed)})
	}
	return all
}

// random draws a node with arbitrary links.
func random(t *rapid.T, least, most int) gpu.Snapshot {
	s := gputest.Node("l40s", rapid.IntRange(least, most).Draw(t, "gpus"))
	for i := range s.Devices {
		s.Devices[i].NUMANode = rapid.IntRange(-1, 1).Draw(t, "numa")
	}
	for i := range s.Links {
		s.Links[i].Kind = gpu.LinkKind(rapid.IntRange(0, 6).Draw(t, "kind"))
		if lanes := rapid.SampledFrom([]int{0, 0, 1, 2, 4, 18}).Draw(t, "lanes"); lanes > 0 {
			s.Links[i].Kind, s.Links[i].Lanes = gpu.LinkNVLink, lanes
		}
	}
	return s
}

// whole makes each GPU one device.
func whole(s gpu.Snapshot) []prefer.Device {
	var devices []prefer.Device
	for _, d := range s.Devices {
		devices = append(devices, prefer.Device{ID: string(d.UUID), GPU: d.UUID})
	}
	return devices
}

func chooser(s gpu.Snapshot) *prefer.Chooser {
	return prefer.New(prefer.NewTopology(s), whole(s), prefer.Options{})
}

func ids(s gpu.Snapshot) []string {
	var out []string
	for _, d := range s.Devices {
		out = append(out, string(d.UUID))
	}
	return out
}

func gpus(indexes ...int) []string {
	var out []string
	for _, i := range indexes {
		out = append(out, string(gputest.GPU(i)))
	}
	return out
}

// allocatable is the node as go-gpuallocator would find it.
func allocatable(s gpu.Snapshot) gpuallocator.DeviceList {
	var list gpuallocator.DeviceList
	for i, d := range s.Devices {
		g := &gpuallocator.Device{Index: i, Links: map[int][]gpuallocator.P2PLink{}}
		g.UUID = string(d.UUID)
		list = append(list, g)
	}
	for i, d := range s.Devices {
		for j, e := range s.Devices {
			for _, l := range s.Links {
				if l.A != d.UUID || l.B != e.UUID {
					continue
				}
				for _, kind := range linkTypes(l, d, e) {
					list[i].Links[j] = append(list[i].Links[j], typed(list[j], kind))
					list[j].Links[i] = append(list[j].Links[i], typed(list[i], kind))
				}
			}
		}
	}
	return list
}

// linkTypes are go-gpuallocator's P2PLinkTypes: 1 to 6 are PCIe levels, in the
// order of gpu.LinkKind, from 7 on 1 to 18 NVLinks. A pair with NVLinks has a
// PCIe level too, of which a Snapshot has only the NUMA nodes.
func linkTypes(l gpu.Link, a, b gpu.Device) []int {
	var types []int
	switch {
	case l.Kind != gpu.LinkUnknown && l.Kind != gpu.LinkNVLink:
		types = append(types, int(l.Kind))
	case a.NUMANode < 0 || b.NUMANode < 0:
	case a.NUMANode == b.NUMANode:
		types = append(types, 2)
	default:
		types = append(types, 1)
	}
	if l.Lanes > 0 {
		types = append(types, 6+l.Lanes)
	}
	return types
}

// typed makes a link of a type that has no name outside go-gpuallocator.
func typed(to *gpuallocator.Device, kind int) gpuallocator.P2PLink {
	l := gpuallocator.P2PLink{GPU: to}
	set(&l.Type, kind)
	return l
}

func set[T ~uint](at *T, value int) { *at = T(value) }

// worth returns go-gpuallocator's score of a set, as in its calculateGPUPairScore.
func worth(list gpuallocator.DeviceList, chosen []string) int {
	sum := 0
	for i, d := range list {
		for j, e := range list[:i] {
			if !slices.Contains(chosen, d.UUID) || !slices.Contains(chosen, e.UUID) {
				continue
			}
			for _, l := range d.Links[j] {
				if kind := int(l.Type); kind > 6 {
					sum += 100 * (kind - 6)
				} else {
					sum += 10 * kind
				}
			}
		}
	}
	return sum
}
