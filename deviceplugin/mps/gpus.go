package mps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/gpuready/gpuready/internal/gpu"
)

// Modes reads and sets the compute mode of a GPU, which limits how many processes may
// use it at once.
type Modes interface {
	ComputeMode(ctx context.Context, id gpu.UUID) (gpu.ComputeMode, error)
	SetComputeMode(ctx context.Context, id gpu.UUID, mode gpu.ComputeMode) error
}

// errReopening means that the driver is not open at the moment.
var errReopening = errors.New("the driver's library is being opened again")

// currentModes gives access to the modes of the open driver, if any.
type currentModes struct {
	mu    sync.RWMutex // held during a call, so that the driver is not closed meanwhile
	modes Modes
}

// setModes sets the open driver; nil: none.
func (c *currentModes) setModes(m Modes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.modes = m
}

// ComputeMode implements Modes.
func (c *currentModes) ComputeMode(ctx context.Context, id gpu.UUID) (gpu.ComputeMode, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.modes == nil {
		return 0, errReopening
	}
	return c.modes.ComputeMode(ctx, id)
}

// SetComputeMode implements Modes.
func (c *currentModes) SetComputeMode(ctx context.Context, id gpu.UUID, mode gpu.ComputeMode) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.modes == nil {
		return errReopening
	}
	return c.modes.SetComputeMode(ctx, id, mode)
}

// claimGPUs sets each GPU to the mode for a single process, the MPS server, and returns
// the GPUs that are claimed now and were not before.
func (c *control) claimGPUs(ctx context.Context) (added []GPU) {
	for _, g := range c.spec.GPUs {
		err := c.claimGPU(ctx, g)
		at := slices.Index(c.claimed, g)
		switch {
		case ctx.Err() != nil:
			return added
		case errors.Is(err, errReopening) && at >= 0: // the mode cannot be read now; assume that it is unchanged
		case err == nil:
			delete(c.refused, g.UUID)
			if at < 0 {
				c.claimed, added = append(c.claimed, g), append(added, g)
			}
		default:
			c.refused[g.UUID] = err.Error()
			if at >= 0 {
				c.claimed = slices.Delete(c.claimed, at, at+1)
			}
		}
	}
	return added
}

// claimGPU records the claim and sets the mode of one GPU. A GPU that already is exclusive was set so by an
// administrator, unless it is claimed: it is used as it is, and not claimed, so that it keeps its mode. Where
// claims are lost it may be an earlier process's, and is claimed: nobody else would ever reset it.
func (c *control) claimGPU(ctx context.Context, g GPU) error {
	mode, err := c.modes.ComputeMode(ctx, g.UUID)
	switch {
	case err != nil:
		return fmt.Errorf("GPU %d (%s): its compute mode cannot be read: %w", g.Index, g.UUID, err)
	case mode == gpu.ComputeExclusive:
		if c.claims.lost {
			c.claims.add(g.UUID)
		}
		return nil
	case mode != gpu.ComputeDefault:
		return fmt.Errorf("GPU %d (%s) has the compute mode %s, which was set by another program and does not work with MPS; run nvidia-smi -i %d -c DEFAULT, or take it out of sharing.mps",
			g.Index, g.UUID, mode, g.Index)
	}
	c.claims.add(g.UUID)
	if err := c.modes.SetComputeMode(ctx, g.UUID, gpu.ComputeExclusive); err != nil {
		return fmt.Errorf("GPU %d (%s): its compute mode cannot be set to %s: %w; if the GPU is in MIG mode, which MPS cannot share, turn that off, or take it out of sharing.mps",
			g.Index, g.UUID, gpu.ComputeExclusive, err)
	}
	return nil
}

// restoreModes restores the modes of the daemon's GPUs.
func (c *control) restoreModes() {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	for _, g := range c.spec.GPUs {
		if err := c.claims.restoreMode(ctx, c.modes, g.UUID); err != nil {
			c.log.Warn("the compute mode stays as it is", "gpu", string(g.UUID), "message", err.Error())
		}
	}
}
