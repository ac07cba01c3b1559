package health

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// scope is the part of a GPU that a fault affects: all of it, a GPU instance, or a compute
// instance.
type scope struct {
	gpuInstance, computeInstance int // -1: all of them
}

var wholeGPU = scope{-1, -1}

// scopeOf returns the scope of a MIG device.
func scopeOf(m gpu.MIGDevice) scope { return scope{m.GPUInstance, m.ComputeInstance} }

// contains reports whether a part of the GPU lies in the scope.
func (s scope) contains(part scope) bool {
	return s.gpuInstance < 0 ||
		s.gpuInstance == part.gpuInstance && (s.computeInstance < 0 || s.computeInstance == part.computeInstance)
}

// evidence is an observation that, followed by a snapshot without a fault, shows a faulty device
// to be healthy again. The kinds are ordered; each includes the weaker ones before it.
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

// faultMark is a fault recorded for a GPU or a part of it.
type faultMark struct {
	scope     scope
	fault     gpu.Fault // the first one, since it is the cause
	since     time.Time // of fault
	lastEvent time.Time // when the last event of this scope happened
	needs     evidence  // the strongest that any event of this scope requires
	evidence  evidence  // collected since the last event
}

// addMark records a fault for a part of the GPU. The first fault stays, since it is the cause, unless it is only
// that the driver asks for a reset. A later one discards earlier evidence and never lowers the evidence required,
// unless the first was ended by a reset, of which only the snapshot is missing: then a lesser one is a fault of
// its own.
func (g GPU) addMark(at scope, fault gpu.Fault, needs evidence, now time.Time) GPU {
	g.marks = slices.Clone(g.marks)
	i, found := slices.BinarySearchFunc(g.marks, at, func(m faultMark, s scope) int { return compareScopes(m.scope, s) })
	if !found {
		g.marks = slices.Insert(g.marks, i, faultMark{scope: at, fault: fault, since: now, lastEvent: now, needs: needs})
		return g
	}
	m := &g.marks[i]
	if needs < m.needs && m.needs >= reset && m.evidence >= m.needs {
		*m = faultMark{scope: at, fault: fault, since: now, lastEvent: now, needs: needs}
		return g
	}
	if m.fault.Reason == gpu.ReasonResetNeeded {
		m.fault = fault // why the driver asks for one, which a snapshot may show before the event arrives
	}
	m.needs, m.evidence = max(m.needs, needs), snapshotOnly
	if now.After(m.lastEvent) {
		m.lastEvent = now
	}
	return g
}

func compareScopes(a, b scope) int {
	return cmp.Or(cmp.Compare(a.gpuInstance, b.gpuInstance), cmp.Compare(a.computeInstance, b.computeInstance))
}

// addEvidence adds evidence to every mark.
func (g GPU) addEvidence(e evidence) GPU {
	g.marks = slices.Clone(g.marks)
	for i := range g.marks {
		g.marks[i].evidence = max(g.marks[i].evidence, e)
	}
	return g
}

// resetQuiet discards the evidence of quiet, since an event happened or might have been
// missed.
func (g GPU) resetQuiet(now time.Time) GPU {
	g.marks = slices.Clone(g.marks)
	for i := range g.marks {
		if m := &g.marks[i]; m.evidence == quiet {
			m.evidence, m.lastEvent = snapshotOnly, now
		}
	}
	return g
}

// firstMark returns the oldest mark that concerns a part of the GPU, if any.
func (g GPU) firstMark(part scope) (faultMark, bool) {
	var first faultMark
	found := false
	for _, m := range g.marks {
		if g.concerns(m, part) && (!found || m.since.Before(first.since)) {
			first, found = m, true
		}
	}
	return first, found
}

// nowhere is the scope of a GPU instance that does not exist yet.
var nowhere = scope{-2, -2}

// concerns reports whether a mark concerns a part of the GPU. If the marked instance is gone and its
// fault needs more than quiet, the broken hardware may now be part of any other. Lesser marks of an
// instance end with it, and never concern another.
func (g GPU) concerns(m faultMark, part scope) bool {
	return part == wholeGPU || m.scope.contains(part) || m.needs > quiet && !hasInstance(g.Device, m.scope.gpuInstance)
}

// hasInstance reports whether a GPU has a GPU instance.
func hasInstance(d gpu.Device, instance int) bool {
	_, placed := findInstance(d, instance)
	return placed || len(devicesIn(d, instance)) > 0
}

// findInstance returns where a GPU instance is, if that can be read.
func findInstance(d gpu.Device, instance int) (gpu.Instance, bool) {
	i := slices.IndexFunc(d.Instances, func(i gpu.Instance) bool { return i.ID == instance })
	if i < 0 {
		return gpu.Instance{}, false
	}
	return d.Instances[i], true
}

// devicesIn returns the MIG devices of a GPU instance.
func devicesIn(d gpu.Device, instance int) (all []gpu.UUID) {
	for _, m := range d.MIG {
		if m.GPUInstance == instance {
			all = append(all, m.UUID)
		}
	}
	return all
}

// isSameInstance reports whether a GPU instance of a reading is that of the reading before. The driver
// gives the number of one that was destroyed to the next, at another place or with other MIG devices.
// One that was not listed before may have been created since.
func isSameInstance(before, now gpu.Device, instance int) bool {
	if !hasInstance(now, instance) {
		return false
	}
	was, known := findInstance(before, instance)
	is, placed := findInstance(now, instance)
	if known && placed && was != is {
		return false
	}
	old, new := devicesIn(before, instance), devicesIn(now, instance)
	return len(old) == 0 || len(new) == 0 || slices.ContainsFunc(new, func(id gpu.UUID) bool { return slices.Contains(old, id) })
}

// endInstances returns the GPU without the marks that end with their GPU instance, of those instances that
// are gone.
func (g GPU) endInstances(isGone func(instance int) bool) GPU {
	g.marks = slices.DeleteFunc(slices.Clone(g.marks), func(m faultMark) bool {
		return m.scope.gpuInstance >= 0 && m.needs <= quiet && isGone(m.scope.gpuInstance)
	})
	return g
}
