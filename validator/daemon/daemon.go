// Package daemon keeps the proofs of a node true: it checks the layers again
// whenever what they depend on changes, and writes down what came out.
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
	"github.com/gpuready/gpuready/validator/voice"
)

// Config is what a Daemon needs.
type Config struct {
	Node      check.Node
	Road      check.Road
	OutputDir string // of the proofs, as this process sees it
	Log       *slog.Logger
	Metrics   *Metrics
	Tell      func(voice.Facts) // told what is known whenever it changes; nil: nobody is
	News      <-chan struct{}   // a pod that proves something has come to its end; nil: none is run
	NodeNews  <-chan struct{}   // what the API server has of the Node is another; nil: nobody reads it
	Witness   Witness           // nil: none is asked for
}

// Witness shows people, by a pod of its own, that what layer cuda says is so.
type Witness interface {
	Proven(check.Driver) // layer cuda is
	Withdraw()           // it is not any more
	Result() *check.Outcome
	News() <-chan struct{} // of another result
}

// Daemon is the one writer of the proofs and of the validator's own state.
type Daemon struct {
	Config
	proofs  ledger
	pace    pace
	seen    seen
	known   []check.Outcome // of the last check of all layers; nil: an earlier process's word stands
	retired bool
	state   nodestate.State // what the state file is to say
	unsaid  bool            // and does not yet

	writing sync.Mutex // held while the above is used
	mu      sync.Mutex
	ready   error
}

var errStarting = errors.New("the layers have not been checked yet")

// New returns a Daemon that has not started.
func New(c Config) *Daemon {
	d := &Daemon{Config: c, proofs: newLedger(c.OutputDir, c.Node.BootID, c.Log), pace: pace{wait: firstRetry},
		seen: seen{names: map[gpu.UUID]string{}}, ready: errStarting}
	d.state, d.unsaid = d.recall(), true
	d.Road.Driver = d.learn(c.Road.Driver)
	d.Road.End = d.early
	d.Road.Steps = append([]check.Step(nil), c.Road.Steps...)
	for i, s := range d.Road.Steps {
		if s.Layer == readiness.CUDA {
			d.Road.Steps[i].Check = d.shown(remember(s.Check))
		}
	}
	return d
}

// Ready says why the node is not ready, nil when all layers are proven or
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

// Run works until ctx ends, and then leaves the proofs as they are: what was
// proven stays true without the daemon.
func (d *Daemon) Run(ctx context.Context) error {
	if !d.proofs.clearStale(d.Road.Steps) {
		d.known = []check.Outcome{} // else what was said of this boot stands until it is known better
	}
	group, ctx := errgroup.WithContext(ctx)
	changed := make(chan struct{}, 1)
	group.Go(func() error {
		return Watch(ctx, d.Node, func() {
			// What components say is news by itself: a check takes its time, and
			// one that asks a GPU that hangs takes minutes.
			d.tellAgain()
			select {
			case changed <- struct{}{}:
			default: // one is on its way already
			}
		})
	})
	group.Go(func() error { return d.loop(ctx, changed) })
	if d.Witness != nil {
		group.Go(func() error { return d.listen(ctx) })
	}
	if err := group.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (d *Daemon) loop(ctx context.Context, changed <-chan struct{}) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-d.News:
		case <-d.NodeNews:
		case <-d.pace.timer():
		}
		outcomes := d.Road.Run(ctx, d.Node, nil)
		if ctx.Err() != nil {
			return ctx.Err() // a check that was cut off says nothing
		}
		d.record(outcomes)
	}
}
