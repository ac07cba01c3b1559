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

// Spec is what the daemon of one resource has to be like.
type Spec struct {
	Resource string
	Percent  int // of a GPU's threads that one client may use
	GPUs     []GPU
}

// GPU is one that is shared.
type GPU struct {
	UUID     gpu.UUID
	Index    int    // NVML's, which is CUDA's where CUDA is told to count by PCI address
	Replicas int    // its clients
	Limit    string // of memory for one client, "20480M"; "": the driver does not say how much there is
}

// same says that a daemon need not be started anew. Indexes count when it is
// started only: they move when a GPU before it is lost.
func (s Spec) same(other Spec) bool {
	return s.Resource == other.Resource && s.Percent == other.Percent && slices.EqualFunc(s.GPUs, other.GPUs, func(a, b GPU) bool {
		return a.UUID == b.UUID && a.Replicas == b.Replicas && a.Limit == b.Limit
	})
}

// Specs says which daemons there have to be, by the name of their resource.
//
// The limits are the reference's: each replica of a GPU has an equal part of its
// memory, and each of a resource an equal part of the threads, as that limit is one
// for the daemon. Where GPUs of a resource have not the same number of replicas, which
// the reference does not know, it is that of the GPU with most of them.
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
		clients := 0 // on a GPU
		for _, d := range r.Devices {
			if d.Replicas == 0 {
				continue
			}
			if d.Replica > 0 {
				continue
			}
			clients = max(clients, d.Replicas)
			one := GPU{UUID: d.GPU, Index: d.Index, Replicas: d.Replicas}
			if mib := memory[d.GPU] / uint64(d.Replicas) >> 20; mib > 0 {
				one.Limit = fmt.Sprintf("%dM", mib)
			}
			s.GPUs = append(s.GPUs, one)
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
