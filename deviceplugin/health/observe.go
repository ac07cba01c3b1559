package health

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// See takes a new snapshot into account.
func (s State) See(snap gpu.Snapshot, now time.Time) State {
	s = s.clone()
	if snap.Driver.Version != "" {
		if s.driver != "" && snap.Driver.Version != s.driver {
			s = s.change("", now, func(g GPU) GPU { return g.prove(reload) })
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
		g := s.get(d.UUID, now)
		if d.Fault.Reason != "" && len(d.MIG) == 0 {
			d.MIGEnabled, d.MIG = g.Device.MIGEnabled, g.Device.MIG // it cannot tell; they go with it
		}
		g.Device, g.Present = d, true
		if g.heard.IsZero() && s.blind.Reason == "" && g.unwatched.Reason == "" {
			g.heard = now
		}
		s.gpus[d.UUID] = g.shown(d.Fault, now)
	}
	for id, g := range s.gpus {
		if seen[id] {
			continue
		}
		g.Present = false
		// What is remembered of it may be wrong: a part of another GPU is none of it.
		g.Device.MIG = slices.DeleteFunc(slices.Clone(g.Device.MIG), func(m gpu.MIGDevice) bool { return parts[m.UUID] })
		fault := gpu.Fault{Reason: gpu.ReasonMissing, Message: "was there in this boot, and the driver lists it no more"}
		if i := slices.IndexFunc(unnamed, func(n nameless) bool { return n.maybe(g.Device.PCI) }); i >= 0 {
			fault = unnamed[i].fault // it is not known to be gone
		}
		s.gpus[id] = g.shown(fault, now)
	}
	return s
}

// shown is the GPU after a snapshot has shown it with that fault.
func (g GPU) shown(fault gpu.Fault, now time.Time) GPU {
	if fault.Reason == "" {
		g.marks = slices.DeleteFunc(slices.Clone(g.marks), func(m mark) bool { return m.proof >= m.needs })
		return g
	}
	if !slices.ContainsFunc(g.marks, func(m mark) bool { return m.scope == whole }) {
		g = g.note(whole, fault, shown, now)
	}
	switch fault.Reason {
	case gpu.ReasonLost, gpu.ReasonMissing, gpu.ReasonResetNeeded:
		return g.prove(reset)
	}
	return g.disturb(now)
}

// Hear takes an event into account. An event that tells of a change, or of a
// loss, should be followed by a snapshot.
func (s State) Hear(e gpu.Event, now time.Time) State {
	if !e.Time.IsZero() && e.Time.Before(now) {
		now = e.Time
	}
	switch e.Kind {
	case gpu.EventXID:
		fault := gpu.Fault{Reason: gpu.ReasonXID, Message: text(gpu.XIDText(e.XID), e.Message), XID: e.XID}
		return s.heed(s.policy.Rule(e.XID), e.UUID, where(e), fault, now)
	case gpu.EventECC:
		// The driver tells of it a second time, as XID 48.
		fault := gpu.Fault{Reason: gpu.ReasonECC, Message: text("uncorrectable ECC error", e.Message)}
		return s.heed(s.policy.Rule(48), e.UUID, whole, fault, now)
	case gpu.EventLost:
		fault := gpu.Fault{Reason: gpu.ReasonLost, Message: text("the driver cannot reach the GPU", e.Message)}
		s = s.heed(Rule{gpu.ActionUnhealthy, gpu.RecoveryReset}, e.UUID, whole, fault, now)
		if !e.Seen {
			return s
		}
		return s.change(e.UUID, now, func(g GPU) GPU { return g.prove(reset) })
	case gpu.EventUnwatched:
		fault := gpu.Fault{Reason: gpu.ReasonUnwatched, Message: text("its health cannot be watched", e.Message)}
		if e.UUID == "" {
			return s.Blind(fault, false, now)
		}
		return s.change(e.UUID, now, func(g GPU) GPU {
			if g.unwatched.Reason == "" {
				g.unwatched, g.unsince = fault, now
			}
			return g.deaf(now)
		})
	case gpu.EventGap:
		return s.change(e.UUID, now, func(g GPU) GPU {
			listened := !g.heard.IsZero()
			if g = g.deaf(now); listened {
				g.heard = now // it is listened to again, and what is quiet begins anew
			}
			return g
		})
	}
	return s
}

// heed does what the rule says about an event.
func (s State) heed(r Rule, id gpu.UUID, at scope, fault gpu.Fault, now time.Time) State {
	if r.Action == gpu.ActionIgnore {
		return s
	}
	return s.change(id, now, func(g GPU) GPU { return g.note(at, fault, needed(r.Recovery), now) })
}

// where is the part of the GPU that an XID concerns: for one that is known to stay
// there, the GPU instance that the driver names. Its compute instances are not told
// apart: they have multiprocessors of their own, but share the instance's memory and
// its other engines (nvml.h at NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED; the MIG
// user guide promises fault isolation between GPU instances alone).
func where(e gpu.Event) scope {
	info, known := gpu.XID(e.XID)
	if !known || !info.Contained || e.UUID == "" || e.GPUInstance < 0 {
		return whole
	}
	return scope{e.GPUInstance, -1}
}

func text(what, more string) string {
	if more == "" || more == what {
		return what
	}
	return fmt.Sprintf("%s: %s", what, more)
}

// Blind says that nothing can be watched any more. unloaded says that this is
// because the driver is not there: it initialises every GPU when it comes back.
func (s State) Blind(why gpu.Fault, unloaded bool, now time.Time) State {
	if s.blind.Reason == "" {
		s.since = now
	}
	s.blind = why
	return s.change("", now, func(g GPU) GPU {
		if unloaded {
			g = g.prove(reload)
		}
		return g.deaf(now)
	})
}

// deaf is the GPU when nothing is heard of it any more: being quiet is worth
// nothing then.
func (g GPU) deaf(now time.Time) GPU {
	g.heard = time.Time{}
	return g.disturb(now)
}

// Watching says that watching has begun, for all GPUs that do not say otherwise
// by an event.
func (s State) Watching(now time.Time) State {
	s.blind, s.since = gpu.Fault{}, time.Time{}
	return s.change("", now, func(g GPU) GPU {
		g.unwatched, g.unsince, g.heard = gpu.Fault{}, time.Time{}, now
		return g
	})
}

// Answering says that the driver, which an event had said of all GPUs to be
// silent, answers again. A GPU that could not be watched before still cannot.
func (s State) Answering(now time.Time) State {
	if s.blind.Reason == "" {
		return s
	}
	s.blind, s.since = gpu.Fault{}, time.Time{}
	return s.change("", now, func(g GPU) GPU {
		if g.unwatched.Reason == "" {
			g.heard = now
		}
		return g
	})
}

// Watched says that a GPU is watched, which could not be before. One that was
// watched all the time stays quiet since when it was.
func (s State) Watched(id gpu.UUID, now time.Time) State {
	return s.change(id, now, func(g GPU) GPU {
		g.unwatched, g.unsince = gpu.Fault{}, time.Time{}
		if s.blind.Reason == "" && g.heard.IsZero() {
			g.heard = now
		}
		return g
	})
}
