package nodestatus

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

// The time that a layer is refused before an Event reports it; the condition shows it at
// once. While a node comes up the components start one by one, and during an upgrade one is
// away for a moment: nobody would read Warnings about that on every node. Devices are
// reported as soon as it is known which pods hold them.
const (
	startupGrace   = time.Minute     // before all layers were proven in this boot
	transientGrace = 5 * time.Second // after that
	// holdersGrace is the time in which the kubelet is asked which pods hold a broken device.
	holdersGrace = 2 * time.Second
)

// maxSubjects bounds the memory. A node has up to 16 GPUs, each of which can be divided in
// seven.
const maxSubjects = 256

// A subject names the subject of an Event: "device GPU-…", "layer cuda", "configuration".
type subject string

// configSubject is the configuration of the device plugin.
const configSubject subject = "configuration"

// filesSubject is the files that the validator writes on the node.
const filesSubject subject = "files"

// driverPodSubject is the pod that shows people that the driver works.
const driverPodSubject subject = "pod nvidia-driver-validation"

func deviceSubject(d device) subject         { return subject("device " + string(d.id)) }
func layerSubject(l readiness.Layer) subject { return subject("layer " + string(l)) }

func (s subject) isLayer() bool { return strings.HasPrefix(string(s), "layer ") }

// isTransient reports whether a problem may soon end by itself.
func (s subject) isTransient() bool { return s.isLayer() || s == driverPodSubject || s == filesSubject }

// problem is the present problem of a subject.
type problem struct {
	reason, message string
	since           time.Time // zero where it is not known
	incomplete      bool      // the pods that hold the device are those of an earlier time
}

// reportedProblem is a problem that an Event reported and whose end no Event has reported yet.
type reportedProblem struct {
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
}

// memory records the problems reported by Events in this boot. It outlives the process, so
// that a restart repeats no Event.
type memory struct {
	BootID   string                      `json:"bootID"`
	Reported map[subject]reportedProblem `json:"said"`
	Proven   bool                        `json:"proven"` // all layers were proven at some time
}

// event is an Event to write; update changes the memory afterwards.
type event struct {
	about   subject
	kind    string // Normal or Warning
	reason  string
	message string
	time    time.Time // when it happened
	update  func(*memory)
}

// problems returns the present problems. over has an event for each subject that is known to have
// no problem, in case it had one.
func (f Facts) problems() (wrong map[subject]problem, over map[subject]event) {
	wrong, over = map[subject]problem{}, map[subject]event{}
	unwatched := f.isUnwatched()
	_, asked := f.holders()
	for _, d := range f.devices() {
		switch {
		case unwatched: // the layers and GPUHealthy tell that, once and not for each device
			continue
		case !d.healthy:
			wrong[deviceSubject(d)] = problem{reason: d.reason, message: describeDevices([]device{d}), since: d.since, incomplete: !asked.After(d.since)}
			continue
		}
		over[deviceSubject(d)] = event{kind: corev1.EventTypeNormal, reason: ReasonRecovered, message: d.name + " is healthy again"}
	}
	if s, ok := f.States[nodestate.DevicePlugin]; ok {
		if s.Reason == reasonRefused {
			wrong[configSubject] = problem{reason: string(s.Reason), message: "device plugin: " + s.Message}
		} else if s.Phase == nodestate.Degraded || s.Phase == nodestate.Ready && s.Reason == "" {
			// Other phases are reported elsewhere.
			over[configSubject] = event{kind: corev1.EventTypeNormal, reason: ReasonAccepted, message: "the device plugin's configuration is in force"}
		}
	}
	over[filesSubject] = event{kind: corev1.EventTypeNormal, reason: ReasonWritten, message: "the validator's files on the node are written again"}
	if f.Unwritten != "" {
		wrong[filesSubject] = problem{reason: string(nodestate.ReasonNotWritable), message: f.Unwritten}
		delete(over, filesSubject)
	}
	if w := f.DriverPod; w != nil {
		switch w.Kind {
		case check.Failed:
			wrong[driverPodSubject] = problem{reason: string(w.NotReady.Reason), message: fmt.Sprintf("%s; %s; no layer depends on it", w.NotReady.Message, w.NotReady.Action)}
		case check.Passed:
			over[driverPodSubject] = event{kind: corev1.EventTypeNormal, reason: ReasonProven, message: "vectorAdd passed on every GPU in the pod nvidia-driver-validation"}
		}
	}
	for _, o := range f.Outcomes {
		switch o.Kind {
		case check.Failed:
			wrong[layerSubject(o.Layer)] = problem{reason: string(o.NotReady.Reason), message: f.refusalText(o)}
		case check.Passed:
			over[layerSubject(o.Layer)] = event{kind: corev1.EventTypeNormal, reason: ReasonProven,
				message: fmt.Sprintf("%s is proven again: %s", o.Layer, o.Proof.Summary)}
		}
	}
	return wrong, over
}

// isObsolete reports whether a subject no longer exists: a MIG device after its GPU was
// divided anew, or a layer where there is no GPU.
func (f Facts) isObsolete(s subject, wrong map[subject]problem, over map[subject]event) bool {
	if _, found := wrong[s]; found {
		return false
	}
	if _, found := over[s]; found {
		return false
	}
	if len(f.Outcomes) > 0 && f.Outcomes[0].Kind == check.Absent {
		return true
	}
	p, ok := f.States[nodestate.DevicePlugin]
	listed := ok && p.DevicePlugin != nil && p.DevicePlugin.Registered && len(f.devices()) > 0
	return listed && !s.isTransient() && s != configSubject
}

// observation records since when a problem has been observed with this reason.
type observation struct {
	reason string
	at     time.Time
}

// planEvents returns the Events that the memory lacks, oldest first, and the time when more may
// be due without a change.
func (f Facts) planEvents(m memory, observed map[subject]observation, now time.Time) (events []event, next time.Time) {
	wrong, over := f.problems()
	for _, s := range slices.Sorted(maps.Keys(wrong)) {
		p := wrong[s]
		since := p.since
		if since.IsZero() || since.After(now) {
			since = observed[s].at
		}
		before, was := m.Reported[s]
		if was && before.Reason == p.reason && (p.since.IsZero() || !since.After(before.Since)) {
			continue
		}
		var grace time.Duration
		switch {
		case p.incomplete:
			grace = holdersGrace
		case s.isTransient() && m.Proven:
			grace = transientGrace
		case s.isTransient():
			grace = startupGrace
		}
		if grace > 0 {
			if due := observed[s].at.Add(grace); due.After(now) {
				if next.IsZero() || due.Before(next) {
					next = due
				}
				continue
			}
		}
		if !was && len(m.Reported) >= maxSubjects {
			continue
		}
		events = append(events, event{about: s, kind: corev1.EventTypeWarning, reason: p.reason, message: readiness.Shorten(p.message, maxMessage), time: since,
			update: func(m *memory) { m.Reported[s] = reportedProblem{p.reason, since} }})
	}
	for _, s := range slices.Sorted(maps.Keys(m.Reported)) {
		e, ok := over[s]
		if !ok {
			continue
		}
		e.about, e.time = s, now
		e.message = record.Clean(fmt.Sprintf("%s (was: %s)", e.message, m.Reported[s].Reason), maxMessage)
		e.update = func(m *memory) { delete(m.Reported, s) }
		events = append(events, e)
	}
	slices.SortStableFunc(events, func(a, b event) int { return a.time.Compare(b.time) })
	return events, next
}

// updateMemory updates when each problem was first observed, and drops subjects that no longer
// exist from the memory. It reports whether the memory changed.
func (f Facts) updateMemory(m *memory, observed map[subject]observation, now time.Time) (changed bool) {
	wrong, over := f.problems()
	for s, p := range wrong {
		if observed[s].reason != p.reason {
			observed[s] = observation{p.reason, now}
		}
	}
	for s := range observed {
		if _, still := wrong[s]; !still {
			delete(observed, s)
		}
	}
	for s := range m.Reported {
		if f.isObsolete(s, wrong, over) {
			delete(m.Reported, s)
			changed = true
		}
	}
	if !m.Proven && f.usable() && f.Outcomes[0].Kind == check.Passed {
		m.Proven, changed = true, true
	}
	return changed
}
