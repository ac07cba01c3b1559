package step

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// Reasons of this layer.
const (
	ReasonVGPUManager gpu.Reason = "VGPUManagerNotLoaded"
	ReasonVGPUDevices gpu.Reason = "VGPUDevicesMissing"
)

// checkVGPU checks layer vgpu: the node's GPUs are divided among virtual machines. The vGPU
// manager is loaded and there are vGPU devices, mediated (mdev) or virtual functions
// (SR-IOV) that have a type.
func checkVGPU(_ context.Context, node check.Node, _ check.Driver) check.Outcome {
	k := openKernel(node)
	if len(k.GPUs()) == 0 {
		return check.NoGPU("no NVIDIA GPU on the PCI bus: nothing to divide")
	}
	if missing := k.Missing("nvidia", "nvidia_vgpu_vfio"); len(missing) > 0 {
		return check.Fail(ReasonVGPUManager, "the vGPU manager is not loaded: no "+strings.Join(missing, ", "),
			"install the vGPU manager (the host's driver of NVIDIA vGPU, not the one for containers); dmesg says why it cannot be loaded")
	}
	mediated, functions := 0, 0
	for _, id := range k.Names("/sys/bus/mdev/devices") {
		// Skip types of other vendors; NVIDIA's are like nvidia-35.
		if strings.HasPrefix(k.Link(path.Join("/sys/bus/mdev/devices", id, "mdev_type")), "nvidia-") {
			mediated++
		}
	}
	for _, d := range k.PCI(vendorNVIDIA) {
		if kind := k.Read(path.Join(host.PCIDevices, d.Address, "nvidia/current_vgpu_type")); kind != "" && kind != "0" {
			functions++
		}
	}
	if mediated+functions == 0 {
		return check.Fail(ReasonVGPUDevices, "the vGPU manager is loaded, but there is no vGPU: no mediated device, and no virtual function with a type",
			"see the log of the vGPU device manager; where GPUs need SR-IOV, enable it first with sriov-manage -e ALL")
	}
	return check.NewPass(readiness.Proof{HostRoot: node.Root.Dir(), GPUs: len(k.GPUs()),
		Summary: fmt.Sprintf("%d vGPU devices: %d mediated, %d virtual functions", mediated+functions, mediated, functions)})
}
