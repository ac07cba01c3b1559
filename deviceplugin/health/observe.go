package health

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// ApplySnapshot applies a new snapshot.
func (s State) ApplySnapshot(snap gpu.Snapshot, now time.Time) State {
	s = s.clone()
	if snap.Driver.Version != "" {
		if s.driver != "" && snap.Driver.Version != s.driver {
			s = s.update("", now, func(g GPU) GPU { return g.addEvidence(reload) })
		}
		s.driver = snap.Driver.Version
	}
	seen, parts := map[gpu.UUID]bool{}, map[gpu.UUID]bool{}
	unnamed := namelessIn(snap)
	for _, d := range snap.Devices {
		if d.UUID == "" {
			continue
		}
		seen[d.UUID] = true
		for _, m := range d.MIG {
			parts[m.UUID] = true
		}
		g := s.gpuOrNew(d.UUID, now)
		if d.Fault.Reason != "" && len(d.MIG) == 0 {
			d.MIGEnabled, d.MIG = g.Device.MIGEnabled, g.Device.MIG // it cannot list them; they share its fault
		}
		g.Device, g.Present = d, true
		if g.watchedSince.IsZero() && s.unwatchable.Reason == "" && g.unwatched.Reason == "" {
			g.watchedSince = now
		}
		s.gpus[d.UUID] = g.applyFault(d.Fault, now)
	}
	for id, g := range s.gpus {
		if seen[id] {
			continue
		}
		g.Present = false
		// Remembered MIG devices that another GPU has now are not its own.
		g.Device.MIG = slices.DeleteFunc(slices.Clone(g.Device.MIG), func(m gpu.MIGDevice) bool { return parts[m.UUID] })
		fault := gpu.Fault{Reason: gpu.ReasonMissing, Message: "was present in this boot, but the driver no longer lists it"}
		if i := slices.IndexFunc(unnamed, func(n nameless) bool { return n.couldBe(g.Device.PCI) }); i >= 0 {
			fault = unnamed[i].fault // it may be this one
		}
		s.gpus[id] = g.applyFault(fault, now)
	}
	return s
}

// applyFault returns the GPU after a snapshot has shown it with a fault, or with none.
func (g GPU) applyFault(fault gpu.Fault, now time.Time) GPU {
	if fault.Reason == "" {
		g.marks = slices.DeleteFunc(slices.Clone(g.marks), func(m mark) bool { return m.proof >= m.needs })
		return g
	}
	if !slices.ContainsFunc(g.marks, func(m mark) bool { return m.scope == whole }) {
		g = g.addMark(whole, fault, snapshotOnly, now)
	}
	switch fault.Reason {
	case gpu.ReasonLost, gpu.ReasonMissing, gpu.ReasonResetNeeded:
		return g.addEvidence(reset)
	}
	return g.resetQuiet(now)
}

// ApplyEvent applies an event. The caller should take a snapshot after an event that reports
// a change or a loss.
func (s State) ApplyEvent(e gpu.Event, now time.Time) State {
	if !e.Time.IsZero() && e.Time.Before(now) {
		now = e.Time
	}
	switch e.Kind {
	case gpu.EventXID:
		fault := gpu.Fault{Reason: gpu.ReasonXID, Message: joinText(gpu.XIDText(e.XID), e.Message), XID: e.XID}
		return s.applyRule(s.policy.Rule(e.XID), e.UUID, scopeOfEvent(e), fault, now)
	case gpu.EventECC:
		// The driver also reports it as XID 48.
		fault := gpu.Fault{Reason: gpu.ReasonECC, Message: joinText("uncorrectable ECC error", e.Message)}
		return s.applyRule(s.policy.Rule(48), e.UUID, whole, fault, now)
	case gpu.EventLost:
		fault := gpu.Fault{Reason: gpu.ReasonLost, Message: joinText("the driver cannot reach the GPU", e.Message)}
		s = s.applyRule(Rule{gpu.ActionUnhealthy, gpu.RecoveryReset}, e.UUID, whole, fault, now)
		if !e.Observed {
			return s
		}
		return s.update(e.UUID, now, func(g GPU) GPU { return g.addEvidence(reset) })
	case gpu.EventUnwatched:
		fault := gpu.Fault{Reason: gpu.ReasonUnwatched, Message: joinText("its health cannot be watched", e.Message)}
		if e.UUID == "" {
			return s.SetUnwatchable(fault, false, now)
		}
		return s.update(e.UUID, now, func(g GPU) GPU {
			if g.unwatched.Reason == "" {
				g.unwatched, g.unwatchedSince = fault, now
			}
			return g.withoutWatch(now)
		})
	case gpu.EventGap:
		return s.update(e.UUID, now, func(g GPU) GPU {
			listened := !g.watchedSince.IsZero()
			if g = g.withoutWatch(now); listened {
				g.watchedSince = now // it is watched again, and its quiet period restarts
			}
			return g
		})
	}
	return s
}

// applyRule handles an event as the rule requires.
func (s State) applyRule(r Rule, id gpu.UUID, at scope, fault gpu.Fault, now time.Time) State {
	if r.Action == gpu.ActionIgnore {
		return s
	}
	return s.update(id, now, func(g GPU) GPU { return g.addMark(at, fault, evidenceFor(r.Recovery), now) })
}

// scopeOfEvent returns the part of the GPU that an XID affects: for a contained XID,
// the GPU instance that the driver names. Its compute instances are not told apart:
// they have multiprocessors of their own, but share the instance's memory and its other
// engines (nvml.h at NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED; the MIG user guide
// promises fault isolation between GPU instances alone).
func scopeOfEvent(e gpu.Event) scope {
	info, known := gpu.XID(e.XID)
	if !known || !info.Contained || e.UUID == "" || e.GPUInstance < 0 {
		return whole
	}
	return scope{e.GPUInstance, -1}
}

func joinText(what, more string) string {
	if more == "" || more == what {
		return what
	}
	return fmt.Sprintf("%s: %s", what, more)
}

// SetUnwatchable records that nothing can be watched any more. unloaded means that the driver is
// gone: it initialises every GPU when it comes back.
func (s State) SetUnwatchable(why gpu.Fault, unloaded bool, now time.Time) State {
	if s.unwatchable.Reason == "" {
		s.unwatchableSince = now
	}
	s.unwatchable = why
	return s.update("", now, func(g GPU) GPU {
		if unloaded {
			g = g.addEvidence(reload)
		}
		return g.withoutWatch(now)
	})
}

// withoutWatch returns the GPU as no longer watched, which discards its quiet period.
func (g GPU) withoutWatch(now time.Time) GPU {
	g.watchedSince = time.Time{}
	return g.resetQuiet(now)
}

// Watching records that watching has begun for all GPUs. An event reports the
// exceptions.
func (s State) Watching(now time.Time) State {
	s.unwatchable, s.unwatchableSince = gpu.Fault{}, time.Time{}
	return s.update("", now, func(g GPU) GPU {
		g.unwatched, g.unwatchedSince, g.watchedSince = gpu.Fault{}, time.Time{}, now
		return g
	})
}

// SetResponding records that the driver responds again after an event reported it silent
// for all GPUs. A GPU that could not be watched before still cannot.
func (s State) SetResponding(now time.Time) State {
	if s.unwatchable.Reason == "" {
		return s
	}
	s.unwatchable, s.unwatchableSince = gpu.Fault{}, time.Time{}
	return s.update("", now, func(g GPU) GPU {
		if g.unwatched.Reason == "" {
			g.watchedSince = now
		}
		return g
	})
}

// Watched records that a GPU which could not be watched now is. A GPU that was watched
// all the time keeps its quiet period.
func (s State) Watched(id gpu.UUID, now time.Time) State {
	return s.update(id, now, func(g GPU) GPU {
		g.unwatched, g.unwatchedSince = gpu.Fault{}, time.Time{}
		if s.unwatchable.Reason == "" && g.watchedSince.IsZero() {
			g.watchedSince = now
		}
		return g
	})
}
