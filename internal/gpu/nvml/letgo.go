package nvml

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// A driver resets no GPU that a process has open. NVML opens one when it is asked
// for a handle of it, and closes it when NVML is shut down, not before (nvml.h at
// nvmlInit_v2 and nvmlDeviceGetHandleByIndex_v2). So a GPU is let go of by shutting
// NVML down, initialising it again, and asking for the handles of the others only.
// Whether it was reset since is for another process to see, which ends at once.

// Outside reads one GPU in another process, which holds it no longer than that
// takes. It returns soon after ctx ends, also where that process hangs.
type Outside func(ctx context.Context, index int) (gpu.Device, error)

// outsideEvery is how often a GPU that was let go of is read. Each time is one in
// which a reset would be refused: seconds, without persistence mode.
const outsideEvery = 30 * time.Second

// letGoMessage is of a GPU of which the driver says nothing wrong itself.
const letGoMessage = "it is not held open, so that it can be reset, and so not watched"

// LetGo says which GPUs Watch is to let go of, as soon as there was no event for a
// while, or when that was waited for long enough; all others are held. Snapshot shows them as they were last read. Without
// Options.Outside nothing is let go of but what was lost.
func (s *Source) LetGo(ids []gpu.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := map[gpu.UUID]bool{}
	for _, id := range ids {
		wanted[id] = true
	}
	s.memory.letGo = wanted
	maps.DeleteFunc(s.memory.out, func(id gpu.UUID, _ gpu.Fault) bool { return !wanted[id] })
	if len(wanted) > 0 {
		select {
		case s.hurry <- struct{}{}:
		default: // it knows
		}
	}
}

// letsGo reports whether there is something to let go of, and whether something was.
func (s *Source) letsGo() (wanted, out bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.memory.order, s.mayGo), len(s.memory.out) > 0
}

// mayGo is of a GPU that is to be let go of and can be. s.mu is held.
func (s *Source) mayGo(id gpu.UUID) bool {
	_, read := s.memory.devices[id]
	_, out := s.memory.out[id]
	return s.outside != nil && read && !out && s.memory.letGo[id]
}

// goes notes what NVML holds no more, now that it is shut down, with what was last
// seen of it.
func (s *Source) goes(seen []gpu.Device) []gpu.UUID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []gpu.UUID
	for _, id := range s.memory.order {
		if !s.mayGo(id) {
			continue
		}
		fault := find(seen, id).Fault
		if fault.Reason == "" {
			fault = gpu.Fault{Reason: gpu.ReasonUnwatched, Message: letGoMessage}
		}
		s.memory.out[id] = fault
		ids = append(ids, id)
	}
	return ids
}

// out returns the GPUs that must not be asked, by index, as they were last read.
// Where another number of GPUs is counted than before, an index may be another's:
// then all are asked.
func (s *Source) out(count int) map[int]reading {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.memory.order) != count {
		clear(s.memory.out)
	}
	all := map[int]reading{}
	for i, id := range s.memory.order {
		if fault, out := s.memory.out[id]; out {
			r := clone(s.memory.devices[id])
			r.Index, r.Fault = i, fault
			all[i] = r
		}
	}
	return all
}

// isOut says that the GPU must not be asked.
func (s *Source) isOut(id gpu.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, out := s.memory.out[id]
	return out
}

// glance is what another process saw of a GPU.
type glance struct {
	id     gpu.UUID
	device gpu.Device
	err    error
}

// glanceAtOne has the GPU that was not looked at for longest, of those that were let go
// of, looked at from outside, when it is time, and nobody looks already.
func (w *watch) glanceAtOne() {
	if w.glancing {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	index := -1
	for i, id := range w.memory.order {
		if _, out := w.memory.out[id]; out && time.Since(w.glanced[id]) >= w.outsideEvery && (index < 0 || w.glanced[id].Before(w.glanced[w.memory.order[index]])) {
			index = i
		}
	}
	if index < 0 {
		return
	}
	id := w.memory.order[index]
	w.glanced[id], w.glancing = time.Now(), true
	w.looking.Go(func() {
		d, err := w.outside(w.ctx, index)
		w.glances <- glance{id, d, err}
	})
}

// saw takes in what was seen from outside. A GPU of which the driver said what was
// wrong, and says so no more, is held and watched again.
func (w *watch) saw(g glance) error {
	w.glancing = false
	if g.err != nil {
		if why := g.err.Error(); w.ctx.Err() == nil && w.unseen[g.id] != why {
			w.unseen[g.id] = why
			w.log.Warn("whether a GPU was reset cannot be seen", "gpu", string(g.id), "message", why)
		}
		return nil
	}
	delete(w.unseen, g.id)
	w.mu.Lock()
	was, out := w.memory.out[g.id]
	switch {
	case !out:
	case g.device.Fault.Reason != "" && (g.device.UUID == "" || g.device.UUID == g.id):
		w.memory.out[g.id] = g.device.Fault
	case g.device.UUID != g.id, was.Message != letGoMessage:
		delete(w.memory.out, g.id)
		delete(w.memory.letGo, g.id) // until that is said again, by who has heard of it
	}
	w.mu.Unlock()
	return w.look()
}

// Device reads the GPU with an index, and no other.
func (s *Source) Device(ctx context.Context, index int) (gpu.Device, error) {
	if err := s.open(); err != nil {
		return gpu.Device{}, err
	}
	r, err := call(ctx, s.calls, subject(index), func() (reading, error) { return s.readDevice(index) })
	switch {
	case err != nil && wholeDriver(err):
		return gpu.Device{}, fmt.Errorf("reading GPU %d: %w", index, err)
	case err != nil:
		r.Fault = faultOf(err)
	}
	return r.Device, nil
}
