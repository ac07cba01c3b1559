// Package health decides which GPUs and MIG devices may be allocated. It is a pure
// state machine: a State is a value, each observation returns a new State, the caller
// passes the time in, and nothing here does I/O.
//
// A GPU becomes unhealthy by what a snapshot shows (a Fault, or that it is missing), by
// an event (an XID that the Policy heeds, an uncorrectable ECC error, the loss of the
// GPU), and while it cannot be watched. Its MIG devices follow it. A contained XID, for
// which the driver names the GPU instance, affects the MIG devices of that instance and
// the GPU as a whole.
//
// A device becomes healthy again only on evidence, never because a process restarted.
// The evidence required depends on the fault:
//
//   - A fault from a snapshot: a later snapshot does not show it.
//   - An event that recovers by quiet: the device was watched for the quiet period
//     without another event, passed a probe, and then a snapshot showed no fault
//     (quiet.go).
//   - Any other event: a snapshot showed the GPU out of service (lost, missing, in
//     need of a reset), and a later one shows it without a fault. That is what a reset
//     looks like from outside.
//   - An event that never recovers: the driver's kernel module was unloaded or
//     replaced since, which initialises every GPU.
//
// Stronger evidence than required is enough, too. memory.go carries the faults from one
// process to the next; they do not outlive the boot.
package health

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// State is the health of a node's GPUs at one moment. The zero State knows no GPU. A
// State is never changed; methods return new ones.
type State struct {
	gpus             map[gpu.UUID]GPU
	policy           Policy
	driver           string    // version of the kernel module when last seen
	unwatchable      gpu.Fault // why nothing at all can be watched
	unwatchableSince time.Time
	doubt            gpu.Fault // fault of every GPU not known before
}

// GPU is a GPU that was present at some time in this boot.
type GPU struct {
	Device  gpu.Device // as last seen; with only UUID and NUMANode when it is remembered
	Present bool       // in the last snapshot

	marks          []mark    // its faults, by scope; never changed in place
	watchedSince   time.Time // start of watching without a gap; zero: not watched
	unwatched      gpu.Fault
	unwatchedSince time.Time
}

// New returns the State of a node about which nothing is known, with the default
// Policy. A non-zero doubt is a fault of every GPU: the memory of this boot was lost.
func New(doubt gpu.Fault) State { return State{doubt: doubt} }

// WithPolicy returns the State with another Policy for future events. Existing faults
// keep the evidence that they required before.
func (s State) WithPolicy(p Policy) State {
	s.policy = p
	return s
}

// Policy returns the policy in force.
func (s State) Policy() Policy { return s.policy }

// Doubt returns the doubt that New was given.
func (s State) Doubt() gpu.Fault { return s.doubt }

// DriverVersion returns the last known version of the kernel module in this boot, or
// "".
func (s State) DriverVersion() string { return s.driver }

// GPUs returns every GPU that was present in this boot, by index and then UUID.
func (s State) GPUs() []GPU {
	return slices.SortedFunc(maps.Values(s.gpus), func(a, b GPU) int {
		return cmp.Or(cmp.Compare(a.Device.Index, b.Device.Index), cmp.Compare(a.Device.UUID, b.Device.UUID))
	})
}

// Verdict returns the fault for which the GPU or MIG device must not be allocated, and
// when it began. The zero Fault means that it may be allocated. Recorded faults come
// before a failure to watch. A GPU has the faults of all its parts. An unknown device
// is Missing.
func (s State) Verdict(id gpu.UUID) (gpu.Fault, time.Time) {
	g, part, known := s.find(id)
	if !known {
		return gpu.Fault{Reason: gpu.ReasonMissing, Message: "the driver has not listed it"}, time.Time{}
	}
	if m, held := g.firstMark(part); held {
		return m.fault, m.since
	}
	switch {
	case s.unwatchable.Reason != "":
		return s.unwatchable, s.unwatchableSince
	case g.unwatched.Reason != "":
		return g.unwatched, g.unwatchedSince
	}
	return gpu.Fault{}, time.Time{}
}

// AwaitsReset reports whether the GPU, or the parent of the MIG device, waits for a reset or
// for a driver reload, so that a process must not keep it open. It is false where only
// a part of the GPU waits, since the other parts are in use and watched. It is also
// false once the GPU was out of service: it may be healthy and has to be read.
func (s State) AwaitsReset(id gpu.UUID) bool {
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

// find returns the GPU, and the part of it that the UUID names.
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

// update applies f to one GPU, known or not, or to all GPUs if id is "".
func (s State) update(id gpu.UUID, now time.Time, f func(GPU) GPU) State {
	s = s.clone()
	if id != "" {
		s.gpus[id] = f(s.gpuOrNew(id, now))
		return s
	}
	for id, g := range s.gpus {
		s.gpus[id] = f(g)
	}
	return s
}

// gpuOrNew returns a GPU. A new one gets the State's doubt as its fault.
func (s State) gpuOrNew(id gpu.UUID, now time.Time) GPU {
	g, known := s.gpus[id]
	if known {
		return g
	}
	g.Device = gpu.Device{UUID: id, NUMANode: -1}
	if s.doubt.Reason != "" {
		g = g.addMark(whole, s.doubt, reset, now)
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
