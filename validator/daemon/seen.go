package daemon

import (
	"context"
	"maps"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/validator/check"
)

// maxNames bounds the names that are remembered: MIG devices have new ones each
// time their GPU is divided.
const maxNames = 1024

// seen is what the driver said of GPUs: how they are called, also of one that is lost
// later, and what it found wrong with them last.
type seen struct {
	names  map[gpu.UUID]string
	faults map[gpu.UUID]gpu.Fault
}

// with is what is known once the driver has told of these GPUs. The one before stays as
// it is: it was handed over.
func (s seen) with(gpus []gpu.Device) seen {
	after := seen{names: check.Names(gpus), faults: map[gpu.UUID]gpu.Fault{}}
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

// learn has what the driver says of GPUs remembered.
func (d *Daemon) learn(run func(context.Context, check.Node) (check.Driver, check.Outcome)) func(context.Context, check.Node) (check.Driver, check.Outcome) {
	return func(ctx context.Context, node check.Node) (check.Driver, check.Outcome) {
		driver, o := run(ctx, node)
		d.writing.Lock()
		defer d.writing.Unlock()
		d.seen = d.seen.with(driver.GPUs)
		return driver, o
	}
}

// shown has the witness told each time that layer cuda is found to be proven.
func (d *Daemon) shown(run func(context.Context, check.Node, check.Driver) check.Outcome) func(context.Context, check.Node, check.Driver) check.Outcome {
	return func(ctx context.Context, node check.Node, driver check.Driver) check.Outcome {
		o := run(ctx, node, driver)
		if d.Witness != nil && o.Kind == check.Passed {
			d.Witness.Proven(driver)
		}
		return o
	}
}

// remember keeps the CUDA step from loading GPUs that pods use each time a
// state file changes: what was proven holds for the same driver files and GPUs.
func remember(run func(context.Context, check.Node, check.Driver) check.Outcome) func(context.Context, check.Node, check.Driver) check.Outcome {
	var proven string
	var last check.Outcome
	return func(ctx context.Context, node check.Node, driver check.Driver) check.Outcome {
		about := driver.Subject()
		if proven != "" && proven == about {
			return last
		}
		last, proven = run(ctx, node, driver), ""
		if last.Kind == check.Passed {
			proven = about
		}
		return last
	}
}
