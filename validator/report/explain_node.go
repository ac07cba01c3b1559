package report

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/explain"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/step"
)

// components maps a layer to the component whose state explains it.
var components = map[readiness.Layer]nodestate.Component{
	readiness.Driver: nodestate.Driver, readiness.Toolkit: nodestate.Toolkit, readiness.Plugin: nodestate.DevicePlugin,
}

// nodeReport is an explain.Report that is being built.
type nodeReport struct{ explain.Report }

// ExplainNode reads the proofs in a folder and the states of the components. It needs no
// other privilege than to read them.
func ExplainNode(node check.Node, proofs, name string, now time.Time) explain.Report {
	r := &nodeReport{explain.Report{Node: name, Source: "node", Time: now.UTC()}}
	silent := true
	for _, l := range readiness.Layers() {
		status, err := readiness.Read(proofs, l, node.BootID)
		silent = silent && err != nil
		*r.Stage(string(l)) = r.proofStage(string(l), status, err)
		if c, ok := components[l]; ok {
			state, err := node.State(c)
			r.addState(l, c, state, err)
		}
	}
	r.addOffer(node)
	r.SplitPod()
	for _, l := range readiness.Optional() {
		if status, err := readiness.Read(proofs, l, node.BootID); err == nil {
			r.Beside = append(r.Beside, r.proofStage(string(l), status, nil))
		}
	}
	state, err := node.State(nodestate.Validator)
	switch {
	case err == nil:
		for _, u := range state.Unserved {
			r.Notes = append(r.Notes, fmt.Sprintf("%s: %s has no effect: %s", nodestate.Validator, u.Name, u.Message))
		}
		if state.Reason == nodestate.ReasonNotWritable {
			r.Notes = append(r.Notes, fmt.Sprintf("%s: %s: %s; what is shown here may be old", nodestate.Validator, state.Reason, state.Message))
		}
	case errors.Is(err, nodestate.ErrUnwritten):
		r.Notes = append(r.Notes, fmt.Sprintf("%s: %s: %v; what is shown here may be old", nodestate.Validator, nodestate.ReasonNotWritable, err))
	}
	if silent {
		if s := r.Stage(string(readiness.Driver)); s.Reason == "" {
			s.Action = explain.SilentAction
		}
		r.Notes = append(r.Notes, "the validator's daemon has reported nothing since the node booted; gpu-validator run proves the layers now")
	}
	r.Finish()
	return r.Report
}

// proofStage returns the stage of a layer by the validator's proof or refusal.
func (r *nodeReport) proofStage(name string, status readiness.Status, err error) explain.Stage {
	if err != nil {
		s := explain.Stage{Name: name, State: explain.Waiting, Message: readiness.DescribeError(err)}
		if errors.Is(err, readiness.ErrInvalid) {
			s.State, s.Reason, s.Action = explain.Broken, "ProofInvalid", "restart gpu-validator, which writes the file anew"
		}
		return s
	}
	if p := status.Proof; p != nil {
		r.Simulated = r.Simulated || p.Driver != nil && p.Driver.Simulated
		if name == string(readiness.Driver) {
			r.GPUs = p.Summary
		}
		return explain.Stage{Name: name, State: explain.OK, Since: p.Time, Message: p.Summary}
	}
	f := status.NotReady
	s := explain.Stage{Name: name, State: explain.Broken, Since: f.Time, Reason: string(f.Reason), Message: f.Message, Action: f.Action}
	switch f.Reason {
	case check.ReasonNoGPU:
		s.State, s.Action = explain.Absent, ""
	case check.ReasonNotRun:
		s = explain.Stage{Name: name, State: explain.Waiting}
	case explain.Running:
		s.State, s.Action = explain.Waiting, ""
	}
	return s
}

// addState adds the state of a component, unless it is Ready.
func (r *nodeReport) addState(l readiness.Layer, c nodestate.Component, state nodestate.State, err error) {
	s := r.Stage(string(l))
	if err == nil {
		for _, u := range state.Unserved {
			s.Notes = append(s.Notes, fmt.Sprintf("%s: %s has no effect: %s", c, u.Name, u.Message))
		}
	}
	reason, why, none := readiness.DriverProblem(state, err)
	switch {
	case none && l == readiness.Driver && (s.State == explain.Waiting || s.State == explain.Broken && step.NoDriver(gpu.Reason(s.Reason), state)):
		s.State = explain.Broken
		if readiness.IsDriverTransition(reason) {
			s.State = explain.Waiting
		}
		s.Reason, s.Since = string(reason), state.Time
		s.Message, s.Action = readiness.SplitAction(why)
	case nodestate.IsAbsent(err):
	case errors.Is(err, nodestate.ErrUnwritten) && s.State != explain.Absent:
		s.State, s.Reason = explain.Broken, string(nodestate.ReasonNotWritable)
		s.Message, s.Action = readiness.SplitAction(err.Error())
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
func (r *nodeReport) addOffer(node check.Node) {
	s := r.Stage(explain.Kubelet)
	state, err := node.State(nodestate.DevicePlugin)
	if r.Stage(string(readiness.Driver)).State == explain.Absent {
		s.State = explain.Absent
		return
	}
	if err != nil || state.DevicePlugin == nil {
		return
	}
	info := state.DevicePlugin
	addNotes(s, info.Inventory)
	if info.Serve == nodestate.ServeDRA {
		addInventory(s, info.Devices())
		s.Since = state.Time
		return
	}
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
		s.State, s.Since = explain.OK, state.Time
		return
	}
	s.Message = "the device plugin is not registered with the kubelet"
}

// addNotes adds what people should know of GPUs that are offered nevertheless.
func addNotes(s *explain.Stage, all []nodestate.GPU) {
	for _, g := range all {
		for _, n := range g.Notes {
			s.Notes = append(s.Notes, fmt.Sprintf("%s: %s: %s", g.UUID, n.Reason, n.Message))
		}
	}
}

// addInventory adds the devices that gpu-dra-driver offers. Whether it does is shown by its pod and by
// the ResourceSlices, which this program may not read.
func addInventory(s *explain.Stage, devices []nodestate.Device) {
	healthy := 0
	for _, d := range devices {
		if d.Health == nodestate.Healthy {
			healthy++
			continue
		}
		s.Notes = append(s.Notes, withheldText(d))
	}
	s.State, s.Message = explain.OK, fmt.Sprintf("offered as ResourceSlices by gpu-dra-driver: %d of %d healthy", healthy, len(devices))
}

func withheldText(d nodestate.Device) string {
	text := fmt.Sprintf("held back: %s: %s", d.GPU, cmp.Or(d.Message, string(d.Reason)))
	if !d.Since.IsZero() {
		text += ", since " + d.Since.UTC().Format(time.RFC3339)
	}
	if d.Action != "" {
		text = readiness.WithAction(text, d.Action)
	}
	return text
}
