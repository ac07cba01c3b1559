package mps

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/gpuready/gpuready/internal/gpu"
)

// claims lists the GPUs that this program has set, or is about to set, to the exclusive
// compute mode, so that the MPS server is the only process on them. Each must get the default
// mode back. A claim is written to the state file before the mode is set, so that the next
// process restores the mode if this one is killed.
type claims struct {
	saveState  func() // writes the claims to the state file
	lost       bool   // an earlier process of this boot may have left others
	mu         sync.Mutex
	gpus       map[gpu.UUID]bool
	lastErrors map[gpu.UUID]string // last error of restoring each GPU's mode
}

// newClaims returns the claims that an earlier process of this boot left. lost reports that it may have left others.
func newClaims(saveState func(), claimedBefore []gpu.UUID, lost bool) *claims {
	c := &claims{saveState: saveState, lost: lost, gpus: map[gpu.UUID]bool{}, lastErrors: map[gpu.UUID]string{}}
	for _, id := range claimedBefore {
		c.gpus[id] = true
	}
	return c
}

// list returns the claimed GPUs, sorted.
func (c *claims) list() []gpu.UUID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.gpus))
}

// isClaimed reports whether a GPU's mode is still to be restored.
func (c *claims) isClaimed(id gpu.UUID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gpus[id]
}

// add adds a GPU and returns once the state is written.
func (c *claims) add(id gpu.UUID) {
	c.mu.Lock()
	wasClaimed := c.gpus[id]
	c.gpus[id] = true
	c.mu.Unlock()
	if !wasClaimed {
		c.saveState()
	}
}

// remove removes a GPU and writes the state.
func (c *claims) remove(id gpu.UUID) {
	c.mu.Lock()
	delete(c.gpus, id)
	delete(c.lastErrors, id)
	c.mu.Unlock()
	c.saveState()
}

// recordFailure records a failure to restore the mode of a GPU. It reports whether the error
// is new, and so worth logging.
func (c *claims) recordFailure(id gpu.UUID, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	previous := c.lastErrors[id]
	c.lastErrors[id] = err.Error()
	return previous != err.Error()
}

// restoreMode sets a claimed GPU from the exclusive back to the default compute mode, so that
// processes outside of MPS can use it, and drops the claim. NVIDIA's device plugin does the
// same. A GPU that is not claimed, or that has another mode by now, keeps its mode.
func (c *claims) restoreMode(ctx context.Context, m Modes, id gpu.UUID) error {
	if !c.isClaimed(id) {
		return nil
	}
	mode, err := m.ComputeMode(ctx, id)
	if err == nil && mode == gpu.ComputeExclusive {
		err = m.SetComputeMode(ctx, id, gpu.ComputeDefault)
	}
	if err == nil {
		c.remove(id)
	}
	return err
}

// restoreUnshared restores the claimed GPUs that no spec shares: those of an earlier
// process, or of a control daemon that ended while NVML was not open. It reports
// whether all are restored.
func (d *daemon) restoreUnshared(ctx context.Context, m Modes, snap gpu.Snapshot, specs []Spec) bool {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	allRestored := true
	nameless := slices.ContainsFunc(snap.Devices, func(d gpu.Device) bool { return d.UUID == "" })
	for _, id := range d.claims.list() {
		if slices.ContainsFunc(specs, func(s Spec) bool {
			return slices.ContainsFunc(s.GPUs, func(g GPU) bool { return g.UUID == id })
		}) {
			continue
		}
		if _, present := snap.Device(id); !present {
			if nameless { // which may be it
				allRestored = false
				continue
			}
			d.claims.remove(id) // if it comes back, it was reset and has lost its mode
			continue
		}
		err := d.claims.restoreMode(ctx, m, id)
		if err == nil {
			d.cfg.Log.Info("the compute mode is restored", "gpu", string(id), "mode", gpu.ComputeDefault.String())
			continue
		}
		allRestored = false
		if d.claims.recordFailure(id, err) {
			d.cfg.Log.Warn("the compute mode cannot be restored; trying again", "gpu", string(id), "message", err.Error())
		}
	}
	return allRestored
}
