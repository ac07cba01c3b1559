package upgrade

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
)

// Patch is one write to a Node.
type Patch struct {
	Node, UID     string
	Version       string             // resourceVersion of the Node that it was planned on
	Labels        map[string]*string // nil: remove
	Annotations   map[string]*string // nil: remove
	Unschedulable *bool              // nil: unchanged
	Event         *Event             // to record once the patch is written
}

// JSON returns the body of a merge patch (application/merge-patch+json). If the Node has
// changed since, the API server responds with 409 Conflict: the plan may be outdated, and the
// watch delivers the newer Node.
func (p Patch) JSON() ([]byte, error) {
	type meta struct {
		UID             string             `json:"uid,omitempty"`
		ResourceVersion string             `json:"resourceVersion,omitempty"`
		Labels          map[string]*string `json:"labels,omitempty"`
		Annotations     map[string]*string `json:"annotations,omitempty"`
	}
	type spec struct {
		Unschedulable bool `json:"unschedulable"`
	}
	body := struct {
		Metadata meta  `json:"metadata"`
		Spec     *spec `json:"spec,omitempty"`
	}{Metadata: meta{p.UID, p.Version, p.Labels, p.Annotations}}
	if p.Unschedulable != nil {
		body.Spec = &spec{*p.Unschedulable}
	}
	return json.Marshal(body)
}

// Begins reports whether a node's upgrade is in flight once the patch is written.
func (p Patch) Begins() bool {
	state := p.Labels[label.UpgradeState]
	return state != nil && State(*state).InFlight()
}

// Patch returns the single write that the node needs: the plan's patch combined with that of
// its other labels. It returns false if there is nothing to write.
func (p *Plan) Patch(n *fleet.Node, other fleet.Patch) (Patch, bool) {
	i, ok := slices.BinarySearchFunc(p.Patches, n.Name, func(q Patch, name string) int { return cmp.Compare(q.Node, name) })
	if !ok && other.Empty() {
		return Patch{}, false
	}
	one := Patch{Node: n.Name, UID: n.UID, Version: n.Version}
	if ok {
		one = p.Patches[i]
	}
	one.Labels, one.Annotations = merge(one.Labels, other.Labels), merge(one.Annotations, other.Annotations)
	return one, true
}

func merge(a, b map[string]*string) map[string]*string {
	both := maps.Clone(a)
	if both == nil {
		both = map[string]*string{}
	}
	maps.Copy(both, b)
	return both
}

// edit is a change of a node's upgrade record.
type edit struct {
	state State
	since time.Time // zero: now
	why   string
	moved bool   // the node enters the state now, even if it is the same state
	event *Event // replaces the default Event of the state
}

// release removes the upgrade's record from a node and undoes its own cordon.
func (w *planner) release(n *node) {
	if !n.managedBefore() {
		return // the record belongs to NVIDIA's operator
	}
	if _, refused := w.Refused[n.Name]; !refused && (n.state.InFlight() || n.state == Failed) {
		w.begun++ // until it is written
	}
	w.patch(n, edit{state: Unknown})
}

// managedBefore reports whether this operator has written to the node.
func (n *node) managedBefore() bool {
	if n.assigned != "" {
		return true
	}
	for _, key := range []string{label.OwnLabels, label.UpgradeTarget, label.UpgradeCordoned} {
		if _, ok := n.Annotations[key]; ok {
			return true
		}
	}
	return false
}

// patch plans a write of what differs on the node.
func (w *planner) patch(n *node, e edit) {
	if e.state == Unknown && n.hasNoUpgradeRecord() {
		return
	}
	labels := map[string]string{label.UpgradeState: string(e.state)}
	annotations := map[string]string{
		label.UpgradeSince: "", label.UpgradeReason: "", label.UpgradeTarget: "",
		label.InitiallyCordoned: "", label.UpgradeCordoned: "",
	}
	var unschedulable *bool
	cordoned := n.cordonedByUpgrade()
	switch {
	case e.state.InFlight() || e.state == Failed:
		if e.since.IsZero() {
			e.since = w.Now
		}
		annotations[label.UpgradeSince] = e.since.UTC().Format(time.RFC3339)
		annotations[label.UpgradeReason] = e.why
		annotations[label.UpgradeTarget] = n.upgradeTarget(e)
		if e.state.InFlight() && !n.Cordoned {
			unschedulable, cordoned = new(true), true
		}
		if cordoned {
			annotations[label.UpgradeCordoned] = "true"
		} else {
			annotations[label.InitiallyCordoned] = "true"
		}
	case e.state == Required:
		if e.why != "" {
			annotations[label.UpgradeSince], annotations[label.UpgradeReason] = cmp.Or(e.since, w.Now).UTC().Format(time.RFC3339), e.why
		}
		switch {
		case !cordoned:
		case e.why != "" && n.driver.available():
			// The old driver serves the node until its next turn.
			if n.Cordoned {
				unschedulable = new(false)
			}
		default:
			annotations[label.UpgradeCordoned] = "true"
		}
	default:
		if cordoned && n.Cordoned {
			unschedulable = new(false)
		}
	}
	n.setOperands(labels, e.state == PodRestart && n.outdated && n.driver != nil)
	p := Patch{
		Node: n.Name, UID: n.UID, Version: n.Version,
		Labels: difference(n.Labels, labels), Annotations: difference(n.Annotations, annotations),
		Unschedulable: unschedulable, Event: e.event,
	}
	if len(p.Labels) == 0 && len(p.Annotations) == 0 && unschedulable == nil {
		return
	}
	if p.Event == nil && e.state != n.state {
		p.Event = stateEvent(e)
	}
	w.plan.Patches = append(w.plan.Patches, p)
}

// setOperands pauses the operands of the node or resumes them.
func (n *node) setOperands(labels map[string]string, pause bool) {
	begun := n.state.InFlight() || n.state == Failed || n.Annotations[label.UpgradeCordoned] == "true"
	for key, value := range n.Labels {
		switch {
		case !pausable(key):
		case pause && value == "true" && !n.HandedOver():
			labels[key] = label.Paused
		case !pause && value == label.Paused && begun:
			labels[key] = "true"
		}
	}
}

// upgradeTarget returns the target to record. A failure keeps the driver that failed.
func (n *node) upgradeTarget(e edit) string {
	if e.state == Failed && !e.moved {
		return cmp.Or(n.Annotations[label.UpgradeTarget], n.target.String())
	}
	return n.target.String()
}

// difference returns the changes that turn have into want; "" in want means absent.
func difference(have, want map[string]string) map[string]*string {
	var d map[string]*string
	for key, value := range want {
		old, ok := have[key]
		if value == "" && !ok || value != "" && ok && old == value {
			continue
		}
		if d == nil {
			d = map[string]*string{}
		}
		if value == "" {
			d[key] = nil
		} else {
			d[key] = &value
		}
	}
	return d
}

// stateEvent returns the Event of entering a state, or nil.
func stateEvent(e edit) *Event {
	switch e.state {
	case PodRestart:
		return &Event{Reason: Reason, Message: "the old driver is replaced by the new one"}
	case Done:
		return &Event{Reason: Reason, Message: "the node's driver is up to date"}
	case Required:
		if e.why != "" {
			return &Event{Warning: true, Reason: Reason, Message: "the driver's upgrade is deferred, and other nodes go first: " + e.why}
		}
	case Failed:
		return &Event{Warning: true, Reason: Reason, Message: "the driver's upgrade failed, and no other node's begins: " + e.why}
	}
	return nil
}

// hasNoUpgradeRecord reports whether the node carries nothing of an upgrade. That is the
// common case, and it is checked at every change.
func (n *node) hasNoUpgradeRecord() bool {
	if n.Labels[label.UpgradeState] != "" {
		return false
	}
	for key := range n.Annotations {
		if key != label.OwnLabels && key != label.Features {
			return false
		}
	}
	return true
}
