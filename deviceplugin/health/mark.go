package health

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// scope is the part of a GPU that a fault affects.
type scope struct {
	gpuInstance, computeInstance int // -1: all of them
}

var whole = scope{-1, -1}

// scopeOf returns the scope of a MIG device.
func scopeOf(m gpu.MIGDevice) scope { return scope{m.GPUInstance, m.ComputeInstance} }

// contains reports whether a part of the GPU lies in the scope.
func (s scope) contains(part scope) bool {
	return s.gpuInstance < 0 ||
		s.gpuInstance == part.gpuInstance && (s.computeInstance < 0 || s.computeInstance == part.computeInstance)
}

// evidence ranks what happened before a snapshot that shows no fault. Each kind
// includes the weaker ones before it.
type evidence int

const (
	snapshotOnly evidence = iota // nothing happened
	quiet                        // watched for the quiet period without an event, then passed a probe
	reset                        // the GPU was out of service
	reload                       // the kernel module was unloaded or replaced
)

// evidenceFor returns the evidence that a kind of recovery requires.
func evidenceFor(r gpu.Recovery) evidence {
	switch r {
	case gpu.RecoveryQuiet:
		return quiet
	case gpu.RecoveryNever:
		return reload
	}
	return reset
}

// mark is a fault recorded for a GPU or a part of it.
type mark struct {
	scope scope
	fault gpu.Fault // the first one, since it is the cause
	since time.Time // of fault
	last  time.Time // of the last event
	needs evidence  // the strongest that any event required
	proof evidence  // collected since the last event
}

// addMark records a fault for a part of the GPU. The first fault stays, since it is the
// cause. A later one discards earlier evidence and never lowers the evidence required.
func (g GPU) addMark(at scope, fault gpu.Fault, needs evidence, now time.Time) GPU {
	g.marks = slices.Clone(g.marks)
	i, found := slices.BinarySearchFunc(g.marks, at, func(m mark, s scope) int { return compare(m.scope, s) })
	if !found {
		g.marks = slices.Insert(g.marks, i, mark{scope: at, fault: fault, since: now, last: now, needs: needs})
		return g
	}
	m := &g.marks[i]
	m.needs, m.proof = max(m.needs, needs), snapshotOnly
	if now.After(m.last) {
		m.last = now
	}
	return g
}

func compare(a, b scope) int {
	return cmp.Or(cmp.Compare(a.gpuInstance, b.gpuInstance), cmp.Compare(a.computeInstance, b.computeInstance))
}

// addEvidence adds evidence to every mark.
func (g GPU) addEvidence(e evidence) GPU {
	g.marks = slices.Clone(g.marks)
	for i := range g.marks {
		g.marks[i].proof = max(g.marks[i].proof, e)
	}
	return g
}

// resetQuiet discards the evidence of quiet, since an event happened or might have been
// missed.
func (g GPU) resetQuiet(now time.Time) GPU {
	g.marks = slices.Clone(g.marks)
	for i := range g.marks {
		if m := &g.marks[i]; m.proof == quiet {
			m.proof, m.last = snapshotOnly, now
		}
	}
	return g
}

// firstMark returns the oldest mark that concerns a part of the GPU.
func (g GPU) firstMark(part scope) (mark, bool) {
	var first mark
	held := false
	for _, m := range g.marks {
		if g.concerns(m, part) && (!held || m.since.Before(first.since)) {
			first, held = m, true
		}
	}
	return first, held
}

// concerns reports whether a mark concerns a part of the GPU. If the MIG layout changed
// and the marked instance is gone, the broken hardware may now be part of any other.
func (g GPU) concerns(m mark, part scope) bool {
	return part == whole || m.scope.contains(part) || !slices.ContainsFunc(g.Device.MIG, func(d gpu.MIGDevice) bool { return m.scope.contains(scopeOf(d)) })
}
