package nvml

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// A driver does not reset a GPU that a process has open. NVML opens a GPU when a
// handle of it is requested, and closes it only when NVML is shut down (nvml.h at
// nvmlInit_v2 and nvmlDeviceGetHandleByIndex_v2). To release a GPU, the Source shuts
// NVML down, initialises it again, and requests handles of the other GPUs only.
// Another process, which ends at once, finds out whether the GPU was reset since.

// OutsideReader reads one GPU in another process, which has the GPU open only for that
// time. It returns soon after ctx ends, even if that process hangs.
type OutsideReader func(ctx context.Context, index int) (gpu.Device, error)

// outsideEvery is the interval at which a released GPU is read from outside. Each
// read blocks a reset while it lasts: seconds, without persistence mode.
const outsideEvery = 30 * time.Second

// letGoMessage is the fault message of a released GPU that has no fault of its own.
const letGoMessage = "it is not held open, so that it can be reset, and so not watched"

// Release sets the GPUs that Watch is to release; it keeps all others open. Watch
// releases them once there was no event for a while, or after the longest wait for
// that. Snapshot returns them as last read. Without Options.Outside, Watch releases
// only GPUs that were lost.
func (s *Source) Release(ids []gpu.UUID) {
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
		default: // already signaled
		}
	}
}

// releases reports whether there are GPUs to release, and whether any is released.
func (s *Source) releases() (wanted, out bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.memory.order, s.canRelease), len(s.memory.out) > 0
}

// canRelease reports whether a GPU is to be released and can be. s.mu is held.
func (s *Source) canRelease(id gpu.UUID) bool {
	_, read := s.memory.devices[id]
	_, out := s.memory.out[id]
	return s.outside != nil && read && !out && s.memory.letGo[id]
}

// markReleased records the GPUs to be released as released, with their last known
// faults, and returns them. NVML is shut down.
func (s *Source) markReleased(seen []gpu.Device) []gpu.UUID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []gpu.UUID
	for _, id := range s.memory.order {
		if !s.canRelease(id) {
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

// released returns the released GPUs, which must not be opened, by index, as they
// were last read, also from outside. If the driver counts another number of GPUs than before, an index
// may belong to another GPU; then no GPU stays released.
func (s *Source) released(count int) map[int]reading {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.memory.order) != count {
		clear(s.memory.out)
	}
	all := map[int]reading{}
	for i, id := range s.memory.order {
		if fault, out := s.memory.out[id]; out {
			r := clone(s.memory.devices[id])
			r.Index, r.Fault, r.Notes, r.Recovery = i, fault, nil, ""
			all[i] = r
		}
	}
	return all
}

// isReleased reports whether a GPU is released and must not be opened.
func (s *Source) isReleased(id gpu.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, out := s.memory.out[id]
	return out
}

// outsideReading is the result of reading a GPU in another process.
type outsideReading struct {
	id     gpu.UUID
	device gpu.Device
	err    error
}

// readNextOutside starts to read a released GPU from outside, if one is due and no
// such read is under way. It picks the one whose last read is oldest. A GPU that is being released
// is not read yet: somebody waits to reset it.
func (w *watch) readNextOutside() {
	if w.readingOutside || w.cycled != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	index := -1
	for i, id := range w.memory.order {
		if _, out := w.memory.out[id]; out && time.Since(w.outsideReadAt[id]) >= w.outsideEvery && (index < 0 || w.outsideReadAt[id].Before(w.outsideReadAt[w.memory.order[index]])) {
			index = i
		}
	}
	if index < 0 {
		return
	}
	id := w.memory.order[index]
	w.outsideReadAt[id], w.readingOutside = time.Now(), true
	w.outsideReader.Go(func() {
		d, err := w.outside(w.ctx, index)
		w.outsideReadings <- outsideReading{id, d, err}
	})
}

// handleOutside applies a reading from outside. A GPU whose fault in the driver is
// gone is opened and watched again.
func (w *watch) handleOutside(g outsideReading) error {
	w.readingOutside = false
	if g.err != nil {
		if why := g.err.Error(); w.ctx.Err() == nil && w.outsideErrors[g.id] != why {
			w.outsideErrors[g.id] = why
			w.log.Warn("cannot find out whether a GPU was reset", "gpu", string(g.id), "message", why)
		}
		return nil
	}
	delete(w.outsideErrors, g.id)
	w.mu.Lock()
	was, out := w.memory.out[g.id]
	if r, known := w.memory.devices[g.id]; known && g.device.UUID == g.id && g.device.Fault.Reason == "" {
		r.Remap = g.device.Remap
		w.memory.devices[g.id] = r
	}
	switch {
	case !out:
	case g.device.Fault.Reason != "" && (g.device.UUID == "" || g.device.UUID == g.id):
		w.memory.out[g.id] = g.device.Fault
	case g.device.UUID != g.id, was.Message != letGoMessage:
		delete(w.memory.out, g.id)
		delete(w.memory.letGo, g.id) // until the next Release, by a caller who knows of this
	}
	w.mu.Unlock()
	return w.probeAll()
}

// Device reads only the GPU with the given index.
func (s *Source) Device(ctx context.Context, index int) (gpu.Device, error) {
	if err := s.checkOpen(); err != nil {
		return gpu.Device{}, err
	}
	r, err := call(ctx, s.calls, fmt.Sprintf("GPU %d", index), func() (reading, error) { return s.readDevice(index) })
	switch {
	case err != nil && wholeDriver(err):
		return gpu.Device{}, fmt.Errorf("reading GPU %d: %w", index, err)
	case err != nil:
		r.Fault = faultOf(err)
	}
	return r.Device, nil
}
