package health

import (
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// To recover by being quiet takes the caller: at NextLook it tries each device
// that is Due, says what came of it with Probed, and takes a new snapshot.

// Probe is what trying a device has shown.
type Probe struct {
	ID     gpu.UUID // of a GPU or MIG device, as Due named it
	Began  time.Time
	Passed bool
}

// NextLook says when to look again at devices that recover by being quiet. It is
// not before now; ok is false while there are none.
func (s State) NextLook(now time.Time) (at time.Time, ok bool) {
	for _, w := range s.waiting() {
		due := w.due
		if due.Before(now) {
			due = now
		}
		if !ok || due.Before(at) {
			at, ok = due, true
		}
	}
	return at, ok
}

// Due returns the GPUs and MIG devices that have been quiet for long enough and
// are to be tried, in the order of GPUs.
func (s State) Due(now time.Time) []gpu.UUID {
	var ids []gpu.UUID
	for _, w := range s.waiting() {
		if !w.tried && !w.due.After(now) && !slices.Contains(ids, w.id) {
			ids = append(ids, w.id)
		}
	}
	return ids
}

// Probed takes into account what trying a device has shown. One that failed has
// to be quiet from now on; one that passed is healthy if the next snapshot shows
// nothing wrong. A probe that began before the device was Due proves nothing.
func (s State) Probed(p Probe, now time.Time) State {
	g, _, known := s.find(p.ID)
	if !known {
		return s
	}
	due := map[scope]bool{}
	for _, w := range s.waiting() {
		if w.gpu == g.Device.UUID && !w.due.After(p.Began) {
			due[w.scope] = true
		}
	}
	return s.change(g.Device.UUID, now, func(g GPU) GPU {
		g.marks = slices.Clone(g.marks)
		for i := range g.marks {
			m := &g.marks[i]
			switch {
			case m.needs != quiet || g.target(m.scope) != p.ID:
			case !p.Passed:
				m.last, m.proof = now, shown
			case due[m.scope]:
				m.proof = max(m.proof, quiet)
			}
		}
		return g
	})
}

// wait is a mark that waits for its device to have been quiet.
type wait struct {
	gpu, id gpu.UUID // the GPU, and what of it is to be tried
	scope   scope
	due     time.Time
	tried   bool // it passed: a snapshot is what is missing
}

// waiting returns what waits, of GPUs that are listened to and have nothing else
// against them.
func (s State) waiting() []wait {
	var list []wait
	for _, g := range s.GPUs() {
		if !g.Present || g.heard.IsZero() || g.Device.Fault.Reason != "" ||
			slices.ContainsFunc(g.marks, func(m mark) bool { return m.scope == whole && m.needs != quiet }) {
			continue
		}
		for _, m := range g.marks {
			if m.needs != quiet {
				continue
			}
			begin := m.last
			if g.heard.After(begin) {
				begin = g.heard
			}
			list = append(list, wait{g.Device.UUID, g.target(m.scope), m.scope, begin.Add(s.policy.Quiet()), m.proof >= quiet})
		}
	}
	return list
}

// target is what has to be tried to see whether a part of the GPU works: the MIG
// device that it is, else the GPU.
func (g GPU) target(at scope) gpu.UUID {
	var found []gpu.UUID
	for _, d := range g.Device.MIG {
		if at != whole && at.has(scopeOf(d)) {
			found = append(found, d.UUID)
		}
	}
	if len(found) == 1 {
		return found[0]
	}
	return g.Device.UUID
}
