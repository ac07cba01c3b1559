package explain

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/step"
	reasons "github.com/gpuready/gpuready/validator/workload"
)

// components maps a layer to the component whose state explains it.
var components = map[readiness.Layer]nodestate.Component{
	readiness.Driver: nodestate.Driver, readiness.Toolkit: nodestate.Toolkit, readiness.Plugin: nodestate.DevicePlugin,
}

// FromNode reads the proofs in a folder and the states of the components. It needs no
// other privilege than to read them.
func FromNode(node check.Node, proofs, name string, now time.Time) Report {
	r := Report{Node: name, Source: "node", Time: now.UTC()}
	silent := true
	for _, l := range readiness.Layers() {
		status, err := readiness.Read(proofs, l, node.BootID)
		silent = silent && err != nil
		*r.stage(string(l)) = r.proofStage(string(l), status, err)
		if c, ok := components[l]; ok {
			state, err := node.State(c)
			r.addState(l, c, state, err)
		}
	}
	r.addOffer(node)
	r.splitPod()
	for _, l := range readiness.Optional() {
		if status, err := readiness.Read(proofs, l, node.BootID); err == nil {
			r.Beside = append(r.Beside, r.proofStage(string(l), status, nil))
		}
	}
	if state, err := node.State(nodestate.Validator); err == nil {
		for _, u := range state.Unserved {
			r.Notes = append(r.Notes, fmt.Sprintf("%s: %s has no effect: %s", nodestate.Validator, u.Name, u.Message))
		}
	}
	if silent {
		r.Notes = append(r.Notes, "the validator's daemon has said nothing in this boot: see that gpu-validator daemon runs on this node (DaemonSet nvidia-operator-validator), or prove the layers now with gpu-validator run")
	}
	r.finish()
	return r
}

// proofStage returns the stage of a layer by the validator's proof or refusal.
func (r *Report) proofStage(name string, status readiness.Status, err error) Stage {
	if err != nil {
		s := Stage{Name: name, State: Waiting, Message: readiness.DescribeError(err)}
		if errors.Is(err, readiness.ErrInvalid) {
			s.State, s.Reason, s.Action = Broken, "ProofInvalid", "restart gpu-validator, which writes the file anew"
		}
		return s
	}
	if p := status.Proof; p != nil {
		r.Simulated = r.Simulated || p.Driver != nil && p.Driver.Simulated
		if name == string(readiness.Driver) {
			r.GPUs = p.Summary
		}
		return Stage{Name: name, State: OK, Since: p.Time, Message: p.Summary}
	}
	f := status.NotReady
	s := Stage{Name: name, State: Broken, Since: f.Time, Reason: string(f.Reason), Message: f.Message, Action: f.Action}
	switch f.Reason {
	case check.ReasonNoGPU:
		s.State, s.Action = Absent, ""
	case check.ReasonNotRun:
		s = Stage{Name: name, State: Waiting}
	case reasons.ReasonRunning:
		s.State = Waiting
	}
	return s
}

// addState adds the state of a component, unless it is Ready.
func (r *Report) addState(l readiness.Layer, c nodestate.Component, state nodestate.State, err error) {
	s := r.stage(string(l))
	if err == nil {
		for _, u := range state.Unserved {
			s.Notes = append(s.Notes, fmt.Sprintf("%s: %s has no effect: %s", c, u.Name, u.Message))
		}
	}
	reason, why, none := readiness.DriverSays(state, err)
	switch {
	case none && l == readiness.Driver && (s.State == Waiting || s.State == Broken && step.NoDriver(gpu.Reason(s.Reason), state)):
		if state.Phase == nodestate.Failed {
			s.State = Broken
		}
		s.Reason, s.Since = string(reason), state.Time
		s.Message, s.Action = splitAction(why)
	case nodestate.IsAbsent(err):
	case err != nil:
		s.Notes = append(s.Notes, fmt.Sprintf("%s: %v", c, err))
	case state.Phase != nodestate.Ready && state.Message != "" && !strings.Contains(s.Message, state.Message):
		text := fmt.Sprintf("%s says %s", c, state.Phase)
		if state.Reason != "" {
			text += ": " + string(state.Reason)
		}
		s.Notes = append(s.Notes, text+": "+state.Message)
	}
}

// addOffer sets the kubelet's stage by the devices that the plugin registered, and adds those
// that it withholds.
func (r *Report) addOffer(node check.Node) {
	s := r.stage(kubelet)
	state, err := node.State(nodestate.DevicePlugin)
	if r.stage(string(readiness.Driver)).State == Absent {
		s.State = Absent
		return
	}
	if err != nil || state.DevicePlugin == nil {
		return
	}
	info := state.DevicePlugin
	var offers []string
	var seen []gpu.UUID
	for _, resource := range info.Resources {
		all, healthy := 0, 0
		for _, d := range resource.Devices {
			all += len(d.IDs())
			if d.Health == nodestate.Healthy {
				healthy += len(d.IDs())
				continue
			}
			if !slices.Contains(seen, d.GPU) {
				seen = append(seen, d.GPU)
				s.Notes = append(s.Notes, withheldText(d))
			}
		}
		offers = append(offers, fmt.Sprintf("%s: %d of %d healthy", resource.Name, healthy, all))
	}
	for _, left := range info.LeftOut {
		s.Notes = append(s.Notes, fmt.Sprintf("not offered: %s: %s", left.GPU, cmp.Or(left.Message, string(left.Reason))))
	}
	s.Message = strings.Join(offers, ", ")
	if info.Registered {
		s.State, s.Since = OK, state.Time
		return
	}
	s.Message = "the device plugin is not registered with the kubelet"
}

func withheldText(d nodestate.Device) string {
	text := fmt.Sprintf("held back: %s: %s", d.GPU, cmp.Or(d.Message, string(d.Reason)))
	if !d.Since.IsZero() {
		text += ", since " + d.Since.UTC().Format(time.RFC3339)
	}
	return text
}
