package step

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

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
	// ReasonInUse and ReasonProhibited are those of devices that are not proven now. No layer is refused
	// for them.
	ReasonInUse      gpu.Reason = "GPUInUse"
	ReasonProhibited gpu.Reason = "ComputeProhibited"
)

// cudaCheck checks layer cuda: every GPU and MIG device computes. It runs the vectorAdd sample, a separate
// program, on each of them, even if one fails. It runs nothing where vectorAdd has passed in this boot
// with the same driver, and nothing on what others use: a GPU in use is not one that failed, unless it
// failed before they had it.
type cudaCheck struct {
	kept  keptProof // of this process; without a BootID: nothing was checked yet
	saved bool      // the file has kept
}

// checkCUDA checks layer cuda without earlier proofs of this process.
func checkCUDA(ctx context.Context, node check.Node, driver check.Driver) check.Outcome {
	return (&cudaCheck{}).check(ctx, node, driver)
}

func (c *cudaCheck) check(ctx context.Context, node check.Node, driver check.Driver) check.Outcome {
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
	kept := newKeptProof(node, driver)
	if node.KeptProof != "" {
		earlier := c.kept
		if earlier.BootID == "" {
			earlier, _ = readKept(node.KeptProof) // what cannot be read proves nothing
		}
		kept = earlier.within(kept, units)
		kept.dropFaulty(node, units)
	}
	results := runSamples(ctx, node, driver, units, kept)
	kept.add(units, results, ctx.Err() != nil)
	o := judgeSamples(node, driver, units, results)
	if err := c.storeKept(node, kept); err != nil {
		o.Notes = append(o.Notes, "the proof will not survive a restart of the validator: "+err.Error())
	}
	return o
}

// storeKept stores what is proven, for this process and for the next one.
func (c *cudaCheck) storeKept(node check.Node, kept keptProof) error {
	if node.KeptProof == "" {
		return nil
	}
	known := c.saved && c.kept.equal(kept)
	c.kept = kept
	if known {
		return nil
	}
	err := kept.write(node.KeptProof)
	c.saved = err == nil
	return err
}

// unitResult is the result of one unit: that of the sample, a kept one, or none since others use the unit.
type unitResult struct {
	probe.SampleResult
	kept bool            // from an earlier check, at
	at   time.Time       // of the pass, of a kept one
	busy *check.Unproven // nil: nobody was in the way
}

func (r unitResult) isPassed() bool { return r.busy == nil && r.Outcome == probe.SamplePassed }
func (r unitResult) isFailed() bool { return r.busy == nil && r.Outcome != probe.SamplePassed }

// isInDoubt reports whether others may be the cause of the failure. A sample waits for the other clients of MPS,
// and for a program that pins the host's memory.
func (r unitResult) isInDoubt() bool {
	return r.busy == nil && (r.MeansInUse() || r.Outcome == probe.SampleNoResult)
}

// runSamples runs the sample on the units that are not proven and that nobody uses. One that others use and
// that has failed before has failed.
func runSamples(ctx context.Context, node check.Node, driver check.Driver, units []check.Unit, kept keptProof) []unitResult {
	results := runOpen(ctx, node, driver, units, kept)
	for i, r := range results {
		if failure, ok := kept.Failed[units[i].UUID]; ok && r.busy != nil {
			results[i] = failure.again(*r.busy)
		}
	}
	return results
}

// runOpen runs the sample on the units that are not proven and that nobody uses.
func runOpen(ctx context.Context, node check.Node, driver check.Driver, units []check.Unit, kept keptProof) []unitResult {
	results := make([]unitResult, len(units))
	var open []int
	for i, u := range units {
		if old, ok := kept.Units[u.UUID]; ok {
			results[i] = unitResult{kept: true, at: old.Time, SampleResult: probe.SampleResult{
				Outcome: probe.SamplePassed, Elapsed: time.Duration(old.Seconds * float64(time.Second)),
			}}
			continue
		}
		open = append(open, i)
	}
	if len(open) == 0 {
		return results
	}
	use := readUse(ctx, node, driver)
	var group errgroup.Group
	group.SetLimit(max(1, node.CUDAConcurrency))
	for _, i := range open {
		group.Go(func() error {
			results[i] = tryUnit(ctx, node, driver, units[i], use)
			return nil
		})
	}
	// Errors are in the results, not in the group, so that all GPUs are tried.
	_ = group.Wait()
	if ctx.Err() != nil || !slices.ContainsFunc(results, unitResult.isInDoubt) { // nobody answers an interrupted check
		return results
	}
	use = readUse(ctx, node, driver) // somebody may have come meanwhile
	for i := range results {
		if r := &results[i]; r.isInDoubt() {
			r.busy = use.after(units[i], *r)
		}
	}
	return results
}

// errTurn ends a sample because a pod got its GPU.
var errTurn = errors.New("a pod got the GPU")

// tryUnit runs vectorAdd on one GPU or MIG device, unless others use it. Where one process excludes all
// others, the sample ends as soon as a pod gets the GPU.
func tryUnit(ctx context.Context, node check.Node, driver check.Driver, u check.Unit, use usedGPUs) unitResult {
	busy, mps := use.before(u)
	if busy != nil {
		return unitResult{busy: busy}
	}
	if mps.pipe == "" && use.modeOf(u) == gpu.ComputeExclusive {
		turn, giveUp := context.WithCancelCause(ctx)
		watched := make(chan struct{})
		go func() {
			defer close(watched)
			watchTurn(turn, node, driver, u, func() { giveUp(errTurn) })
		}()
		r := runVectorAdd(turn, node, driver, u, mps)
		giveUp(nil)
		<-watched
		if r.Outcome != probe.SamplePassed && errors.Is(context.Cause(turn), errTurn) {
			return unitResult{busy: use.unproven(u, ReasonInUse, "a pod got it while vectorAdd ran")}
		}
		return unitResult{SampleResult: r}
	}
	return unitResult{SampleResult: runVectorAdd(ctx, node, driver, u, mps)}
}

func judgeSamples(node check.Node, driver check.Driver, units []check.Unit, results []unitResult) check.Outcome {
	proof := readiness.Proof{
		Driver: &driver.Info, HostRoot: node.Root.Dir(), DevRoot: driver.DevRoot, Seconds: map[gpu.UUID]float64{},
	}
	var bad []string
	var proven []check.Unit
	var busy []check.Unproven
	var slowest time.Duration
	var oldest, newest time.Time // of kept results
	fresh := false
	reason := reasonSampleFailed
	for i, r := range results {
		switch {
		case r.busy != nil:
			busy = append(busy, *r.busy)
			continue
		case r.isFailed():
			bad = append(bad, units[i].Name+": "+r.Message)
			if r.Outcome == probe.SampleNoResult && len(bad) == 1 {
				reason = reasonSampleTimeout
			}
			continue
		}
		proven, slowest = append(proven, units[i]), max(slowest, r.Elapsed)
		proof.Seconds[units[i].UUID] = r.Elapsed.Seconds()
		if !r.kept {
			fresh = true
			continue
		}
		if oldest.IsZero() || r.at.Before(oldest) {
			oldest = r.at
		}
		if r.at.After(newest) {
			newest = r.at
		}
	}
	if len(bad) > 0 {
		message := "vectorAdd: " + strings.Join(bad, "; ")
		if len(units) > 1 {
			message = fmt.Sprintf("vectorAdd failed on %d of %d GPUs: %s", len(bad), len(units), strings.Join(bad, "; "))
		}
		o := check.Fail(reason, message, sampleAction(units, results))
		o.Notes, o.Unproven = unprovenNotes(busy), busy
		return o
	}
	proof.GPUs, proof.Summary = len(proven), "vectorAdd on "+describeTested(driver, proven)
	if len(proven) > 0 {
		proof.Summary += fmt.Sprintf(", slowest %.2f s", slowest.Seconds())
	}
	if !oldest.IsZero() {
		proof.Summary += ", proven " + oldest.UTC().Format(time.RFC3339)
		if !fresh {
			proof.Time = newest
		}
	}
	if len(busy) > 0 {
		proof.Summary += fmt.Sprintf("; %d in use, not proven now", len(busy))
		proof.Unproven = map[gpu.UUID]gpu.Reason{}
	}
	for _, b := range busy {
		proof.Unproven[b.Unit.UUID] = b.Reason
	}
	o := check.NewPass(proof, unprovenNotes(busy)...)
	o.Unproven, o.Retry = busy, len(busy) > 0
	return o
}

// unprovenNotes returns a note for each reason for which devices are not proven now.
func unprovenNotes(busy []check.Unproven) (notes []string) {
	for _, reason := range []gpu.Reason{ReasonInUse, ReasonProhibited} {
		var all []string
		for _, b := range busy {
			if b.Reason != reason {
				continue
			}
			text := b.Unit.Name + ": " + b.Message
			if b.Code != 0 {
				text += fmt.Sprintf(" (vectorAdd: error %d)", b.Code)
			}
			all = append(all, text)
		}
		if len(all) > 0 {
			notes = append(notes, fmt.Sprintf("%s: not proven now: %s", reason, listSome(all)))
		}
	}
	return notes
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
func sampleAction(units []check.Unit, results []unitResult) string {
	for _, r := range results {
		if r.isFailed() && r.Outcome == probe.SampleNoResult {
			return "a GPU that hangs needs a reset; look for Xid lines in dmesg; give more time with --cuda-timeout"
		}
	}
	first := slices.IndexFunc(results, unitResult.isFailed)
	if results[first].Answer.Code == probe.CUDAOutOfMemory {
		return "end what has taken its memory, which nvidia-smi on the host may show; if nothing has, reset the GPU"
	}
	return fmt.Sprintf("repeat it: CUDA_VISIBLE_DEVICES=%s vectoradd; if it fails again, take the GPU out of service", units[first].UUID)
}

// runVectorAdd runs vectorAdd on one GPU or MIG device, as a client of an MPS control daemon unless the
// pipe of mps is "".
func runVectorAdd(ctx context.Context, node check.Node, driver check.Driver, u check.Unit, mps mpsShare) probe.SampleResult {
	r := probe.RunSample(ctx, probe.SampleJob{
		Name: "vectoradd", Path: node.VectorAdd, Devices: []gpu.UUID{u.UUID}, MPSPipe: mps.pipe, MPSShm: mps.shm, LibDirs: driver.LibDirs, Timeout: node.CUDATimeout,
	})
	if r.Outcome == probe.SamplePassed && r.Answer.Simulated != driver.Info.Simulated {
		r.Outcome = probe.SampleFailed
		r.Message = fmt.Sprintf("libcuda and libnvidia-ml are of different drivers: simulated is %t for one, %t for the other", r.Answer.Simulated, driver.Info.Simulated)
	}
	return r
}
