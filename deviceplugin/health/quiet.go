package health

import (
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// A device that recovers by quiet needs a probe. At NextProbe the caller probes each of DueProbes,
// passes the result to ApplyProbe, and takes a new snapshot.

// Probe is the result of testing a device.
type Probe struct {
	ID     gpu.UUID // of a GPU or MIG device, one of DueProbes
	Began  time.Time
	Passed bool
}

// NextProbe returns when to probe the next device that recovers by quiet. The time is
// never before now; ok is false if there is no such device.
func (s State) NextProbe(now time.Time) (at time.Time, ok bool) {
	for _, pending := range s.pendingProbes() {
		due := pending.due
		if due.Before(now) {
			due = now
		}
		if !ok || due.Before(at) {
			at, ok = due, true
		}
	}
	return at, ok
}

// DueProbes returns the GPUs and MIG devices whose quiet period is over and which must be
// probed now, in the order of GPUs.
func (s State) DueProbes(now time.Time) []gpu.UUID {
	var ids []gpu.UUID
	for _, pending := range s.pendingProbes() {
		if !pending.probed && !pending.due.After(now) && !slices.Contains(ids, pending.id) {
			ids = append(ids, pending.id)
		}
	}
	return ids
}

// ApplyProbe applies the result of a probe. A failed probe restarts the quiet period. A
// passed one makes the device healthy if the next snapshot shows no fault. A probe that
// began before the device was due has no effect.
func (s State) ApplyProbe(p Probe, now time.Time) State {
	g, _, known := s.findDevice(p.ID)
	if !known {
		return s
	}
	due := map[scope]bool{}
	for _, pending := range s.pendingProbes() {
		if pending.gpu == g.Device.UUID && !pending.due.After(p.Began) {
			due[pending.scope] = true
		}
	}
	return s.updateGPUs(g.Device.UUID, now, func(g GPU) GPU {
		g.marks = slices.Clone(g.marks)
		for i := range g.marks {
			m := &g.marks[i]
			switch {
			case m.needs != quiet || g.probeTarget(m.scope) != p.ID:
			case !p.Passed:
				m.lastEvent, m.evidence = now, snapshotOnly
			case due[m.scope]:
				m.evidence = max(m.evidence, quiet)
			}
		}
		return g
	})
}

// pendingProbe is a fault that is removed by quiet: its device must have no event until due, and
// then pass a probe.
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
		polled := g.Device.HasNote(gpu.NoteNoXIDs)
		if !g.Present || polled || g.watchedSince.IsZero() || g.Device.Fault.Reason != "" ||
			slices.ContainsFunc(g.marks, func(m faultMark) bool { return m.scope == wholeGPU && m.needs != quiet }) {
			continue
		}
		for _, m := range g.marks {
			if m.needs != quiet {
				continue
			}
			begin := m.lastEvent
			if g.watchedSince.After(begin) {
				begin = g.watchedSince
			}
			list = append(list, pendingProbe{g.Device.UUID, g.probeTarget(m.scope), m.scope, begin.Add(s.policy.QuietPeriod()), m.evidence >= quiet})
		}
	}
	return list
}

// probeTarget returns the device to probe for a part of the GPU: its MIG device if the part is
// exactly one, else the GPU.
func (g GPU) probeTarget(at scope) gpu.UUID {
	var found []gpu.UUID
	for _, d := range g.Device.MIG {
		if at != wholeGPU && at.contains(scopeOf(d)) {
			found = append(found, d.UUID)
		}
	}
	if len(found) == 1 {
		return found[0]
	}
	return g.Device.UUID
}
