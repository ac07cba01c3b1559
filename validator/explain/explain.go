// Package explain tells a person how far the road from driver to pod goes on a
// node, where it ends, why, and what to do: read from what the node's components
// left (FromNode), or from what the cluster knows of it (FromCluster). It proves
// nothing, changes nothing, and asks no GPU.
package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/readiness"
)

// State is that of one stretch of the road.
type State string

// The states.
const (
	OK      State = "ok"
	Waiting State = "waiting" // for a stretch before it, or for a proof that is on its way
	Broken  State = "broken"
	Absent  State = "none" // there is no GPU, or nobody asked for it
)

// The stretches above the layers.
const (
	kubelet = "kubelet" // what it offers
	pod     = "pod"     // what one is given
)

// Stretch is a part of the road.
type Stretch struct {
	Name    string    `json:"name"`
	State   State     `json:"state"`
	Since   time.Time `json:"since,omitzero"`
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	Action  string    `json:"action,omitempty"`
	Notes   []string  `json:"notes,omitempty"`
}

// Event is what an Event of the Node told.
type Event struct {
	Time    time.Time `json:"time"`
	Type    string    `json:"type"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Count   int32     `json:"count,omitempty"`
}

// Road is all of it, at one moment.
type Road struct {
	Node      string    `json:"node"`
	Source    string    `json:"source"` // "node" or "cluster": who was asked
	Time      time.Time `json:"time"`
	GPUs      string    `json:"gpus,omitempty"` // "8 × NVIDIA H200"
	Simulated bool      `json:"simulated"`
	Result    string    `json:"result"` // one line: where it ends, and why
	Stretches []Stretch `json:"road"`
	Beside    []Stretch `json:"beside,omitempty"` // the optional layers that were asked for
	Notes     []string  `json:"notes,omitempty"`
	Events    []Event   `json:"events,omitempty"` // oldest first
}

// stretch returns the one with that name, which it adds where it is missing.
func (r *Road) stretch(name string) *Stretch {
	i := slices.IndexFunc(r.Stretches, func(s Stretch) bool { return s.Name == name })
	if i < 0 {
		i = len(r.Stretches)
		r.Stretches = append(r.Stretches, Stretch{Name: name, State: Waiting})
	}
	return &r.Stretches[i]
}

// workload begins the reasons that concern the pod with which the plugin layer is
// proven: up to there all was well.
const workload = "Workload"

// podProof begins the part of a proof's summary that is about that pod.
const podProof = "; vectorAdd passed in a pod"

// split tells the pod's part of the plugin layer apart.
func (r *Road) split() {
	plugin, last := r.stretch(string(readiness.Plugin)), r.stretch(pod)
	switch {
	case plugin.State == Absent:
		last.State = Absent
	case plugin.State == OK:
		accounts, proof, tried := strings.Cut(plugin.Message, podProof)
		if !tried {
			*last = Stretch{Name: pod, State: Absent, Message: "no pod was run to prove it (the daemon's --workload-image)"}
			return
		}
		plugin.Message = accounts
		*last = Stretch{Name: pod, State: OK, Since: plugin.Since, Message: strings.TrimPrefix(podProof, "; ") + proof}
	case strings.HasPrefix(plugin.Reason, workload):
		*last = *plugin
		last.Name = pod
		*plugin = Stretch{Name: plugin.Name, State: OK, Notes: plugin.Notes, Message: "the accounts of driver, device plugin and kubelet agree"}
		last.Notes = nil
	}
}

func broken(s Stretch) bool { return s.State == Broken }

// finish says in one line what it comes to, and lets what is behind the end wait.
func (r *Road) finish() {
	var end *Stretch
	for i := range r.Stretches {
		s := &r.Stretches[i]
		switch {
		case end == nil && (s.State == Broken || s.State == Waiting):
			end = s
		case end != nil && s.State != Absent && s.State != Broken:
			if s.State == OK || s.Message == "" || s.Message == end.Message {
				*s = Stretch{Name: s.Name, State: Waiting, Message: "waits for " + end.Name, Notes: s.Notes}
			}
		}
	}
	switch {
	case r.Stretches[0].State == Absent:
		r.Result = "no GPU: " + r.Stretches[0].Message
	case end == nil && slices.ContainsFunc(r.Beside, broken):
		s := r.Beside[slices.IndexFunc(r.Beside, broken)]
		r.Result = fmt.Sprintf("broken beside the road, at %s: %s", s.Name, s.Reason)
	case end == nil:
		r.Result = "ok: pods can use the GPUs of this node"
		if r.Simulated {
			r.Result = "ok (SIMULATED): pods can use the simulated GPUs of this node"
		}
		if slices.ContainsFunc(r.Stretches, func(s Stretch) bool { return len(s.Notes) > 0 }) {
			r.Result += "; see what is marked !"
		}
	case end.State == Broken:
		r.Result = fmt.Sprintf("broken at %s: %s", end.Name, end.Reason)
	default:
		r.Result = fmt.Sprintf("waiting at %s: %s", end.Name, end.Message)
	}
}
