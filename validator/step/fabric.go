package step

import (
	"context"
	"fmt"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// Reasons why checkFabric fails.
const (
	reasonFabricWaiting gpu.Reason = "FabricNotJoined"
	reasonFabricFailed  gpu.Reason = "FabricFailed"
)

// nvswitchClass is the PCI class of NVSwitches: "other bridge device" in the PCI Code and ID Assignment
// Specification. Old network cards of NVIDIA have this class, too.
const nvswitchClass = "0680"

// checkFabric is the validator's layer "fabric": the GPUs behind NVSwitches have joined their NVLink
// fabric, according to NVML. The fabric manager lets them join, or a subnet manager where the fabric
// reaches beyond one machine.
func checkFabric(_ context.Context, node check.Node, driver check.Driver) check.Outcome {
	var waiting, broken []string
	joined := 0
	for _, g := range driver.GPUs {
		switch g.FabricState {
		case gpu.JoiningNone: // it has no fabric, or does not report whether it has joined
		case gpu.JoiningDone:
			joined++
		case gpu.JoiningFailed:
			broken = append(broken, check.Name(g))
		default: // it is joining
			waiting = append(waiting, check.Name(g))
		}
	}
	switch {
	case len(broken) > 0:
		return check.Fail(reasonFabricFailed, "these GPUs failed to join the fabric: "+strings.Join(broken, "; "),
			"see the log of the fabric manager (journalctl -u nvidia-fabricmanager, or its container) and nvidia-smi -q, section Fabric; then reset the GPUs or reboot")
	case len(waiting) > 0:
		return check.Fail(reasonFabricWaiting, "not joined to the fabric: "+strings.Join(waiting, "; "),
			"start the fabric manager of the driver's version (systemctl start nvidia-fabricmanager, or its container); until then CUDA does not initialise")
	}
	proof := readiness.Proof{Driver: &driver.Info, HostRoot: node.Root.Dir(), DevRoot: driver.DevRoot, GPUs: joined}
	if joined > 0 {
		proof.Summary = fmt.Sprintf("%d of %d GPUs have joined the fabric", joined, len(driver.GPUs))
		return check.NewPass(proof)
	}
	if n := countSwitches(openKernel(node)); n > 0 {
		proof.Summary = fmt.Sprintf("%d NVSwitches; the driver reports no fabric state for these GPUs", n)
		return check.NewPass(proof, "GPUs before Hopper do not report whether they have joined; layer cuda proves that they compute")
	}
	proof.Summary = "no GPU here has a fabric to join"
	return check.NewPass(proof)
}

func countSwitches(k kernelView) (n int) {
	for _, d := range k.PCI(vendorNVIDIA) {
		if strings.HasPrefix(d.Class, nvswitchClass) {
			n++
		}
	}
	return n
}
