// Package daemon keeps the proofs of a node current: it checks the layers again
// whenever something they depend on changes, and writes the outcomes.
package daemon

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/nodestatus"
)

// Config configures a Daemon.
type Config struct {
	Node         check.Node
	Pipeline     check.Pipeline
	OutputDir    string // of the proofs, as this process sees it
	Log          *slog.Logger
	Metrics      *Metrics
	Publish      func(nodestatus.Facts) // called whenever the facts change; nil: not called
	WorkloadDone <-chan struct{}        // receives when a validation pod has ended; nil: none is run
	NodeChanged  <-chan struct{}        // receives when the API server's Node has changed; nil: the Node is not watched
	DriverPod    DriverPod              // nil: not wanted
	Unserved     []nodestate.Setting    // settings that are accepted and have no effect
	Note         string                 // what the proofs lack by configuration; "": nothing
}

// DriverPod shows people, by a pod of its own, that the proof of layer cuda holds.
type DriverPod interface {
	Proven(check.Driver) // layer cuda is proven
	Withdraw()           // layer cuda is no longer proven
	Result() *check.Outcome
	Updates() <-chan struct{} // receives when the result has changed
}

// Daemon keeps the proofs and the validator's own state current.
type Daemon struct {
	Config
	proofs  *ProofWriter
	backoff backoff
	gpus    gpuCache
	// driverKept reports, during a check, that its cause does not concern the driver.
	driverKept bool
	outcomes   []check.Outcome // of the last check of all layers; nil: the state of an earlier process stands
	retired    bool            // this process ends to be created anew, and records no more outcomes
	state      nodestate.State // the wanted content of the state file
	unsaved    bool            // the state file does not hold it yet
	// unwritten is the error of writing the outcomes of the last check; nil: they are written.
	unwritten error
	fault     nodestate.WriteFault

	writing sync.Mutex // held while a field from proofs to fault is used
	mu      sync.Mutex
	ready   error
}

var errStarting = errors.New("the layers have not been checked yet")

// New returns a Daemon that has not started.
func New(c Config) *Daemon {
	d := &Daemon{Config: c, proofs: NewProofWriter(c.OutputDir, c.Node.BootID), backoff: backoff{wait: firstRetry},
		gpus: gpuCache{names: map[gpu.UUID]string{}}, ready: errStarting}
	d.state, d.unsaved = d.readState(), true
	d.Pipeline.Driver = d.cacheDriver(d.cacheGPUs(c.Pipeline.Driver))
	d.Pipeline.End = d.recordEarly
	d.Pipeline.Steps = append([]check.Step(nil), c.Pipeline.Steps...)
	for i, s := range d.Pipeline.Steps {
		switch s.Layer {
		case readiness.CUDA:
			d.Pipeline.Steps[i].Check = d.notifyDriverPod(cacheProof(s.Check))
		case readiness.Plugin:
			d.Pipeline.Steps[i].Check = d.bridgeRestart(s.Layer, s.Check)
		}
	}
	return d
}

// Ready returns why the node is not ready, nil when all layers are proven or
// there is nothing to prove. It may be called from any goroutine.
func (d *Daemon) Ready() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ready
}

func (d *Daemon) setReady(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ready = err
}

// Run checks the layers until ctx ends. It then leaves the proofs in place: they
// stay true without the daemon.
func (d *Daemon) Run(ctx context.Context) error {
	if !d.proofs.RemoveStale(d.Pipeline.Steps, d.Log) {
		d.outcomes = []check.Outcome{} // otherwise the proofs of this boot stand until the first check
	}
	group, ctx := errgroup.WithContext(ctx)
	changed := make(chan struct{}, 1)
	group.Go(func() error {
		return Watch(ctx, d.Node, func() {
			// Publish the components' states before the check: it takes time, and
			// minutes if a GPU hangs.
			d.republish()
			select {
			case changed <- struct{}{}:
			default: // a change is queued already
			}
		})
	})
	group.Go(func() error { return d.loop(ctx, changed) })
	if d.DriverPod != nil {
		group.Go(func() error { return d.watchDriverPod(ctx) })
	}
	if err := group.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (d *Daemon) loop(ctx context.Context, changed <-chan struct{}) error {
	for {
		d.driverKept = false
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-d.WorkloadDone:
			d.driverKept = true
		case <-d.NodeChanged:
			d.driverKept = true
		case <-d.backoff.timer():
		}
		outcomes := d.Pipeline.Run(ctx, d.Node, nil)
		if ctx.Err() != nil {
			return ctx.Err() // the outcomes of an interrupted check mean nothing
		}
		d.record(outcomes)
	}
}
