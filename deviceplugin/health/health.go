// Package health decides which GPUs and MIG devices may be allocated. It does no I/O: a State is
// an immutable value, each observation returns a new State, and the caller passes the time in.
//
// A GPU becomes unhealthy by what a snapshot shows (a Fault, or that it is missing), by
// an event (an XID that the Policy heeds, an uncorrectable ECC error, the loss of the
// GPU), and while it cannot be watched. Its MIG devices follow it. A contained XID, for
// which the driver names the GPU instance, affects the MIG devices of that instance and
// the GPU as a whole. If it recovers by quiet, it ends with its instance. Of some XIDs the driver
// decides: the next snapshot shows whether it asks for a recovery of the GPU (ask.go).
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
	driverVersion    string    // version of the kernel module when last seen
	unwatchable      gpu.Fault // why no GPU can be watched; zero: they can
	unwatchableSince time.Time // when unwatchable began
	lostRecord       gpu.Fault // fault of every GPU that is new in this process, because the faults of this boot were lost; zero: they were not
}

// GPU is a GPU that was present at some time in this boot.
type GPU struct {
	Device  gpu.Device // as last seen; from a state file it has what the inventory there has
	Present bool       // in the last snapshot

	marks          []faultMark // its recorded faults, sorted by scope; never changed in place
	asked          askedXID    // the last XID of which the driver decides
	watchedSince   time.Time   // start of watching without a gap; zero: not watched
	unwatched      gpu.Fault   // why this GPU alone cannot be watched; zero: it can
	unwatchedSince time.Time
}

// New returns the State of a node about which nothing is known, with the default Policy. A
// non-zero lostRecord becomes the fault of every GPU: the record of this boot's faults was lost.
func New(lostRecord gpu.Fault) State { return State{lostRecord: lostRecord} }

// WithPolicy returns the State with another Policy for future events. Existing faults
// keep the evidence that they required before.
func (s State) WithPolicy(p Policy) State {
	s.policy = p
	return s
}

// Policy returns the policy in force.
func (s State) Policy() Policy { return s.policy }

// LostRecord returns the fault that was passed to New; zero: no record was lost.
func (s State) LostRecord() gpu.Fault { return s.lostRecord }

// DriverVersion returns the last known version of the kernel module in this boot, or
// "".
func (s State) DriverVersion() string { return s.driverVersion }

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
	g, part, known := s.findDevice(id)
	if !known {
		return gpu.Fault{Reason: gpu.ReasonMissing, Message: "the driver has not listed it"}, time.Time{}
	}
	return s.verdictOf(g, part)
}

// WholeVerdict returns the fault of a GPU for which no part of it can be used, and when it began: that of
// Verdict without the faults of single GPU instances. A GPU instance that is created next has it, too.
func (s State) WholeVerdict(id gpu.UUID) (gpu.Fault, time.Time) {
	return s.verdictOf(s.gpus[id], nowhere)
}

// InstanceVerdict is Verdict for a GPU instance of a GPU.
func (s State) InstanceVerdict(id gpu.UUID, instance int) (gpu.Fault, time.Time) {
	return s.verdictOf(s.gpus[id], scope{instance, -1})
}

func (s State) verdictOf(g GPU, part scope) (gpu.Fault, time.Time) {
	if m, found := g.firstMark(part); found {
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
// for a driver reload. A process must not keep such a GPU open. It is false where only a part
// of the GPU waits, since the other parts are in use and watched. It is false again as soon as
// there is evidence of the reset or reload: the GPU may be healthy, and has to be read.
func (s State) AwaitsReset(id gpu.UUID) bool {
	g, _, known := s.findDevice(id)
	if !known {
		return false
	}
	switch g.Device.Fault.Reason {
	case gpu.ReasonLost, gpu.ReasonResetNeeded:
		return true
	}
	return slices.ContainsFunc(g.marks, func(m faultMark) bool { return m.scope == wholeGPU && m.needs >= reset && m.evidence < m.needs })
}

// findDevice returns the GPU that a UUID names, or whose MIG device it names, and the scope of that
// device.
func (s State) findDevice(id gpu.UUID) (g GPU, part scope, known bool) {
	if g, known = s.gpus[id]; known {
		return g, wholeGPU, true
	}
	if !id.IsMIG() {
		return GPU{}, wholeGPU, false
	}
	for _, g := range s.gpus {
		for _, m := range g.Device.MIG {
			if m.UUID == id {
				return g, scopeOf(m), true
			}
		}
	}
	return GPU{}, wholeGPU, false
}

// updateGPUs stores the result of f for a GPU, which need not be known. If id is "", it does so
// for each known GPU.
func (s State) updateGPUs(id gpu.UUID, now time.Time, f func(GPU) GPU) State {
	s = s.cloneGPUs()
	if id != "" {
		s.gpus[id] = f(s.gpuOrNew(id, now))
		return s
	}
	for id, g := range s.gpus {
		s.gpus[id] = f(g)
	}
	return s
}

// gpuOrNew returns the GPU with a UUID. If it is not known, a new GPU is returned, with lostRecord
// as its fault.
func (s State) gpuOrNew(id gpu.UUID, now time.Time) GPU {
	g, known := s.gpus[id]
	if known {
		return g
	}
	g.Device = gpu.Device{UUID: id, NUMANode: -1}
	if s.lostRecord.Reason != "" {
		g = g.addMark(wholeGPU, s.lostRecord, reset, now)
	}
	return g
}

// cloneGPUs returns the State with a copy of its map, for the caller to change.
func (s State) cloneGPUs() State {
	s.gpus = maps.Clone(s.gpus)
	if s.gpus == nil {
		s.gpus = map[gpu.UUID]GPU{}
	}
	return s
}
