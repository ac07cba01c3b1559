// Package explain builds the report that shows a person how far a node is between driver and pod:
// the first stage that is not ok, why, and what to do. FromCluster builds a Report from the Node in
// the cluster; the validator builds one from the files of the node's components. gpu-validator
// explain and kubectl gpu explain print the same text. The package proves nothing, changes nothing,
// and uses no GPU.
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
	Kubelet = "kubelet" // the resources it offers
	Pod     = "pod"     // the GPU in a pod
)

// SilentAction is the next action on a node whose validator has reported nothing.
const SilentAction = "see that the validator runs on this node (DaemonSet nvidia-operator-validator)"

// Running is the reason while the pod that proves the plugin layer has not ended.
const Running = workload + "Running"

// Stage is a layer that the validator proves, the kubelet, or a pod.
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
	Result    string    `json:"result"` // one line: the first stage that is not ok, and why
	Stages    []Stage   `json:"road"`
	Beside    []Stage   `json:"beside,omitempty"` // stages of optional layers, which the chain does not wait for
	Notes     []string  `json:"notes,omitempty"`
	Events    []Event   `json:"events,omitempty"` // oldest first
}

// Stage returns the stage of that name, and adds it if it is missing.
func (r *Report) Stage(name string) *Stage {
	i := slices.IndexFunc(r.Stages, func(s Stage) bool { return s.Name == name })
	if i < 0 {
		i = len(r.Stages)
		r.Stages = append(r.Stages, Stage{Name: name, State: Waiting})
	}
	return &r.Stages[i]
}

// workload is the prefix of the reasons about the pod that proves the plugin layer. The pod runs
// only after the rest of the layer was proven.
const workload = "Workload"

// podProof is the start of the part of a proof's summary about that pod.
const podProof = "; vectorAdd passed in a pod"

// SplitPod moves the pod's part of the plugin layer into a stage of its own.
func (r *Report) SplitPod() {
	plugin, last := r.Stage(string(readiness.Plugin)), r.Stage(Pod)
	switch {
	case plugin.State == Absent:
		last.State = Absent
	case plugin.State == OK:
		devices, proof, tried := strings.Cut(plugin.Message, podProof)
		if !tried {
			*last = Stage{Name: Pod, State: Absent, Message: "no pod was run to prove it (the daemon's --workload-image)"}
			return
		}
		plugin.Message = devices
		*last = Stage{Name: Pod, State: OK, Since: plugin.Since, Message: strings.TrimPrefix(podProof, "; ") + proof}
	case strings.HasPrefix(plugin.Reason, workload):
		*last = *plugin
		last.Name = Pod
		*plugin = Stage{Name: plugin.Name, State: OK, Notes: plugin.Notes, Message: "driver, device plugin and kubelet report the same devices"}
		last.Notes = nil
	}
}

func broken(s Stage) bool { return s.State == Broken }

// Finish sets Result, and marks the stages after the first one that is not ok as waiting for it.
func (r *Report) Finish() {
	var end *Stage
	for i := range r.Stages {
		s := &r.Stages[i]
		switch {
		case end == nil && (s.State == Broken || s.State == Waiting):
			end = s
		case end != nil && s.State != Absent && s.State != Broken:
			if s.State == OK || s.Message == "" || s.Message == end.Message || s.Message == readiness.Unknown {
				*s = Stage{Name: s.Name, State: Waiting, Message: "waits for " + end.Name, Notes: s.Notes}
			}
		}
	}
	switch {
	case r.Stages[0].State == Absent:
		r.Result = "no GPU: " + r.Stages[0].Message
	case end == nil && slices.ContainsFunc(r.Beside, broken):
		s := r.Beside[slices.IndexFunc(r.Beside, broken)]
		r.Result = fmt.Sprintf("broken at %s, an optional layer: %s", s.Name, s.Reason)
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

// End returns the first stage that is not OK, or nil. It skips absent stages, which are not wanted,
// unless the first one is absent, too: then there is no GPU.
func (r Report) End() *Stage {
	for _, s := range slices.Concat(r.Stages, r.Beside) {
		if s.State != OK && (s.State != Absent || r.Stages[0].State == Absent) {
			return &s
		}
	}
	return nil
}
