// Package gds checks that storage can reach GPUs' memory (GPUDirect Storage): the
// module nvidia-fs is loaded and has its devices.
package gds

import (
	"context"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/step/kernel"
)

// Reasons of this layer.
const (
	ReasonModule gpu.Reason = "GDSModuleNotLoaded"
	ReasonDevice gpu.Reason = "GDSDeviceMissing"
)

// Check proves the layer.
func Check(_ context.Context, node check.Node, driver check.Driver) check.Outcome {
	k := kernel.Of(node)
	if !k.Loaded("nvidia_fs") {
		return check.Fail(ReasonModule, "the kernel module nvidia_fs is not loaded",
			"install nvidia-fs for the running kernel and driver, and load it with modprobe nvidia-fs; dmesg says why it cannot be")
	}
	if wrong := k.Device("nvidia-fs0", "nvidia-fs"); wrong != "" {
		return check.Fail(ReasonDevice, "nvidia_fs is loaded, but "+wrong, "load it anew: modprobe -r nvidia-fs && modprobe nvidia-fs; udev makes its nodes")
	}
	return check.Pass(readiness.Proof{Driver: &driver.Info, HostRoot: node.Root.Dir(), DevRoot: driver.DevRoot, GPUs: len(driver.Units()),
		Summary: "nvidia_fs is loaded and has its devices, " + k.Version("nvidia_fs")})
}
