// Package mofed checks the driver of Mellanox network cards (MLNX_OFED, DOCA, or the
// kernel's own): its modules are loaded and it has RDMA devices. It comes before the
// GPUs' driver, whose nvidia-peermem builds on it.
package mofed

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/step/kernel"
)

// Reasons of this layer.
const (
	ReasonContainer gpu.Reason = "MOFEDContainerNotReady"
	ReasonModule    gpu.Reason = "MOFEDModuleNotLoaded"
	ReasonDevice    gpu.Reason = "MOFEDDeviceMissing"
)

const (
	// The folder of a containerised driver, and the file that marks it ready.
	container = "/run/mellanox/drivers"
	ready     = container + "/.driver-ready"
	devices   = "/sys/class/infiniband"
)

// Check proves the layer. A node without such a card passes without the driver.
func Check(_ context.Context, node check.Node, _ check.Driver) check.Outcome {
	k := kernel.Of(node)
	cards := k.PCI(kernel.Mellanox)
	if len(cards) == 0 {
		return check.Pass(readiness.Proof{HostRoot: node.Root.Dir(), Summary: "no Mellanox device on the PCI bus: nothing to drive"})
	}
	if node.Visible(ready) && k.Exists(container) && !k.Exists(ready) {
		return check.Fail(ReasonContainer, "the containerised driver has not finished: there is no "+ready, "see the log of the MOFED driver's pod on this node (nvidia-network-operator)")
	}
	if missing := k.Missing("mlx5_core", "ib_core", "mlx5_ib"); len(missing) > 0 {
		return check.Fail(ReasonModule, fmt.Sprintf("%d Mellanox devices are on the PCI bus, but not loaded: %s", len(cards), strings.Join(missing, ", ")),
			"load them with modprobe mlx5_ib; dmesg says why they cannot be")
	}
	found := k.Names(devices)
	if len(found) == 0 {
		return check.Fail(ReasonDevice, "the modules are loaded, but "+devices+" has no RDMA device",
			"see dmesg for mlx5_core: firmware and driver may not fit each other, or RDMA is off for the card (devlink dev param)")
	}
	var notes []string
	for _, d := range found {
		if !active(k, d) {
			notes = append(notes, d+" has no active port: see cable and subnet manager (ibstat "+d+")")
		}
	}
	return check.Pass(readiness.Proof{HostRoot: node.Root.Dir(), Summary: "RDMA devices " + strings.Join(found, ", ")}, notes...)
}

func active(k kernel.View, device string) bool {
	for _, port := range k.Names(path.Join(devices, device, "ports")) {
		if strings.HasSuffix(k.Read(path.Join(devices, device, "ports", port, "state")), "ACTIVE") {
			return true
		}
	}
	return false
}
