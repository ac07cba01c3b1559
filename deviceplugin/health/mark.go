package health

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// scope is the part of a GPU that something concerns.
type scope struct {
	gpuInstance, computeInstance int // -1: all of them
}

var whole = scope{-1, -1}

// scopeOf is the part of the GPU that a MIG device is.
func scopeOf(m gpu.MIGDevice) scope { return scope{m.GPUInstance, m.ComputeInstance} }

// has says whether a part of the GPU lies in the scope.
func (s scope) has(part scope) bool {
	return s.gpuInstance < 0 ||
		s.gpuInstance == part.gpuInstance && (s.computeInstance < 0 || s.computeInstance == part.computeInstance)
}

// evidence is what a snapshot that shows nothing wrong is worth, for what was
// seen before it. Each is worth what the ones before it are, and more.
type evidence int

const (
	shown  evidence = iota // nothing was
	quiet                  // watched for a while without an event, and a probe that passed
	reset                  // the GPU out of service
	reload                 // the kernel module unloaded or replaced
)

// needed is the evidence that it takes to recover in a way.
func needed(r gpu.Recovery) evidence {
	switch r {
	case gpu.RecoveryQuiet:
		return quiet
	case gpu.RecoveryNever:
		return reload
	}
	return reset
}

// mark is what is held against a GPU or a part of it.
type mark struct {
	scope scope
	fault gpu.Fault // the first one, since it is the cause
	since time.Time // of fault
	last  time.Time // of the last event
	needs evidence  // the most that any event asked for
	proof evidence  // what there was since the last event
}

// note holds a fault against a part of the GPU. The first one stays, since it is
// the cause; a later one asks for evidence from after it, and for no less.
func (g GPU) note(at scope, fault gpu.Fault, needs evidence, now time.Time) GPU {
	g.marks = slices.Clone(g.marks)
	i, found := slices.BinarySearchFunc(g.marks, at, func(m mark, s scope) int { return compare(m.scope, s) })
	if !found {
		g.marks = slices.Insert(g.marks, i, mark{scope: at, fault: fault, since: now, last: now, needs: needs})
		return g
	}
	m := &g.marks[i]
	m.needs, m.proof = max(m.needs, needs), shown
	if now.After(m.last) {
		m.last = now
	}
	return g
}

func compare(a, b scope) int {
	return cmp.Or(cmp.Compare(a.gpuInstance, b.gpuInstance), cmp.Compare(a.computeInstance, b.computeInstance))
}

// prove tells every mark what there was to see.
func (g GPU) prove(e evidence) GPU {
	g.marks = slices.Clone(g.marks)
	for i := range g.marks {
		g.marks[i].proof = max(g.marks[i].proof, e)
	}
	return g
}

// disturb takes back what is quiet, since something happened, or might have.
func (g GPU) disturb(now time.Time) GPU {
	g.marks = slices.Clone(g.marks)
	for i := range g.marks {
		if m := &g.marks[i]; m.proof == quiet {
			m.proof, m.last = shown, now
		}
	}
	return g
}

// held returns the first of what is held against a part of the GPU.
func (g GPU) held(part scope) (mark, bool) {
	var first mark
	held := false
	for _, m := range g.marks {
		if g.covers(m, part) && (!held || m.since.Before(first.since)) {
			first, held = m, true
		}
	}
	return first, held
}

// covers says whether a mark concerns a part of the GPU. Where the layout has
// changed and an instance with a mark is there no more, what was broken in it may
// now be part of any other.
func (g GPU) covers(m mark, part scope) bool {
	return part == whole || m.scope.has(part) || !slices.ContainsFunc(g.Device.MIG, func(d gpu.MIGDevice) bool { return m.scope.has(scopeOf(d)) })
}
