// Package health decides which GPUs, and which MIG devices of them, may be given
// away. It is a pure state machine: a State is a value, what is seen and heard
// makes a new one, time is told to it, and nothing here touches the world.
//
// A GPU becomes unhealthy by what a snapshot shows (a Fault, or that it is
// missing), by an event (an XID that the Policy heeds, an uncorrectable ECC error,
// the loss of the GPU), and while it cannot be watched. Its MIG devices follow it.
// An XID that stays in a GPU instance of MIG, which the driver names with it,
// concerns the MIG devices of that instance alone, and the GPU as a whole.
//
// Something becomes healthy again only on evidence, and never because a process
// was started anew. What evidence it takes depends on what is held against it:
//
//   - What a snapshot had shown: that a later one does not show it.
//   - An event that recovers by being quiet: that it was watched for a while
//     without another one, then passed a probe, and then a snapshot showed it with
//     nothing wrong (quiet.go).
//   - Any other event: that a snapshot showed the GPU out of service (lost,
//     missing, in need of a reset), and a later one shows it with nothing wrong.
//     That is what a reset looks like from outside.
//   - An event that never recovers: that the driver's kernel module was unloaded or
//     replaced since, which initialises every GPU.
//
// More evidence than it takes is enough, too. What is remembered between two
// processes is in memory.go; it does not outlive the boot.
package health

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// State is the health of a node's GPUs at one moment. The zero State knows no
// GPU. States are never changed; methods return new ones.
type State struct {
	gpus   map[gpu.UUID]GPU
	policy Policy
	driver string    // version of the kernel module when last seen
	blind  gpu.Fault // why nothing at all can be watched
	since  time.Time // of blind
	doubt  gpu.Fault // what is held against a GPU that is seen for the first time
}

// GPU is one GPU that was there in this boot.
type GPU struct {
	Device  gpu.Device // as last seen; with only UUID and NUMANode when it is remembered
	Present bool       // in the last snapshot

	marks     []mark    // what is held against it, by scope; never changed in place
	heard     time.Time // since when it is watched without a gap; zero: it is not
	unwatched gpu.Fault
	unsince   time.Time
}

// New returns the State of a node that nothing is known of, with the default
// Policy. A doubt that is not zero is held against every GPU: the memory of this
// boot was lost.
func New(doubt gpu.Fault) State { return State{doubt: doubt} }

// WithPolicy returns the State with another Policy, for events from now on: what
// is held already takes the evidence that it took before.
func (s State) WithPolicy(p Policy) State {
	s.policy = p
	return s
}

// Policy is the one in force.
func (s State) Policy() Policy { return s.policy }

// Doubt returns what New was given.
func (s State) Doubt() gpu.Fault { return s.doubt }

// DriverVersion is the version of the kernel module when it was last seen in
// this boot, "" if it was not.
func (s State) DriverVersion() string { return s.driver }

// GPUs returns every GPU that was there in this boot, by index and then UUID.
func (s State) GPUs() []GPU {
	return slices.SortedFunc(maps.Values(s.gpus), func(a, b GPU) int {
		return cmp.Or(cmp.Compare(a.Device.Index, b.Device.Index), cmp.Compare(a.Device.UUID, b.Device.UUID))
	})
}

// Verdict says why the GPU or MIG device must not be given away, and since when;
// the zero Fault means that it may. What is held against it comes before what
// keeps it from being watched. A GPU as a whole is not better than any part of
// it. What nobody has seen is Missing.
func (s State) Verdict(id gpu.UUID) (gpu.Fault, time.Time) {
	g, part, known := s.find(id)
	if !known {
		return gpu.Fault{Reason: gpu.ReasonMissing, Message: "the driver has not listed it"}, time.Time{}
	}
	if m, held := g.held(part); held {
		return m.fault, m.since
	}
	switch {
	case s.blind.Reason != "":
		return s.blind, s.since
	case g.unwatched.Reason != "":
		return g.unwatched, g.unsince
	}
	return gpu.Fault{}, time.Time{}
}

// LetGo says that the GPU, or that of the MIG device, waits for a reset, or for a
// driver that is loaded anew: a process that holds it open would be in the way. Where
// that is so of a part of it only, the others are in use and are watched. One that was
// out of service since has to be read: it may be well.
func (s State) LetGo(id gpu.UUID) bool {
	g, _, known := s.find(id)
	if !known {
		return false
	}
	switch g.Device.Fault.Reason {
	case gpu.ReasonLost, gpu.ReasonResetNeeded:
		return true
	}
	return slices.ContainsFunc(g.marks, func(m mark) bool { return m.scope == whole && m.needs >= reset && m.proof < m.needs })
}

// find returns the GPU, and which part of it the UUID names.
func (s State) find(id gpu.UUID) (g GPU, part scope, known bool) {
	if g, known = s.gpus[id]; known {
		return g, whole, true
	}
	if !id.IsMIG() {
		return GPU{}, whole, false
	}
	for _, g := range s.gpus {
		for _, m := range g.Device.MIG {
			if m.UUID == id {
				return g, scopeOf(m), true
			}
		}
	}
	return GPU{}, whole, false
}

// change applies f to a GPU, known or not, or to all with id "".
func (s State) change(id gpu.UUID, now time.Time, f func(GPU) GPU) State {
	s = s.clone()
	if id != "" {
		s.gpus[id] = f(s.get(id, now))
		return s
	}
	for id, g := range s.gpus {
		s.gpus[id] = f(g)
	}
	return s
}

// get returns a GPU. One that is new is under suspicion when all are.
func (s State) get(id gpu.UUID, now time.Time) GPU {
	g, known := s.gpus[id]
	if known {
		return g
	}
	g.Device = gpu.Device{UUID: id, NUMANode: -1}
	if s.doubt.Reason != "" {
		g = g.note(whole, s.doubt, reset, now)
	}
	return g
}

func (s State) clone() State {
	s.gpus = maps.Clone(s.gpus)
	if s.gpus == nil {
		s.gpus = map[gpu.UUID]GPU{}
	}
	return s
}
