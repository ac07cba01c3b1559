package mps

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
)

// Spec describes the daemon of one resource.
type Spec struct {
	Resource string // "nvidia.com/gpu.shared"
	Percent  int    // share of a GPU's threads for one client
	GPUs     []GPU
}

// GPU is a shared GPU.
type GPU struct {
	UUID     gpu.UUID
	Index    int    // NVML's; also CUDA's if that numbers GPUs by PCI address
	Replicas int    // number of clients
	Limit    string // memory of one client, "20480M"; "": the driver does not report the GPU's memory
}

// compatible reports whether a daemon can keep running with the other Spec. Indices matter
// only at its start: they move when a GPU with a lower index is lost.
func (s Spec) compatible(other Spec) bool {
	return s.Resource == other.Resource && s.Percent == other.Percent && slices.EqualFunc(s.GPUs, other.GPUs, func(a, b GPU) bool {
		return a.UUID == b.UUID && a.Replicas == b.Replicas && a.Limit == b.Limit
	})
}

// Specs returns the daemons that must run, by the name of their resource.
//
// The limits are NVIDIA's. Each replica of a GPU gets an equal part of its
// memory. Each replica of a resource gets an equal part of the threads, since that
// limit applies to the whole daemon. If GPUs of a resource differ in their number of
// replicas, which NVIDIA's device plugin does not support, the largest number counts.
func Specs(c *config.Config, p plan.Plan, h health.State) []Spec {
	if strategy, _ := c.Sharing.Active(); strategy != config.SharingMPS {
		return nil
	}
	memory := map[gpu.UUID]uint64{}
	for _, g := range h.GPUs() {
		memory[g.Device.UUID] = g.Device.MemoryBytes
	}
	var all []Spec
	for _, r := range p.Resources {
		s := Spec{Resource: r.Name}
		clients := 0 // on one GPU
		for _, d := range r.Devices {
			if d.Replicas == 0 {
				continue
			}
			if d.Replica > 0 {
				continue
			}
			clients = max(clients, d.Replicas)
			shared := GPU{UUID: d.GPU, Index: d.Index, Replicas: d.Replicas}
			if mib := memory[d.GPU] / uint64(d.Replicas) >> 20; mib > 0 {
				shared.Limit = fmt.Sprintf("%dM", mib)
			}
			s.GPUs = append(s.GPUs, shared)
		}
		if len(s.GPUs) == 0 {
			continue
		}
		s.Percent = 100 / clients
		slices.SortFunc(s.GPUs, func(a, b GPU) int { return cmp.Compare(a.UUID, b.UUID) })
		all = append(all, s)
	}
	return all
}
