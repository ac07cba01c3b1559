// Package vfio checks that the node's GPUs are set aside for virtual machines: each
// is bound to vfio-pci, or to the variant of it that its GPU has.
package vfio

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/step/kernel"
)

// Reasons of this layer.
const (
	ReasonModule gpu.Reason = "VFIODriverMissing"
	ReasonBound  gpu.Reason = "GPUNotBoundToVFIO"
)

// drivers lists vfio-pci and its variant for Grace Hopper and its successors (Linux,
// drivers/vfio/pci/nvgrace-gpu).
var drivers = []string{"vfio-pci", "nvgrace_gpu_vfio_pci"}

// Check proves the layer.
func Check(_ context.Context, node check.Node, _ check.Driver) check.Outcome {
	k := kernel.Of(node)
	gpus := k.GPUs()
	if len(gpus) == 0 {
		return check.NoGPU("no NVIDIA GPU on the PCI bus: nothing to set aside")
	}
	if !slices.ContainsFunc(drivers, func(d string) bool { return k.Exists("/sys/bus/pci/drivers/" + d) }) {
		return check.Fail(ReasonModule, "the kernel has no driver vfio-pci", "load it with modprobe vfio-pci, and see that the IOMMU is on (intel_iommu=on or amd_iommu=on)")
	}
	var other []string
	for _, g := range gpus {
		if !slices.Contains(drivers, g.Driver) {
			has := "has no driver"
			if g.Driver != "" {
				has = "is bound to " + g.Driver
			}
			other = append(other, fmt.Sprintf("the GPU at %s %s", g.Address, has))
		}
	}
	if len(other) > 0 {
		return check.Fail(ReasonBound, fmt.Sprintf("%d of %d GPUs are not set aside: %s", len(other), len(gpus), strings.Join(other, "; ")),
			"unbind each from its driver, and bind it: echo vfio-pci > /sys/bus/pci/devices/<address>/driver_override; echo <address> > /sys/bus/pci/drivers_probe")
	}
	return check.Pass(readiness.Proof{HostRoot: node.Root.Dir(), GPUs: len(gpus), Summary: fmt.Sprintf("%d of %d GPUs are bound to vfio-pci", len(gpus), len(gpus))})
}
