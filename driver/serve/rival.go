package serve

import "context"

// takeGPUs takes the GPUs that other drivers of the kernel hold, such as nouveau, and returns their addresses. One
// that cannot be taken is an error if there is no other GPU, else a note of the state.
func (d *Driver) takeGPUs(ctx context.Context, s Snapshot) (freed []string, err error) {
	d.notes = nil
	for _, r := range d.System.FindRivals(s.GPUs) {
		if err := d.System.Unbind(ctx, r, d.Log); err != nil {
			d.Log.Warn("a GPU stays with another driver", "gpu", r.Address, "driver", r.Driver, "err", err)
			if d.notes = append(d.notes, err.Error()); len(d.notes) == len(s.GPUs) {
				return nil, err
			}
			continue
		}
		freed = append(freed, r.Address)
	}
	if len(freed) > 0 && len(d.notes) == 0 {
		d.System.UnloadRivals(d.Log)
	}
	return freed, nil
}
