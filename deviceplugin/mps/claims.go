package mps

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/gpuready/gpuready/internal/gpu"
)

// claims are the GPUs whose compute mode this program has to restore. They are written
// to the state before the mode is set, so that the next process restores them if this
// one is killed.
type claims struct {
	write      func() // writes them to the state
	mu         sync.Mutex
	gpus       map[gpu.UUID]bool
	lastErrors map[gpu.UUID]string // last error of restoring a mode
}

func newClaims(write func(), before []gpu.UUID) *claims {
	c := &claims{write: write, gpus: map[gpu.UUID]bool{}, lastErrors: map[gpu.UUID]string{}}
	for _, id := range before {
		c.gpus[id] = true
	}
	return c
}

// all returns the claimed GPUs, sorted.
func (c *claims) all() []gpu.UUID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.gpus))
}

func (c *claims) has(id gpu.UUID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gpus[id]
}

// add adds a GPU and returns once the state is written.
func (c *claims) add(id gpu.UUID) {
	c.mu.Lock()
	had := c.gpus[id]
	c.gpus[id] = true
	c.mu.Unlock()
	if !had {
		c.write()
	}
}

func (c *claims) drop(id gpu.UUID) {
	c.mu.Lock()
	delete(c.gpus, id)
	delete(c.lastErrors, id)
	c.mu.Unlock()
	c.write()
}

// isNewFailure records a failure to restore a mode and reports whether it differs from
// the last one.
func (c *claims) isNewFailure(id gpu.UUID, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.lastErrors[id]
	c.lastErrors[id] = err.Error()
	return was != err.Error()
}

// restoreMode lets other processes use a claimed GPU again, as the reference does.
func (c *claims) restoreMode(ctx context.Context, m Modes, id gpu.UUID) error {
	if !c.has(id) {
		return nil
	}
	mode, err := m.ComputeMode(ctx, id)
	if err == nil && mode == gpu.ComputeExclusive {
		err = m.SetComputeMode(ctx, id, gpu.ComputeDefault)
	}
	if err == nil {
		c.drop(id)
	}
	return err
}

// restoreUnshared restores the claimed GPUs that no spec shares: those of an earlier
// process, or of a control daemon that ended while NVML was not open. It reports
// whether all are restored.
func (d *daemon) restoreUnshared(ctx context.Context, m Modes, snap gpu.Snapshot, specs []Spec) bool {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	done := true
	for _, id := range d.claims.all() {
		if slices.ContainsFunc(specs, func(s Spec) bool {
			return slices.ContainsFunc(s.GPUs, func(g GPU) bool { return g.UUID == id })
		}) {
			continue
		}
		if _, there := snap.Device(id); !there {
			d.claims.drop(id) // if it comes back, it was reset and has lost its mode
			continue
		}
		err := d.claims.restoreMode(ctx, m, id)
		if err == nil {
			d.cfg.Log.Info("the compute mode is restored", "gpu", string(id), "mode", gpu.ComputeDefault.String())
			continue
		}
		done = false
		if d.claims.isNewFailure(id, err) {
			d.cfg.Log.Warn("the compute mode cannot be restored; trying again", "gpu", string(id), "message", err.Error())
		}
	}
	return done
}
