package health

import (
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// Recovery by quiet needs the caller's help: at NextProbe it probes each device
// that is Due, reports the result with Probed, and takes a new snapshot.

// Probe is the result of testing a device.
type Probe struct {
	ID     gpu.UUID // of a GPU or MIG device, as Due named it
	Began  time.Time
	Passed bool
}

// NextProbe returns when to probe the next device that recovers by quiet. The time is
// never before now; ok is false if there is no such device.
func (s State) NextProbe(now time.Time) (at time.Time, ok bool) {
	for _, w := range s.pendingProbes() {
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

// Due returns the GPUs and MIG devices whose quiet period is over and which must be
// probed now, in the order of GPUs.
func (s State) Due(now time.Time) []gpu.UUID {
	var ids []gpu.UUID
	for _, w := range s.pendingProbes() {
		if !w.probed && !w.due.After(now) && !slices.Contains(ids, w.id) {
			ids = append(ids, w.id)
		}
	}
	return ids
}

// ApplyProbe applies the result of a probe. A failed probe restarts the quiet period. A
// passed one makes the device healthy if the next snapshot shows no fault. A probe that
// began before the device was Due proves nothing.
func (s State) ApplyProbe(p Probe, now time.Time) State {
	g, _, known := s.find(p.ID)
	if !known {
		return s
	}
	due := map[scope]bool{}
	for _, w := range s.pendingProbes() {
		if w.gpu == g.Device.UUID && !w.due.After(p.Began) {
			due[w.scope] = true
		}
	}
	return s.update(g.Device.UUID, now, func(g GPU) GPU {
		g.marks = slices.Clone(g.marks)
		for i := range g.marks {
			m := &g.marks[i]
			switch {
			case m.needs != quiet || g.probeTarget(m.scope) != p.ID:
			case !p.Passed:
				m.last, m.proof = now, snapshotOnly
			case due[m.scope]:
				m.proof = max(m.proof, quiet)
			}
		}
		return g
	})
}

// pendingProbe is a mark whose device has to stay quiet until due.
type pendingProbe struct {
	gpu, id gpu.UUID // the GPU, and the part of it to probe
	scope   scope
	due     time.Time
	probed  bool // it passed; only a snapshot is missing
}

// pendingProbes returns the marks that wait for quiet, of GPUs that are watched and
// have no other fault.
func (s State) pendingProbes() []pendingProbe {
	var list []pendingProbe
	for _, g := range s.GPUs() {
		if !g.Present || g.watchedSince.IsZero() || g.Device.Fault.Reason != "" ||
			slices.ContainsFunc(g.marks, func(m mark) bool { return m.scope == whole && m.needs != quiet }) {
			continue
		}
		for _, m := range g.marks {
			if m.needs != quiet {
				continue
			}
			begin := m.last
			if g.watchedSince.After(begin) {
				begin = g.watchedSince
			}
			list = append(list, pendingProbe{g.Device.UUID, g.probeTarget(m.scope), m.scope, begin.Add(s.policy.Quiet()), m.proof >= quiet})
		}
	}
	return list
}

// probeTarget returns the device to probe for a part of the GPU: the MIG device that it
// is, else the GPU.
func (g GPU) probeTarget(at scope) gpu.UUID {
	var found []gpu.UUID
	for _, d := range g.Device.MIG {
		if at != whole && at.contains(scopeOf(d)) {
			found = append(found, d.UUID)
		}
	}
	if len(found) == 1 {
		return found[0]
	}
	return g.Device.UUID
}
