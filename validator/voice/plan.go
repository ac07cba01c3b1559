package voice

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// How long a layer is refused before an Event tells of it; the condition has it
// at once. While a node is coming up each component starts when it starts, and
// while one is upgraded it is away for a moment: Warnings about that, on every
// node, would be Warnings that nobody reads. Of devices is told at once.
const (
	patience = time.Minute     // before all layers were proven in this boot
	blink    = 5 * time.Second // after that
)

// maxSubjects bounds what is remembered. A node has 16 GPUs, each of which can
// be divided in seven.
const maxSubjects = 256

// A subject is what an Event is about: "device GPU-…", "layer cuda", "configuration".
type subject string

// configSubject is the configuration that the device plugin is to have.
const configSubject subject = "configuration"

// witnessSubject is the pod that shows people that the driver works.
const witnessSubject subject = "pod nvidia-driver-validation"

func deviceSubject(d device) subject         { return subject("device " + string(d.id)) }
func layerSubject(l readiness.Layer) subject { return subject("layer " + string(l)) }

func (s subject) isLayer() bool { return strings.HasPrefix(string(s), "layer ") }

// takesTime says whether a problem may be over by itself in a moment.
func (s subject) takesTime() bool { return s.isLayer() || s == witnessSubject }

// problem is what is wrong with a subject now.
type problem struct {
	reason, message string
	since           time.Time // zero where it is not known
}

// said is the problem that an Event told of, and none has told that it is over.
type said struct {
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
}

// memory is what Events have told so far in this boot. It outlives the process,
// so that a restart repeats nothing.
type memory struct {
	BootID string           `json:"bootID"`
	Said   map[subject]said `json:"said"`
	Proven bool             `json:"proven"` // all layers were, at some time
}

// event is one to be said; once it is, remember changes the memory.
type event struct {
	about    subject
	kind     string // Normal or Warning
	reason   string
	message  string
	time     time.Time // of what happened
	remember func(*memory)
}

// problems are what is wrong now, and over the subjects of which it is known
// that nothing is.
func (f Facts) problems() (wrong map[subject]problem, over map[subject]event) {
	wrong, over = map[subject]problem{}, map[subject]event{}
	for _, d := range f.devices() {
		if !d.healthy {
			wrong[deviceSubject(d)] = problem{d.reason, d.text(), d.since}
			continue
		}
		over[deviceSubject(d)] = event{kind: corev1.EventTypeNormal, reason: ReasonRecovered, message: d.name + " is healthy again"}
	}
	if s, ok := f.States[nodestate.DevicePlugin]; ok {
		if s.Reason == reasonRefused {
			wrong[configSubject] = problem{string(s.Reason), "device plugin: " + s.Message, time.Time{}}
		} else if s.Phase == nodestate.Degraded || s.Phase == nodestate.Ready && s.Reason == "" {
			// What is worse, or leaves nothing to do, is said in its place.
			over[configSubject] = event{kind: corev1.EventTypeNormal, reason: ReasonAccepted, message: "the device plugin's configuration is in force"}
		}
	}
	if w := f.Witness; w != nil {
		switch w.Kind {
		case check.Failed:
			wrong[witnessSubject] = problem{string(w.Refusal.Reason), fmt.Sprintf("%s; %s; no layer depends on it", w.Refusal.Message, w.Refusal.Action), time.Time{}}
		case check.Passed:
			over[witnessSubject] = event{kind: corev1.EventTypeNormal, reason: ReasonProven, message: "vectorAdd passed on every GPU in the pod nvidia-driver-validation"}
		}
	}
	for _, o := range f.Outcomes {
		switch o.Kind {
		case check.Failed:
			wrong[layerSubject(o.Layer)] = problem{string(o.Refusal.Reason), f.refusal(o), time.Time{}}
		case check.Passed:
			over[layerSubject(o.Layer)] = event{kind: corev1.EventTypeNormal, reason: ReasonProven,
				message: fmt.Sprintf("%s is proven again: %s", o.Layer, o.Proof.Summary)}
		}
	}
	return wrong, over
}

// forgotten says that a subject is no more and nothing will be heard of it: a
// MIG device after its GPU was divided anew, a layer where there is no GPU.
func (f Facts) forgotten(s subject, wrong map[subject]problem, over map[subject]event) bool {
	if _, is := wrong[s]; is {
		return false
	}
	if _, is := over[s]; is {
		return false
	}
	if len(f.Outcomes) > 0 && f.Outcomes[0].Kind == check.Absent {
		return true
	}
	p, ok := f.States[nodestate.DevicePlugin]
	listed := ok && p.DevicePlugin != nil && p.DevicePlugin.Registered && len(f.devices()) > 0
	return listed && !s.takesTime() && s != configSubject
}

// sighting is since when a problem has been seen with this reason.
type sighting struct {
	reason string
	at     time.Time
}

// plan returns the Events that the memory lacks, oldest first, and when there may
// be more although nothing changes.
func (f Facts) plan(m memory, seen map[subject]sighting, now time.Time) (events []event, wake time.Time) {
	wrong, over := f.problems()
	for _, s := range slices.Sorted(maps.Keys(wrong)) {
		p := wrong[s]
		since := p.since
		if since.IsZero() || since.After(now) {
			since = seen[s].at
		}
		before, was := m.Said[s]
		if was && before.Reason == p.reason && (p.since.IsZero() || !since.After(before.Since)) {
			continue
		}
		if s.takesTime() {
			grace := patience
			if m.Proven {
				grace = blink
			}
			if due := seen[s].at.Add(grace); due.After(now) {
				if wake.IsZero() || due.Before(wake) {
					wake = due
				}
				continue
			}
		}
		if !was && len(m.Said) >= maxSubjects {
			continue
		}
		events = append(events, event{about: s, kind: corev1.EventTypeWarning, reason: p.reason, message: record.Clean(p.message, maxMessage), time: since,
			remember: func(m *memory) { m.Said[s] = said{p.reason, since} }})
	}
	for _, s := range slices.Sorted(maps.Keys(m.Said)) {
		e, is := over[s]
		if !is {
			continue
		}
		e.about, e.time = s, now
		e.message = record.Clean(fmt.Sprintf("%s (was: %s)", e.message, m.Said[s].Reason), maxMessage)
		e.remember = func(m *memory) { delete(m.Said, s) }
		events = append(events, e)
	}
	slices.SortStableFunc(events, func(a, b event) int { return a.time.Compare(b.time) })
	return events, wake
}

// notice brings up to date when each problem was first seen, and drops from the
// memory what nobody will hear of again. It says whether the memory is another.
func (f Facts) notice(m *memory, seen map[subject]sighting, now time.Time) (changed bool) {
	wrong, over := f.problems()
	for s, p := range wrong {
		if seen[s].reason != p.reason {
			seen[s] = sighting{p.reason, now}
		}
	}
	for s := range seen {
		if _, still := wrong[s]; !still {
			delete(seen, s)
		}
	}
	for s := range m.Said {
		if f.forgotten(s, wrong, over) {
			delete(m.Said, s)
			changed = true
		}
	}
	if !m.Proven && f.usable() && f.Outcomes[0].Kind == check.Passed {
		m.Proven, changed = true, true
	}
	return changed
}
