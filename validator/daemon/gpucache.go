package daemon

import (
	"context"
	"maps"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/validator/check"
)

// maxNames bounds the cached names: MIG devices get new ones each time their GPU is
// divided.
const maxNames = 1024

// gpuCache caches the driver's facts about GPUs: the names, also of GPUs lost since, and
// the latest faults.
type gpuCache struct {
	names  map[gpu.UUID]string
	faults map[gpu.UUID]gpu.Fault
}

// merge returns a copy updated with gpus. The original stays unchanged, since its maps
// were published.
func (s gpuCache) merge(gpus []gpu.Device) gpuCache {
	after := gpuCache{names: check.Names(gpus), faults: map[gpu.UUID]gpu.Fault{}}
	if len(s.names) < maxNames {
		all := maps.Clone(s.names)
		maps.Copy(all, after.names)
		after.names = all
	}
	for _, g := range gpus {
		if g.Fault != (gpu.Fault{}) {
			after.faults[g.UUID] = g.Fault
		}
	}
	return after
}

// cacheGPUs wraps the driver's check to cache its facts about GPUs.
func (d *Daemon) cacheGPUs(run check.DriverCheck) check.DriverCheck {
	return func(ctx context.Context, node check.Node) (check.Driver, check.Outcome) {
		driver, o := run(ctx, node)
		d.writing.Lock()
		defer d.writing.Unlock()
		d.gpus = d.gpus.merge(driver.GPUs)
		return driver, o
	}
}

// driverAge is the age up to which a reading of the driver serves a check whose cause does not concern
// the driver. Reading takes a process, and the end of a validation pod and changes of the Node by
// package nodestatus follow a check within milliseconds.
const driverAge = time.Second

// cacheDriver wraps the driver's check to cache its pass for the checks right after it.
func (d *Daemon) cacheDriver(run check.DriverCheck) check.DriverCheck {
	var began time.Time
	var driver check.Driver
	var last check.Outcome
	return func(ctx context.Context, node check.Node) (check.Driver, check.Outcome) {
		if !d.driverKept || last.Kind != check.Passed || time.Since(began) > driverAge {
			began = time.Now()
			driver, last = run(ctx, node)
		}
		return driver, last
	}
}

// notifyDriverPod wraps the check of layer cuda to notify the driver's pod each time it passes.
func (d *Daemon) notifyDriverPod(run check.LayerCheck) check.LayerCheck {
	return func(ctx context.Context, node check.Node, driver check.Driver) check.Outcome {
		o := run(ctx, node, driver)
		if d.DriverPod != nil && o.Kind == check.Passed {
			d.DriverPod.Proven(driver)
		}
		return o
	}
}

// cacheProof caches the proof of the CUDA step for the same driver files and GPUs. Without
// it each change of a state file would put load on GPUs that pods use.
func cacheProof(run check.LayerCheck) check.LayerCheck {
	var proven string
	var last check.Outcome
	return func(ctx context.Context, node check.Node, driver check.Driver) check.Outcome {
		about := driver.Subject()
		if proven != "" && proven == about {
			return last
		}
		last, proven = run(ctx, node, driver), ""
		if last.Kind == check.Passed && !last.Retry {
			proven = about
		}
		return last
	}
}
