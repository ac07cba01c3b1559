package step

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// Reasons of this layer.
const (
	reasonVFIODriver     gpu.Reason = "VFIODriverMissing"
	reasonNotBoundToVFIO gpu.Reason = "GPUNotBoundToVFIO"
)

// vfioDrivers lists vfio-pci and its variant for Grace Hopper and its successors (Linux,
// drivers/vfio/pci/nvgrace-gpu).
var vfioDrivers = []string{"vfio-pci", "nvgrace_gpu_vfio_pci"}

// checkVFIO checks layer vfio: the node's GPUs are set aside for virtual machines. Each is
// bound to vfio-pci, or to the variant of it that its GPU has.
func checkVFIO(_ context.Context, node check.Node, _ check.Driver) check.Outcome {
	k := openKernel(node)
	gpus := k.GPUs()
	if len(gpus) == 0 {
		return check.NoGPU("no NVIDIA GPU on the PCI bus: nothing to set aside")
	}
	if !slices.ContainsFunc(vfioDrivers, func(d string) bool { return k.Exists("/sys/bus/pci/drivers/" + d) }) {
		return check.Fail(reasonVFIODriver, "the kernel has no driver vfio-pci", "load it with modprobe vfio-pci, and see that the IOMMU is on (intel_iommu=on or amd_iommu=on)")
	}
	var other []string
	for _, g := range gpus {
		if !slices.Contains(vfioDrivers, g.Driver) {
			has := "has no driver"
			if g.Driver != "" {
				has = "is bound to " + g.Driver
			}
			other = append(other, fmt.Sprintf("the GPU at %s %s", g.Address, has))
		}
	}
	if len(other) > 0 {
		return check.Fail(reasonNotBoundToVFIO, fmt.Sprintf("%d of %d GPUs are not set aside: %s", len(other), len(gpus), strings.Join(other, "; ")),
			"unbind each from its driver, and bind it: echo vfio-pci > /sys/bus/pci/devices/<address>/driver_override; echo <address> > /sys/bus/pci/drivers_probe")
	}
	return check.NewPass(readiness.Proof{HostRoot: node.Root.Dir(), GPUs: len(gpus), Summary: fmt.Sprintf("%d of %d GPUs are bound to vfio-pci", len(gpus), len(gpus))})
}
