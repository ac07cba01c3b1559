// Package explain shows a person how far a node is on the way from driver to pod: where
// it ends, why, and what to do. It reads the files of the node's components (FromNode), or
// the Node in the cluster (FromCluster). It proves nothing, changes nothing, and uses no GPU.
package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/readiness"
)

// State is the state of one stage between driver and pod.
type State string

// The states.
const (
	OK      State = "ok"
	Waiting State = "waiting" // for a stage before it, or for a pending proof
	Broken  State = "broken"
	Absent  State = "none" // there is no GPU, or the check is not wanted
)

// The stages above the layers.
const (
	kubelet = "kubelet" // the resources it offers
	pod     = "pod"     // the GPU in a pod
)

// Stage is a part of the way from driver to pod.
type Stage struct {
	Name    string    `json:"name"`
	State   State     `json:"state"`
	Since   time.Time `json:"since,omitzero"`
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	Action  string    `json:"action,omitempty"`
	Notes   []string  `json:"notes,omitempty"`
}

// Event is an Event of the Node.
type Event struct {
	Time    time.Time `json:"time"`
	Type    string    `json:"type"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Count   int32     `json:"count,omitempty"`
}

// Report describes all stages of a node at one moment.
type Report struct {
	Node      string    `json:"node"`
	Source    string    `json:"source"` // "node" or "cluster"
	Time      time.Time `json:"time"`
	GPUs      string    `json:"gpus,omitempty"` // "8 × NVIDIA H200"
	Simulated bool      `json:"simulated"`
	Result    string    `json:"result"` // one line: where it ends, and why
	Stages    []Stage   `json:"road"`
	Beside    []Stage   `json:"beside,omitempty"` // the optional layers that are wanted
	Notes     []string  `json:"notes,omitempty"`
	Events    []Event   `json:"events,omitempty"` // oldest first
}

// stage returns the stage of that name, and adds it if it is missing.
func (r *Report) stage(name string) *Stage {
	i := slices.IndexFunc(r.Stages, func(s Stage) bool { return s.Name == name })
	if i < 0 {
		i = len(r.Stages)
		r.Stages = append(r.Stages, Stage{Name: name, State: Waiting})
	}
	return &r.Stages[i]
}

// workload is the prefix of the reasons about the pod that proves the plugin layer. All
// before the pod was proven then.
const workload = "Workload"

// podProof is the start of the part of a proof's summary about that pod.
const podProof = "; vectorAdd passed in a pod"

// splitPod moves the pod's part of the plugin layer into a stage of its own.
func (r *Report) splitPod() {
	plugin, last := r.stage(string(readiness.Plugin)), r.stage(pod)
	switch {
	case plugin.State == Absent:
		last.State = Absent
	case plugin.State == OK:
		accounts, proof, tried := strings.Cut(plugin.Message, podProof)
		if !tried {
			*last = Stage{Name: pod, State: Absent, Message: "no pod was run to prove it (the daemon's --workload-image)"}
			return
		}
		plugin.Message = accounts
		*last = Stage{Name: pod, State: OK, Since: plugin.Since, Message: strings.TrimPrefix(podProof, "; ") + proof}
	case strings.HasPrefix(plugin.Reason, workload):
		*last = *plugin
		last.Name = pod
		*plugin = Stage{Name: plugin.Name, State: OK, Notes: plugin.Notes, Message: "the accounts of driver, device plugin and kubelet agree"}
		last.Notes = nil
	}
}

func broken(s Stage) bool { return s.State == Broken }

// finish sets the result, in one line, and marks the stages after the end as waiting.
func (r *Report) finish() {
	var end *Stage
	for i := range r.Stages {
		s := &r.Stages[i]
		switch {
		case end == nil && (s.State == Broken || s.State == Waiting):
			end = s
		case end != nil && s.State != Absent && s.State != Broken:
			if s.State == OK || s.Message == "" || s.Message == end.Message {
				*s = Stage{Name: s.Name, State: Waiting, Message: "waits for " + end.Name, Notes: s.Notes}
			}
		}
	}
	switch {
	case r.Stages[0].State == Absent:
		r.Result = "no GPU: " + r.Stages[0].Message
	case end == nil && slices.ContainsFunc(r.Beside, broken):
		s := r.Beside[slices.IndexFunc(r.Beside, broken)]
		r.Result = fmt.Sprintf("broken beside the road, at %s: %s", s.Name, s.Reason)
	case end == nil:
		r.Result = "ok: pods can use the GPUs of this node"
		if r.Simulated {
			r.Result = "ok (SIMULATED): pods can use the simulated GPUs of this node"
		}
		if slices.ContainsFunc(r.Stages, func(s Stage) bool { return len(s.Notes) > 0 }) {
			r.Result += "; see what is marked !"
		}
	case end.State == Broken:
		r.Result = fmt.Sprintf("broken at %s: %s", end.Name, end.Reason)
	default:
		r.Result = fmt.Sprintf("waiting at %s: %s", end.Name, end.Message)
	}
}
