package mps

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpuready/gpuready/internal/gpu"
)

// Modes reads and sets how many processes may use a GPU at once.
type Modes interface {
	ComputeMode(ctx context.Context, id gpu.UUID) (gpu.ComputeMode, error)
	SetComputeMode(ctx context.Context, id gpu.UUID, mode gpu.ComputeMode) error
}

// admit makes each GPU one for a single process, the MPS server, and returns those
// that were not served before.
func (c *control) admit(ctx context.Context) (added []GPU) {
	for _, g := range c.spec.GPUs {
		why := c.claim(ctx, g)
		at := slices.Index(c.serves, g)
		switch {
		case ctx.Err() != nil:
			return added
		case why == "":
			delete(c.refused, g.UUID)
			if at < 0 {
				c.serves, added = append(c.serves, g), append(added, g)
			}
		default:
			c.refused[g.UUID] = why
			if at >= 0 {
				c.serves = slices.Delete(c.serves, at, at+1)
			}
		}
	}
	return added
}

// claim says why the GPU cannot be taken, "" where it is.
func (c *control) claim(ctx context.Context, g GPU) string {
	mode, err := c.modes.ComputeMode(ctx, g.UUID)
	switch {
	case err != nil:
		return fmt.Sprintf("GPU %d (%s): its compute mode cannot be read: %v", g.Index, g.UUID, err)
	case mode == gpu.ComputeExclusive:
		return ""
	case mode != gpu.ComputeDefault:
		return fmt.Sprintf("GPU %d (%s) has the compute mode %s, which somebody has set and MPS cannot work with; run nvidia-smi -i %d -c DEFAULT, or take it out of sharing.mps",
			g.Index, g.UUID, mode, g.Index)
	}
	if err := c.modes.SetComputeMode(ctx, g.UUID, gpu.ComputeExclusive); err != nil {
		return fmt.Sprintf("GPU %d (%s): its compute mode cannot be set to %s: %v; if the GPU is in MIG mode, which MPS cannot share, turn that off, or take it out of sharing.mps",
			g.Index, g.UUID, gpu.ComputeExclusive, err)
	}
	return ""
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
