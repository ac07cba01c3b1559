package mps

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/gpuready/gpuready/internal/gpu"
)

// claims are the GPUs whose compute mode is ours to set back. They stand in the state
// before the mode is set, so that whoever is killed leaves them to the next process.
type claims struct {
	write func() // lets the state have them
	mu    sync.Mutex
	gpus  map[gpu.UUID]bool
	said  map[gpu.UUID]string // why one could not be set back
}

func newClaims(write func(), before []gpu.UUID) *claims {
	c := &claims{write: write, gpus: map[gpu.UUID]bool{}, said: map[gpu.UUID]string{}}
	for _, id := range before {
		c.gpus[id] = true
	}
	return c
}

// all are sorted.
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

// add returns when it is written down.
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
	delete(c.said, id)
	c.mu.Unlock()
	c.write()
}

// failed says whether it is news that the GPU could not be set back.
func (c *claims) failed(id gpu.UUID, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.said[id]
	c.said[id] = err.Error()
	return was != err.Error()
}

// giveBack lets other processes use a GPU again, as the reference does, if it is
// claimed.
func (c *claims) giveBack(ctx context.Context, m Modes, id gpu.UUID) error {
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

// release gives back what nobody of specs shares: what a process before left, or a
// control daemon that ended while NVML was away. It says whether none is left over.
func (d *daemon) release(ctx context.Context, m Modes, snap gpu.Snapshot, specs []Spec) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	done := true
	for _, id := range d.claims.all() {
		if slices.ContainsFunc(specs, func(s Spec) bool {
			return slices.ContainsFunc(s.GPUs, func(g GPU) bool { return g.UUID == id })
		}) {
			continue
		}
		if _, there := snap.Device(id); !there {
			d.claims.drop(id) // one that comes back was reset, and has lost its mode
			continue
		}
		err := d.claims.giveBack(ctx, m, id)
		if err == nil {
			d.cfg.Log.Info("the compute mode is set back", "gpu", string(id), "mode", gpu.ComputeDefault.String())
			continue
		}
		done = false
		if d.claims.failed(id, err) {
			d.cfg.Log.Warn("the compute mode stays as it is until it can be set back", "gpu", string(id), "message", err.Error())
		}
	}
	return done
}
