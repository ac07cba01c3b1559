package gputest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
)

const gib = 1 << 30

// model holds the common properties of all GPUs of one product. Names, memory and
// compute capability are from NVIDIA's datasheets and CUDA's list of GPUs; lanes is
// the number of NVLinks of one GPU, which behind NVSwitch lead to every other one.
type model struct {
	product             string
	brand, architecture string // as go-nvlib spells them
	memory              uint64
	compute             gpu.Compute
	mig                 bool
	lanes               int
}

var (
	t4   = model{product: "Tesla T4", brand: "Nvidia", architecture: "Turing", memory: 15 * gib, compute: gpu.Compute{Major: 7, Minor: 5}}
	l40s = model{product: "NVIDIA L40S", brand: "Nvidia", architecture: "Ada Lovelace", memory: 45 * gib, compute: gpu.Compute{Major: 8, Minor: 9}}
	a100 = model{product: "NVIDIA A100-SXM4-80GB", brand: "Nvidia", architecture: "Ampere", memory: 80 * gib, compute: gpu.Compute{Major: 8}, mig: true, lanes: 12}
	h100 = model{product: "NVIDIA H100 80GB HBM3", brand: "Nvidia", architecture: "Hopper", memory: 80 * gib, compute: gpu.Compute{Major: 9}, mig: true, lanes: 18}
	h200 = model{product: "NVIDIA H200", brand: "Nvidia", architecture: "Hopper", memory: 141 * gib, compute: gpu.Compute{Major: 9}, mig: true, lanes: 18}
	b200 = model{product: "NVIDIA B200", brand: "Nvidia", architecture: "Blackwell", memory: 180 * gib, compute: gpu.Compute{Major: 10}, mig: true, lanes: 18}
	v100 = model{product: "Tesla V100-SXM3-32GB", brand: "Tesla", architecture: "Volta", memory: 32 * gib, compute: gpu.Compute{Major: 7}, lanes: 6}
)

// profile describes a node: its models in turn, and its default number of GPUs.
type profile struct {
	models []model
	count  int
	mig    []string // layout of every GPU
}

var profiles = map[string]profile{
	"t4":        {models: []model{t4}, count: 1},
	"l40s":      {models: []model{l40s}, count: 4},
	"a100-80gb": {models: []model{a100}, count: 8},
	"a100-mig":  {models: []model{a100}, count: 8, mig: []string{"3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"}},
	"h100-sxm":  {models: []model{h100}, count: 8},
	"h200-sxm":  {models: []model{h200}, count: 8},
	"b200":      {models: []model{b200}, count: 8},
	"dgx-2":     {models: []model{v100}, count: 16},
	"mixed":     {models: []model{a100, h100, l40s, t4}, count: 4},
}

// Profiles lists the names that Node knows, sorted.
func Profiles() []string {
	return slices.Sorted(maps.Keys(profiles))
}

// Node returns the snapshot of a healthy node with n GPUs (n ≤ 0: as many as
// such a machine has) of the given profile, on two NUMA nodes, with all links.
// GPUs are named by GPU(i). It panics on a profile that is not in Profiles:
// that is a mistake in the test.
func Node(name string, n int) gpu.Snapshot {
	p, ok := profiles[name]
	if !ok {
		panic(fmt.Sprintf("gputest: no profile %q; there are %s", name, strings.Join(Profiles(), ", ")))
	}
	if n <= 0 {
		n = p.count
	}
	s := gpu.Snapshot{Driver: gpu.Driver{Version: "580.95.05", CUDAVersion: "13.0"}}
	for i := range n {
		m := p.models[i%len(p.models)]
		d := gpu.Device{
			Index: i, UUID: GPU(i), Product: m.product, Minor: i,
			PCI:   gpu.PCIAddress(fmt.Sprintf("0000:%02x:00.0", 0x10+i)),
			Brand: m.brand, Architecture: m.architecture,
			MemoryBytes: m.memory, NUMANode: numa(i, n), Compute: m.compute, MIGCapable: m.mig,
		}
		if len(p.mig) > 0 {
			d = WithMIG(d, p.mig...)
		}
		for j, other := range s.Devices {
			s.Links = append(s.Links, link(p.models[j%len(p.models)], m, other, d))
		}
		s.Devices = append(s.Devices, d)
	}
	return s.Sorted()
}

// GPU returns the UUID of the GPU with index i of every Node.
func GPU(i int) gpu.UUID { return gpu.UUID(fmt.Sprintf("GPU-00000000-0000-4000-8000-%012x", i)) }

// WithMIG returns the GPU in MIG mode, partitioned by the layout: profile names such as
// "1g.10gb". Without a layout MIG mode is on and there are no MIG devices.
func WithMIG(d gpu.Device, layout ...string) gpu.Device {
	d.MIGEnabled, d.MIG = true, nil
	for i, p := range layout {
		var slices, gigabytes uint64
		// A layout of another form has no size; its reader will report that.
		_, _ = fmt.Sscanf(p, "%dg.%dgb", &slices, &gigabytes)
		d.MIG = append(d.MIG, gpu.MIGDevice{
			Index: i, UUID: gpu.UUID(fmt.Sprintf("MIG-%08x-0000-4000-8000-%012x", d.Index, i)),
			Profile: p, GPUInstance: i + 1, MemoryBytes: gigabytes * gib,
			// As an A100's: 14 multiprocessors and a copy engine for each slice.
			Attributes: gpu.Attributes{Multiprocessors: 14 * int(slices), CopyEngines: int(slices)},
		})
	}
	return d
}

// numa puts the first half of the GPUs on NUMA node 0; one GPU is on node 0.
func numa(i, n int) int { return i * 2 / max(n, 2) }

func link(a, b model, x, y gpu.Device) gpu.Link {
	l := gpu.Link{A: x.UUID, B: y.UUID, Kind: gpu.LinkSystem}
	switch {
	case a.lanes > 0 && a == b:
		l.Kind, l.Lanes = gpu.LinkNVLink, a.lanes
	case x.NUMANode != y.NUMANode:
	case x.Index/2 == y.Index/2: // pairs share a PCIe switch
		l.Kind = gpu.LinkSingle
	default:
		l.Kind = gpu.LinkNode
	}
	return l
}
