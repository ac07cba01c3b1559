package step

import (
	"context"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// Reasons of layers gds, gdrcopy and peermem.
const (
	reasonGDSModule     gpu.Reason = "GDSModuleNotLoaded"
	reasonGDSDevice     gpu.Reason = "GDSDeviceMissing"
	reasonGDRCopyModule gpu.Reason = "GDRCopyModuleNotLoaded"
	reasonGDRCopyDevice gpu.Reason = "GDRCopyDeviceMissing"
	reasonPeermemModule gpu.Reason = "PeermemModuleNotLoaded"
)

// deviceModule describes a layer that is a kernel module with a character device.
type deviceModule struct {
	module       string // with underscores
	node, driver string // below /dev, and in /proc/devices
	summary      string
	notLoaded    gpu.Reason
	install      string // the action for it
	noDevice     gpu.Reason
	remake       string // the action for it
}

// gds is GPUDirect Storage: storage reaches GPUs' memory.
var gds = deviceModule{
	module: "nvidia_fs", node: "nvidia-fs0", driver: "nvidia-fs", summary: "nvidia_fs is loaded and has its devices, ",
	notLoaded: reasonGDSModule,
	install:   "install nvidia-fs for the running kernel and driver, and load it with modprobe nvidia-fs; dmesg says why it cannot be",
	noDevice:  reasonGDSDevice,
	remake:    "load it anew: modprobe -r nvidia-fs && modprobe nvidia-fs; udev makes its nodes",
}

// gdrcopy is GDRCopy: the CPU maps GPUs' memory.
var gdrcopy = deviceModule{
	module: "gdrdrv", node: "gdrdrv", driver: "gdrdrv", summary: "gdrdrv is loaded and has its device, ",
	notLoaded: reasonGDRCopyModule,
	install:   "install gdrcopy's module for the running kernel and driver, and load it with modprobe gdrdrv; dmesg says why it cannot be",
	noDevice:  reasonGDRCopyDevice,
	remake:    "make the node with the number that /proc/devices has: rm -f /dev/gdrdrv && mknod -m 666 /dev/gdrdrv c $(awk '$2==\"gdrdrv\"{print $1}' /proc/devices) 0",
}

// check checks that the module is loaded and has its device.
func (m deviceModule) check(_ context.Context, node check.Node, driver check.Driver) check.Outcome {
	k := openKernel(node)
	if !k.Loaded(m.module) {
		return check.Fail(m.notLoaded, "the kernel module "+m.module+" is not loaded", m.install)
	}
	if wrong := k.Device(m.node, m.driver); wrong != "" {
		return check.Fail(m.noDevice, m.module+" is loaded, but "+wrong, m.remake)
	}
	return check.NewPass(moduleProof(node, driver, m.summary+k.Version(m.module)))
}

// checkPeermem checks that network cards can reach GPUs' memory by the module nvidia-peermem
// (GPUDirect RDMA): it and the module that it registers with are loaded.
func checkPeermem(_ context.Context, node check.Node, driver check.Driver) check.Outcome {
	k := openKernel(node)
	if missing := k.Missing("ib_core", "nvidia_peermem"); len(missing) > 0 {
		return check.Fail(reasonPeermemModule, "not loaded: "+strings.Join(missing, ", "),
			"load the network cards' driver first (ib_core), then modprobe nvidia-peermem; where applications use DMA-BUF (open kernel modules, Linux 5.12 and newer) it is not needed: do not ask for it")
	}
	return check.NewPass(moduleProof(node, driver, "nvidia_peermem is loaded, "+k.Version("nvidia_peermem")))
}

func moduleProof(node check.Node, driver check.Driver, summary string) readiness.Proof {
	return readiness.Proof{Driver: &driver.Info, HostRoot: node.Root.Dir(), DevRoot: driver.DevRoot, GPUs: len(driver.Units()), Summary: summary}
}
