// Package gdrcopy checks that the CPU can map GPUs' memory (GDRCopy): the module
// gdrdrv is loaded and has its device.
package gdrcopy

import (
	"context"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/step/kernel"
)

// Reasons of this layer.
const (
	ReasonModule gpu.Reason = "GDRCopyModuleNotLoaded"
	ReasonDevice gpu.Reason = "GDRCopyDeviceMissing"
)

// Check proves the layer.
func Check(_ context.Context, node check.Node, driver check.Driver) check.Outcome {
	k := kernel.Of(node)
	if !k.Loaded("gdrdrv") {
		return check.Fail(ReasonModule, "the kernel module gdrdrv is not loaded",
			"install gdrcopy's module for the running kernel and driver, and load it with modprobe gdrdrv; dmesg says why it cannot be")
	}
	if wrong := k.Device("gdrdrv", "gdrdrv"); wrong != "" {
		return check.Fail(ReasonDevice, "gdrdrv is loaded, but "+wrong,
			"make the node with the number that /proc/devices has: rm -f /dev/gdrdrv && mknod -m 666 /dev/gdrdrv c $(awk '$2==\"gdrdrv\"{print $1}' /proc/devices) 0")
	}
	return check.Pass(readiness.Proof{Driver: &driver.Info, HostRoot: node.Root.Dir(), DevRoot: driver.DevRoot, GPUs: len(driver.Units()),
		Summary: "gdrdrv is loaded and has its device, " + k.Version("gdrdrv")})
}
