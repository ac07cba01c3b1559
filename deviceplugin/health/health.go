// Package health decides which GPUs may be given away. It is a pure state
// machine: a State is a value, what is seen and heard makes a new one, and
// nothing here touches the world.
//
// A GPU becomes unhealthy by what a snapshot shows (a Fault, or that it is
// missing), by an event (an XID that no application can cause, an uncorrectable
// ECC error, the loss of the GPU), and while it cannot be watched.
//
// It becomes healthy again only on evidence, and never because a process was
// started anew. Evidence is one of these:
//
//   - What a snapshot had shown is no longer there in a later snapshot.
//   - After an event: a snapshot showed the GPU out of service (lost, missing, in
//     need of a reset), and a later one shows it with nothing wrong. That is what a
//     reset looks like from outside.
//   - The driver's kernel module was unloaded or replaced since, which
//     initialises every GPU.
//
// What is remembered between two processes is in memory.go; it does not outlive
// the boot.
package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// State is the health of a node's GPUs at one moment. The zero State knows no
// GPU. States are never changed; methods return new ones.
type State struct {
	gpus   map[gpu.UUID]GPU
	driver string    // version of the kernel module when last seen
	blind  gpu.Fault // why nothing at all can be watched
	since  time.Time // of blind
	doubt  gpu.Fault // what is held against a GPU that is seen for the first time
}

// GPU is one GPU that was there in this boot.
type GPU struct {
	Device  gpu.Device // as last seen; with only UUID and NUMANode when it is remembered
	Present bool       // in the last snapshot

	fault     gpu.Fault // zero: nothing is held against it
	since     time.Time
	out       bool // seen out of service since the fault was noted
	unwatched gpu.Fault
	unsince   time.Time
}

// New returns the State of a node that nothing is known of. A doubt that is not
// zero is held against every GPU: the memory of this boot was lost.
func New(doubt gpu.Fault) State { return State{doubt: doubt} }

// Doubt returns what New was given.
func (s State) Doubt() gpu.Fault { return s.doubt }

// GPUs returns every GPU that was there in this boot, by index and then UUID.
func (s State) GPUs() []GPU {
	return slices.SortedFunc(maps.Values(s.gpus), func(a, b GPU) int {
		return cmp.Or(cmp.Compare(a.Device.Index, b.Device.Index), cmp.Compare(a.Device.UUID, b.Device.UUID))
	})
}

// Verdict says why the GPU must not be given away, and since when; the zero
// Fault means that it may. What is held against the GPU itself comes before
// what keeps it from being watched.
func (s State) Verdict(id gpu.UUID) (gpu.Fault, time.Time) {
	g := s.gpus[id]
	switch {
	case g.fault.Reason != "":
		return g.fault, g.since
	case s.blind.Reason != "":
		return s.blind, s.since
	case g.unwatched.Reason != "":
		return g.unwatched, g.unsince
	}
	return gpu.Fault{}, time.Time{}
}

// See takes a new snapshot into account.
func (s State) See(snap gpu.Snapshot, now time.Time) State {
	s = s.clone()
	reloaded := s.driver != "" && snap.Driver.Version != "" && snap.Driver.Version != s.driver
	if snap.Driver.Version != "" {
		s.driver = snap.Driver.Version
	}
	seen := map[gpu.UUID]bool{}
	nameless := map[gpu.PCIAddress]gpu.Fault{} // too broken to tell their UUID
	for _, d := range snap.Devices {
		if d.UUID == "" {
			nameless[d.PCI] = d.Fault
			continue
		}
		seen[d.UUID] = true
		g, known := s.gpus[d.UUID]
		if !known && s.doubt.Reason != "" {
			g.fault, g.since = s.doubt, now
		}
		g.Device, g.Present = d, true
		g.out = g.out || reloaded
		s.gpus[d.UUID] = g.shown(d.Fault, now)
	}
	for id, g := range s.gpus {
		if seen[id] {
			continue
		}
		g.Present = false
		fault := nameless[g.Device.PCI]
		if fault.Reason == "" {
			fault = gpu.Fault{Reason: gpu.ReasonMissing, Message: "was there in this boot, and the driver lists it no more"}
		}
		s.gpus[id] = g.shown(fault, now)
	}
	return s
}

// shown is the GPU after a snapshot has shown it with that fault.
func (g GPU) shown(fault gpu.Fault, now time.Time) GPU {
	switch {
	case fault.Reason == "":
		if g.out {
			g.fault, g.since, g.out = gpu.Fault{}, time.Time{}, false
		}
	case g.fault.Reason == "":
		g.fault, g.since = fault, now
		g.out = true // it takes no more than a snapshot that does not show it
	case fault.Reason == gpu.ReasonLost, fault.Reason == gpu.ReasonMissing, fault.Reason == gpu.ReasonResetNeeded:
		g.out = true
	}
	return g
}

// Hear takes an event into account. An event that tells of a change, or of a
// loss, should be followed by a snapshot.
func (s State) Hear(e gpu.Event, now time.Time) State {
	if !e.Time.IsZero() && e.Time.Before(now) {
		now = e.Time
	}
	switch e.Kind {
	case gpu.EventXID:
		if info, ok := gpu.XID(e.XID); ok && info.Action == gpu.ActionIgnore {
			return s
		}
		return s.note(e, gpu.Fault{Reason: gpu.ReasonXID, Message: text(gpu.XIDText(e.XID), e.Message), XID: e.XID}, now)
	case gpu.EventECC:
		return s.note(e, gpu.Fault{Reason: gpu.ReasonECC, Message: text("uncorrectable ECC error", e.Message)}, now)
	case gpu.EventLost:
		return s.note(e, gpu.Fault{Reason: gpu.ReasonLost, Message: text("the driver cannot reach the GPU", e.Message)}, now)
	case gpu.EventUnwatched:
		fault := gpu.Fault{Reason: gpu.ReasonUnwatched, Message: text("its health cannot be watched", e.Message)}
		return s.change(e.UUID, func(g GPU) GPU {
			if g.unwatched.Reason == "" {
				g.unwatched, g.unsince = fault, now
			}
			return g
		})
	}
	return s
}

func text(what, more string) string {
	if more == "" || more == what {
		return what
	}
	return fmt.Sprintf("%s: %s", what, more)
}

// note holds a fault against a GPU. The first one stays, since it is the cause;
// a later one asks for evidence from after it.
func (s State) note(e gpu.Event, fault gpu.Fault, now time.Time) State {
	return s.change(e.UUID, func(g GPU) GPU {
		if g.fault.Reason == "" {
			g.fault, g.since = fault, now
		}
		g.out = false
		return g
	})
}

// change applies f to a GPU, known or not, or to all with id "".
func (s State) change(id gpu.UUID, f func(GPU) GPU) State {
	s = s.clone()
	if id != "" {
		g, known := s.gpus[id]
		if !known {
			g.Device = gpu.Device{UUID: id, NUMANode: -1}
		}
		s.gpus[id] = f(g)
		return s
	}
	for id, g := range s.gpus {
		s.gpus[id] = f(g)
	}
	return s
}

// Blind says that nothing can be watched any more. unloaded says that this is
// because the driver is not there: it initialises every GPU when it comes back.
func (s State) Blind(why gpu.Fault, unloaded bool, now time.Time) State {
	if s.blind.Reason == "" {
		s.since = now
	}
	s.blind = why
	if unloaded {
		s = s.change("", func(g GPU) GPU { g.out = true; return g })
	}
	return s
}

// Watching says that watching has begun, for all GPUs that do not say otherwise
// by an event.
func (s State) Watching() State {
	s.blind, s.since = gpu.Fault{}, time.Time{}
	return s.change("", func(g GPU) GPU {
		g.unwatched, g.unsince = gpu.Fault{}, time.Time{}
		return g
	})
}

// Watched says that a GPU which could not be watched is watched again.
func (s State) Watched(id gpu.UUID) State {
	return s.change(id, func(g GPU) GPU {
		g.unwatched, g.unsince = gpu.Fault{}, time.Time{}
		return g
	})
}

func (s State) clone() State {
	s.gpus = maps.Clone(s.gpus)
	if s.gpus == nil {
		s.gpus = map[gpu.UUID]GPU{}
	}
	return s
}

// DriverVersion is the version of the kernel module when it was last seen in
// this boot, "" if it was not.
func (s State) DriverVersion() string { return s.driver }
