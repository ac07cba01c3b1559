package cuda

import (
	"context"
	"fmt"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/sample"
)

// run runs vectorAdd on one GPU or MIG device.
func run(ctx context.Context, node check.Node, driver check.Driver, u check.Unit) sample.Result {
	r := sample.Run(ctx, sample.Job{
		Name: "vectoradd", Path: node.VectorAdd, Devices: []gpu.UUID{u.UUID}, LibDir: driver.LibDir, Timeout: node.CUDATimeout,
	})
	if r.Outcome == sample.Passed && r.Answer.Simulated != driver.Info.Simulated {
		r.Outcome = sample.Failed
		r.Message = fmt.Sprintf("libcuda and libnvidia-ml are of different drivers: simulated is %t for one, %t for the other", r.Answer.Simulated, driver.Info.Simulated)
	}
	return r
}
