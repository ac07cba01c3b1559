package health

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// ApplySnapshot returns the State after a snapshot. It removes the faults that have the evidence
// they require, if the snapshot shows their GPU without a fault.
func (s State) ApplySnapshot(snap gpu.Snapshot, now time.Time) State {
	s = s.cloneGPUs()
	if snap.Driver.Version != "" {
		if s.driverVersion != "" && snap.Driver.Version != s.driverVersion {
			s = s.updateGPUs("", now, func(g GPU) GPU { return g.addEvidence(reload) })
		}
		s.driverVersion = snap.Driver.Version
	}
	seen, parts := map[gpu.UUID]bool{}, map[gpu.UUID]bool{}
	unnamed := listUnnamed(snap)
	for i, d := range snap.Devices {
		if d.UUID == "" || hasDecisiveTwin(snap.Devices, i) {
			continue
		}
		read := d.Fault
		d = s.policy.Judge(d)
		seen[d.UUID] = true
		for _, m := range d.MIG {
			parts[m.UUID] = true
		}
		g := s.gpuOrNew(d.UUID, now)
		switch {
		case d.Fault.Reason == "", read.Reason == "":
			before := g.Device
			g = g.endInstances(func(instance int) bool { return !isSameInstance(before, d, instance) })
		case len(d.MIG) == 0: // it cannot list them; they share its fault
			d.MIGEnabled, d.MIG, d.Profiles, d.Instances = g.Device.MIGEnabled, g.Device.MIG, g.Device.Profiles, g.Device.Instances
		}
		g.Device, g.Present = d, true
		if g.watchedSince.IsZero() && s.unwatchable.Reason == "" && g.unwatched.Reason == "" {
			g.watchedSince = now
		}
		if read != d.Fault && d.Fault.Reason != "" { // by the configuration: it does not show a reset
			s.gpus[d.UUID] = g.addMark(wholeGPU, d.Fault, snapshotOnly, now)
			continue
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
		if i := slices.IndexFunc(unnamed, func(n unnamedGPU) bool { return n.couldBe(g.Device.PCI) }); i >= 0 {
			fault = unnamed[i].fault // it may be this one
		}
		s.gpus[id] = g.applyFault(fault, now)
	}
	return s
}

// hasDecisiveTwin reports whether another GPU of a snapshot has the UUID of devices[i] and decides what is
// known of both: the first with a fault that nothing reaches, else the first with any fault, else the first.
// Whoever is given the UUID may get either.
func hasDecisiveTwin(devices []gpu.Device, i int) bool {
	rank := func(d gpu.Device) int {
		switch d.Fault.Reason {
		case gpu.ReasonLost:
			return 2
		case "":
			return 0
		}
		return 1
	}
	return slices.ContainsFunc(devices[:i], func(d gpu.Device) bool { return d.UUID == devices[i].UUID && rank(d) >= rank(devices[i]) }) ||
		slices.ContainsFunc(devices[i+1:], func(d gpu.Device) bool { return d.UUID == devices[i].UUID && rank(d) > rank(devices[i]) })
}

// ApplyCreated returns the State after a GPU instance was created. The driver may have given it the number of one that
// was destroyed before the GPU was read, whose faults are not its own.
func (s State) ApplyCreated(made gpu.Partition, now time.Time) State {
	if _, known := s.gpus[made.GPU]; !known {
		return s
	}
	return s.updateGPUs(made.GPU, now, func(g GPU) GPU {
		return g.endInstances(func(instance int) bool { return instance == made.GPUInstance })
	})
}

// ApplyDestroyed returns the State after the GPU instance at a placement was destroyed.
func (s State) ApplyDestroyed(at gpu.Placement, now time.Time) State {
	if _, known := s.gpus[at.GPU]; !known {
		return s
	}
	return s.updateGPUs(at.GPU, now, func(g GPU) GPU {
		return g.endInstances(func(instance int) bool {
			is, placed := findInstance(g.Device, instance)
			return placed && is.Start == at.Start && is.Size == at.Size
		})
	})
}

// applyFault returns the GPU after a snapshot has shown it with a fault, or with none.
func (g GPU) applyFault(fault gpu.Fault, now time.Time) GPU {
	g = g.applyAnswer(fault, now)
	if fault.Reason == "" {
		wasReset := wantsNothing(g.Device)
		g.marks = slices.DeleteFunc(slices.Clone(g.marks), func(m faultMark) bool { return m.evidence >= m.needs && (m.needs < reset || wasReset) })
		return g
	}
	if !slices.ContainsFunc(g.marks, func(m faultMark) bool { return m.scope == wholeGPU }) {
		g = g.addMark(wholeGPU, fault, snapshotOnly, now)
	}
	switch fault.Reason {
	case gpu.ReasonLost, gpu.ReasonMissing, gpu.ReasonResetNeeded:
		return g.addEvidence(reset)
	}
	return g.resetQuiet(now)
}

// wantsNothing reports whether neither the driver nor the memory of the GPU waits for a reset or anything else. While
// one does, the GPU has not been reset, though what it waits for may be no fault.
func wantsNothing(d gpu.Device) bool {
	return (d.Recovery == "" || d.Recovery == gpu.RecoverNothing) && d.Remap == gpu.RemapNone
}

// ApplyEvent returns the State after an event. The caller should take a snapshot after an
// event that reports a change or a loss.
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
		return s.applyRule(s.policy.Rule(48), e.UUID, wholeGPU, fault, now)
	case gpu.EventLost:
		fault := gpu.Fault{Reason: gpu.ReasonLost, Message: joinText("the driver cannot reach the GPU", e.Message)}
		s = s.applyRule(Rule{gpu.ActionUnhealthy, gpu.RecoveryReset}, e.UUID, wholeGPU, fault, now)
		if !e.Observed {
			return s
		}
		return s.updateGPUs(e.UUID, now, func(g GPU) GPU { return g.addEvidence(reset) })
	case gpu.EventUnwatched:
		fault := gpu.Fault{Reason: gpu.ReasonUnwatched, Message: joinText("its health cannot be watched", e.Message)}
		if e.UUID == "" {
			return s.SetUnwatchable(fault, false, now)
		}
		return s.updateGPUs(e.UUID, now, func(g GPU) GPU {
			if g.unwatched.Reason == "" {
				g.unwatched, g.unwatchedSince = fault, now
			}
			return g.setUnwatched(now)
		})
	case gpu.EventGap:
		return s.updateGPUs(e.UUID, now, func(g GPU) GPU {
			wasWatched := !g.watchedSince.IsZero()
			if g = g.setUnwatched(now); wasWatched {
				g.watchedSince = now // it is watched again, and its quiet period restarts
			}
			return g
		})
	}
	return s
}

// applyRule records a fault as a rule requires.
func (s State) applyRule(r Rule, id gpu.UUID, at scope, fault gpu.Fault, now time.Time) State {
	switch r.Action {
	case gpu.ActionIgnore:
		return s
	case gpu.ActionAsk:
		return s.updateGPUs(id, now, func(g GPU) GPU { return g.recordQuestion(fault, evidenceFor(r.Recovery), now) })
	}
	return s.updateGPUs(id, now, func(g GPU) GPU {
		if !g.Device.MIGEnabled { // some drivers then name instance 0
			return g.addMark(wholeGPU, fault, evidenceFor(r.Recovery), now)
		}
		return g.addMark(at, fault, evidenceFor(r.Recovery), now)
	})
}

// scopeOfEvent returns the part of the GPU that an XID affects: for a contained XID,
// the GPU instance that the driver names. Its compute instances are not told apart:
// they have multiprocessors of their own, but share the instance's memory and its other
// engines (nvml.h at NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED; the MIG user guide
// promises fault isolation between GPU instances alone).
func scopeOfEvent(e gpu.Event) scope {
	info, known := gpu.XID(e.XID)
	if !known || !info.Contained || e.UUID == "" || e.GPUInstance < 0 {
		return wholeGPU
	}
	return scope{e.GPUInstance, -1}
}

func joinText(text, detail string) string {
	if detail == "" || detail == text {
		return text
	}
	return fmt.Sprintf("%s: %s", text, detail)
}

// SetUnwatchable records that no GPU can be watched any more. unloaded means that the kernel module
// is gone: it initialises every GPU when it is loaded again.
func (s State) SetUnwatchable(why gpu.Fault, unloaded bool, now time.Time) State {
	if s.unwatchable.Reason == "" {
		s.unwatchableSince = now
	}
	s.unwatchable = why
	return s.updateGPUs("", now, func(g GPU) GPU {
		if unloaded {
			g = g.addEvidence(reload)
		}
		return g.setUnwatched(now)
	})
}

// setUnwatched returns the GPU as no longer watched. Its quiet period begins anew.
func (g GPU) setUnwatched(now time.Time) GPU {
	g.watchedSince = time.Time{}
	return g.resetQuiet(now)
}

// SetAllWatched records that all GPUs are watched now. An event reports those that are not.
func (s State) SetAllWatched(now time.Time) State {
	s.unwatchable, s.unwatchableSince = gpu.Fault{}, time.Time{}
	return s.updateGPUs("", now, func(g GPU) GPU {
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
	return s.updateGPUs("", now, func(g GPU) GPU {
		if g.unwatched.Reason == "" {
			g.watchedSince = now
		}
		return g
	})
}

// SetWatched records that a GPU is watched. If it was watched before, its quiet period goes on.
func (s State) SetWatched(id gpu.UUID, now time.Time) State {
	return s.updateGPUs(id, now, func(g GPU) GPU {
		g.unwatched, g.unwatchedSince = gpu.Fault{}, time.Time{}
		if s.unwatchable.Reason == "" && g.watchedSince.IsZero() {
			g.watchedSince = now
		}
		return g
	})
}
