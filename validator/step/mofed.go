package step

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// Reasons of this layer.
const (
	reasonMOFEDContainer gpu.Reason = "MOFEDContainerNotReady"
	reasonMOFEDModule    gpu.Reason = "MOFEDModuleNotLoaded"
	reasonMOFEDDevice    gpu.Reason = "MOFEDDeviceMissing"
)

const (
	// The folder of a containerised driver, and the file that marks it ready.
	mofedRoot   = "/run/mellanox/drivers"
	mofedReady  = mofedRoot + "/.driver-ready"
	rdmaDevices = "/sys/class/infiniband"
)

// checkMOFED checks layer mofed, the driver of Mellanox network cards (MLNX_OFED, DOCA, or the
// kernel's own): its modules are loaded and it has RDMA devices. A node without such a card
// passes without the driver. nvidia-peermem builds on it.
func checkMOFED(_ context.Context, node check.Node, _ check.Driver) check.Outcome {
	k := openKernel(node)
	cards := k.PCI(vendorMellanox)
	if len(cards) == 0 {
		return check.NewPass(readiness.Proof{HostRoot: node.Root.Dir(), Summary: "no Mellanox device on the PCI bus: nothing to drive"})
	}
	if node.Visible(mofedReady) && k.Exists(mofedRoot) && !k.Exists(mofedReady) {
		return check.Fail(reasonMOFEDContainer, "the containerised driver has not finished: there is no "+mofedReady, "see the log of the MOFED driver's pod on this node (nvidia-network-operator)")
	}
	if missing := k.Missing("mlx5_core", "ib_core", "mlx5_ib"); len(missing) > 0 {
		return check.Fail(reasonMOFEDModule, fmt.Sprintf("%d Mellanox devices are on the PCI bus, but not loaded: %s", len(cards), strings.Join(missing, ", ")),
			"load them with modprobe mlx5_ib; dmesg says why they cannot be")
	}
	found := k.Names(rdmaDevices)
	if len(found) == 0 {
		return check.Fail(reasonMOFEDDevice, "the modules are loaded, but "+rdmaDevices+" has no RDMA device",
			"see dmesg for mlx5_core: firmware and driver may not fit each other, or RDMA is off for the card (devlink dev param)")
	}
	var notes []string
	for _, d := range found {
		if !hasActivePort(k, d) {
			notes = append(notes, d+" has no active port: see cable and subnet manager (ibstat "+d+")")
		}
	}
	return check.NewPass(readiness.Proof{HostRoot: node.Root.Dir(), Summary: "RDMA devices " + strings.Join(found, ", ")}, notes...)
}

func hasActivePort(k kernelView, device string) bool {
	for _, port := range k.Names(path.Join(rdmaDevices, device, "ports")) {
		if strings.HasSuffix(k.Read(path.Join(rdmaDevices, device, "ports", port, "state")), "ACTIVE") {
			return true
		}
	}
	return false
}
