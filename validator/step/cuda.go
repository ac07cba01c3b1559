package step

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/probe"
)

// Reasons of this layer.
const (
	reasonSampleMissing gpu.Reason = "SampleMissing"
	reasonSampleFailed  gpu.Reason = "CUDASampleFailed"
	reasonSampleTimeout gpu.Reason = "CUDASampleTimeout"
	reasonNoMIGDevices  gpu.Reason = "NoMIGDevices"
)

// checkCUDA checks layer cuda: every GPU and MIG device computes. It runs the vectorAdd sample,
// a separate program, on each of them, even if one fails.
func checkCUDA(ctx context.Context, node check.Node, driver check.Driver) check.Outcome {
	if node.VectorAdd == "" {
		return check.Fail(reasonSampleMissing, "the sample vectoradd is neither beside gpu-validator nor in PATH",
			"install it there, or name it with --vectoradd")
	}
	units := driver.Units()
	if len(units) == 0 && driver.OnDemand {
		return check.NewPass(readiness.Proof{
			Driver: &driver.Info, HostRoot: node.Root.Dir(), DevRoot: driver.DevRoot, Summary: "every GPU is partitioned as claims need it: vectorAdd was run on none",
		})
	}
	if len(units) == 0 {
		return check.Fail(reasonNoMIGDevices, "every GPU is in MIG mode and none has MIG devices", "create MIG devices, or turn MIG mode off")
	}
	results := make([]probe.SampleResult, len(units))
	var group errgroup.Group
	group.SetLimit(max(1, node.CUDAConcurrency))
	for i, u := range units {
		group.Go(func() error {
			results[i] = runVectorAdd(ctx, node, driver, u)
			return nil
		})
	}
	// Errors are in the results, not in the group, so that all GPUs are tried.
	_ = group.Wait()
	return judgeSamples(node, driver, units, results)
}

func judgeSamples(node check.Node, driver check.Driver, units []check.Unit, results []probe.SampleResult) check.Outcome {
	proof := readiness.Proof{
		Driver: &driver.Info, HostRoot: node.Root.Dir(), DevRoot: driver.DevRoot,
		GPUs: len(units), Seconds: map[gpu.UUID]float64{},
	}
	var bad []string
	reason := reasonSampleFailed
	for i, r := range results {
		if r.Outcome != probe.SamplePassed {
			bad = append(bad, units[i].Name+": "+r.Message)
			if r.Outcome == probe.SampleNoResult && len(bad) == 1 {
				reason = reasonSampleTimeout
			}
			continue
		}
		proof.Seconds[units[i].UUID] = r.Elapsed.Seconds()
	}
	if len(bad) > 0 {
		message := "vectorAdd: " + strings.Join(bad, "; ")
		if len(units) > 1 {
			message = fmt.Sprintf("vectorAdd failed on %d of %d GPUs: %s", len(bad), len(units), strings.Join(bad, "; "))
		}
		return check.Fail(reason, message, sampleAction(units, results))
	}
	slowest := slices.MaxFunc(results, func(a, b probe.SampleResult) int { return int(a.Elapsed - b.Elapsed) })
	proof.Summary = fmt.Sprintf("vectorAdd on %s, slowest %.2f s", describeTested(driver, units), slowest.Elapsed.Seconds())
	return check.NewPass(proof)
}

// describeTested counts the GPUs that were tested among those that the driver knows:
// "7 of 8 GPUs, of which 2 as 4 MIG devices".
func describeTested(driver check.Driver, units []check.Unit) string {
	gpus, divided, migs := map[gpu.UUID]bool{}, map[gpu.UUID]bool{}, 0
	for _, u := range units {
		gpus[u.GPU.UUID] = true
		if u.UUID != u.GPU.UUID {
			divided[u.GPU.UUID] = true
			migs++
		}
	}
	text := fmt.Sprintf("%d of %d GPUs", len(gpus), len(driver.GPUs))
	if migs > 0 {
		text += fmt.Sprintf(", of which %d as %s", len(divided), countOf(migs, "MIG device"))
	}
	return text
}

// sampleAction returns what to do about results of which one or more failed.
func sampleAction(units []check.Unit, results []probe.SampleResult) string {
	for _, r := range results {
		if r.Outcome == probe.SampleNoResult {
			return "a GPU that hangs needs a reset; look for Xid lines in dmesg; give more time with --cuda-timeout"
		}
	}
	first := slices.IndexFunc(results, func(r probe.SampleResult) bool { return r.Outcome != probe.SamplePassed })
	return fmt.Sprintf("repeat it: CUDA_VISIBLE_DEVICES=%s vectoradd; if it fails again, take the GPU out of service", units[first].UUID)
}

// runVectorAdd runs vectorAdd on one GPU or MIG device.
func runVectorAdd(ctx context.Context, node check.Node, driver check.Driver, u check.Unit) probe.SampleResult {
	r := probe.RunSample(ctx, probe.SampleJob{
		Name: "vectoradd", Path: node.VectorAdd, Devices: []gpu.UUID{u.UUID}, LibDir: driver.LibDir, Timeout: node.CUDATimeout,
	})
	if r.Outcome == probe.SamplePassed && r.Answer.Simulated != driver.Info.Simulated {
		r.Outcome = probe.SampleFailed
		r.Message = fmt.Sprintf("libcuda and libnvidia-ml are of different drivers: simulated is %t for one, %t for the other", r.Answer.Simulated, driver.Info.Simulated)
	}
	return r
}
