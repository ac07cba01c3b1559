package mps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/gpuready/gpuready/internal/gpu"
)

// Modes reads and sets how many processes may use a GPU at once.
type Modes interface {
	ComputeMode(ctx context.Context, id gpu.UUID) (gpu.ComputeMode, error)
	SetComputeMode(ctx context.Context, id gpu.UUID, mode gpu.ComputeMode) error
}

// errAway says that the driver is not in use at the moment.
var errAway = errors.New("the driver's library is being opened again")

// current are the modes of the driver that is in use, while there is one.
type current struct {
	mu   sync.RWMutex // held while a call is made: the driver is not closed under it
	live Modes
}

// use says which driver that is; nil: none.
func (c *current) use(m Modes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live = m
}

// ComputeMode is that of Modes.
func (c *current) ComputeMode(ctx context.Context, id gpu.UUID) (gpu.ComputeMode, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.live == nil {
		return 0, errAway
	}
	return c.live.ComputeMode(ctx, id)
}

// SetComputeMode is that of Modes.
func (c *current) SetComputeMode(ctx context.Context, id gpu.UUID, mode gpu.ComputeMode) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.live == nil {
		return errAway
	}
	return c.live.SetComputeMode(ctx, id, mode)
}

// admit makes each GPU one for a single process, the MPS server, and returns those
// that were not served before.
func (c *control) admit(ctx context.Context) (added []GPU) {
	for _, g := range c.spec.GPUs {
		err := c.claim(ctx, g)
		at := slices.Index(c.serves, g)
		switch {
		case ctx.Err() != nil:
			return added
		case errors.Is(err, errAway) && at >= 0: // nothing has become known against it
		case err == nil:
			delete(c.refused, g.UUID)
			if at < 0 {
				c.serves, added = append(c.serves, g), append(added, g)
			}
		default:
			c.refused[g.UUID] = err.Error()
			if at >= 0 {
				c.serves = slices.Delete(c.serves, at, at+1)
			}
		}
	}
	return added
}

// claim takes the GPU. The error says why that cannot be.
func (c *control) claim(ctx context.Context, g GPU) error {
	mode, err := c.modes.ComputeMode(ctx, g.UUID)
	switch {
	case err != nil:
		return fmt.Errorf("GPU %d (%s): its compute mode cannot be read: %w", g.Index, g.UUID, err)
	case mode == gpu.ComputeExclusive:
		return nil
	case mode != gpu.ComputeDefault:
		return fmt.Errorf("GPU %d (%s) has the compute mode %s, which somebody has set and MPS cannot work with; run nvidia-smi -i %d -c DEFAULT, or take it out of sharing.mps",
			g.Index, g.UUID, mode, g.Index)
	}
	if err := c.modes.SetComputeMode(ctx, g.UUID, gpu.ComputeExclusive); err != nil {
		return fmt.Errorf("GPU %d (%s): its compute mode cannot be set to %s: %w; if the GPU is in MIG mode, which MPS cannot share, turn that off, or take it out of sharing.mps",
			g.Index, g.UUID, gpu.ComputeExclusive, err)
	}
	return nil
}

// restore lets other processes use the GPUs again, as the reference does.
func (c *control) restore() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, g := range c.serves {
		mode, err := c.modes.ComputeMode(ctx, g.UUID)
		if err == nil && mode == gpu.ComputeExclusive {
			err = c.modes.SetComputeMode(ctx, g.UUID, gpu.ComputeDefault)
		}
		if err != nil {
			c.log.Warn("the compute mode stays as it is", "gpu", string(g.UUID), "message", err.Error())
		}
	}
}
