// Package peermem checks that network cards can reach GPUs' memory by the module
// nvidia-peermem (GPUDirect RDMA).
package peermem

import (
	"context"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/step/kernel"
)

// ReasonModule is the reason of this layer.
const ReasonModule gpu.Reason = "PeermemModuleNotLoaded"

// Check proves the layer: the module and the module that it registers with are loaded.
func Check(_ context.Context, node check.Node, driver check.Driver) check.Outcome {
	k := kernel.Of(node)
	if missing := k.Missing("ib_core", "nvidia_peermem"); len(missing) > 0 {
		return check.Fail(ReasonModule, "not loaded: "+strings.Join(missing, ", "),
			"load the network cards' driver first (ib_core), then modprobe nvidia-peermem; where applications use DMA-BUF (open kernel modules, Linux 5.12 and newer) it is not needed: do not ask for it")
	}
	return check.Pass(readiness.Proof{Driver: &driver.Info, HostRoot: node.Root.Dir(), DevRoot: driver.DevRoot, GPUs: len(driver.Units()),
		Summary: "nvidia_peermem is loaded, " + k.Version("nvidia_peermem")})
}
