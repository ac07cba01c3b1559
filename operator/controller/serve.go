package controller

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/deployments"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
	"github.com/gpuready/gpuready/operator/serving"
	"github.com/gpuready/gpuready/operator/state"
	"github.com/gpuready/gpuready/operator/status"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// hasDRANodes reports whether there is a DRA driver of the operator's that is still needed: served nodes
// have the operator's label.Serve, publish devices or have some that are not released to the device
// plugin, which nobody else can do. While it is not known what they publish, they may.
func (c *Controller) hasDRANodes(handOver bool) bool {
	if !c.ownsDRADriver() {
		return false
	}
	if c.model.slicesError != nil {
		return true
	}
	for _, on := range c.model.nodes {
		served, byPerson := on.node.ServedBy()
		if on.node.Served(handOver) && !byPerson && (served != "" || c.model.devicesOf(on.node.Name) > 0 || c.mustRelease(on.node)) {
			return true
		}
	}
	return false
}

// mustRelease reports whether a DRA driver runs on a node, and pods may be given less of the device
// plugin's resources than the kubelet knows. The ResourceSlices are withdrawn before the first device
// is released, and devices of claims are released when those end.
func (c *Controller) mustRelease(n *fleet.Node) bool {
	return (n.Withheld || !n.Allocatable) && slices.ContainsFunc(c.model.podsOn[n.Name], func(o *operand) bool { return o.State == progress.DRADriver })
}

// ownsDRADriver reports whether the DaemonSet of the DRA driver is the operator's.
func (c *Controller) ownsDRADriver() bool {
	return slices.ContainsFunc(c.model.ownedObjects(), func(o client.Object) bool {
		d := daemonSet(o)
		return d != nil && d.Name == deployments.DRADriver.App
	})
}

// slicesProblem returns why it is not known which nodes have changed; nil: it is, or will be soon, or
// does not matter.
func (c *Controller) slicesProblem(s *desired) error {
	if s.policy == nil || !s.policy.Spec.DRADriver.IsEnabled() && !s.keepDRADriver || errors.Is(c.model.slicesError, errSlicesPending) {
		return nil
	}
	return c.model.slicesError
}

// planServe plans how nodes change between the device plugin and the DRA driver. It returns nil if
// none has to.
func (c *Controller) planServe(s *desired, members []*member) *serving.Plan {
	if s.policy == nil || !s.policy.Spec.DRADriver.IsEnabled() && !s.keepDRADriver {
		return nil
	}
	spec := &s.policy.Spec.DRADriver
	in := serving.Input{
		Want: v1.ServePlugin, MaxUnavailable: spec.Unavailable(), Unknown: c.model.slicesError != nil || spec.ServesDRA() && !c.model.dra,
		Devices: map[string]int{}, Writing: map[string]bool{},
	}
	if spec.ServesDRA() {
		in.Want = v1.ServeDRA
	}
	for _, on := range members {
		if n := on.node; n.Served(s.handOver) {
			in.Nodes = append(in.Nodes, n)
			in.Writing[n.Name] = on.writing()
			if devices := c.model.devicesOf(n.Name); devices > 0 {
				in.Devices[n.Name] = devices
			}
		}
	}
	return serving.NewPlan(in)
}

// serveLabel returns the operator's value of a node's label.Serve; "": none.
func (c *Controller) serveLabel(node string) string {
	if c.serving == nil || !c.serving.DRA[node] {
		return ""
	}
	return string(v1.ServeDRA)
}

// serveEvent returns the Event of a patch that changes how pods get the node's GPUs; nil: it does not.
func serveEvent(p upgrade.Patch) *upgrade.Event {
	value, changes := p.Labels[label.Serve]
	switch {
	case !changes:
		return nil
	case value == nil:
		return &upgrade.Event{Reason: string(reasonServe), Message: "pods get the node's GPUs as resources of the device plugin again; pods keep what they have"}
	}
	return &upgrade.Event{Reason: string(reasonServe), Message: "pods get the node's GPUs by ResourceClaims from now on; pods keep what they have"}
}

// reasonServe is the reason of the Events of Nodes that change.
const reasonServe state.Reason = "GPUServe"

// serveStatus returns the progress of the nodes' change.
func (c *Controller) serveStatus(spec *v1.DRADriverSpec) *v1.ServeStatus {
	p := c.serving
	if p == nil {
		return nil
	}
	want := v1.ServePlugin
	if spec.ServesDRA() {
		want = v1.ServeDRA
	}
	return &v1.ServeStatus{
		Want: want, Total: p.Counts.Total, DRA: p.Counts.DRA, InProgress: p.Counts.InProgress, Pending: p.Counts.Pending,
		ByPerson: p.Counts.ByPerson, Unsupported: len(p.Unsupported), Waiting: status.Waiting(p.Waiting, nil),
	}
}

// serveCounts returns the nodes by how pods get their GPUs, as a metric has them.
func serveCounts(p *serving.Plan) map[string]int {
	if p == nil {
		return nil
	}
	dra := 0
	for node := range p.DRA {
		if _, changes := p.Waiting[node]; !changes {
			dra++
		}
	}
	return map[string]int{
		string(v1.ServePlugin): p.Counts.Total - p.Counts.InProgress - dra, string(v1.ServeDRA): dra,
		"changing": p.Counts.InProgress, "person": p.Counts.ByPerson,
	}
}

// reasonServeUnsupported is the reason while nodes keep the device plugin, since they cannot serve
// claims, and reasonServedByNobody that while nodes have no DRA driver that their label asks for.
const (
	reasonServeUnsupported state.Reason = "NodesWithoutDRA"
	reasonServedByNobody   state.Reason = "NoDRADriver"
)

// serveProblems returns the nodes that cannot serve as a policy or a person wants.
func (c *Controller) serveProblems(s *desired) (all []status.Problem) {
	if c.serving != nil && len(c.serving.Unsupported) > 0 {
		name := slices.Min(slices.Collect(maps.Keys(c.serving.Unsupported)))
		all = append(all, status.Problem{Reason: string(reasonServeUnsupported), Message: fmt.Sprintf("draDriver.serve: %d nodes keep the device plugin; %s: %s, or set its label nvidia.com/gpu.serve to plugin",
			len(c.serving.Unsupported), name, c.serving.Unsupported[name])})
	}
	if s.policy.Spec.DRADriver.IsEnabled() {
		return all
	}
	if names := c.servedByNobody(s); len(names) > 0 {
		all = append(all, status.Problem{Reason: string(reasonServedByNobody), Message: fmt.Sprintf(
			"node %s offers no GPU: its label nvidia.com/gpu.serve is dra, and there is no DRA driver; set draDriver.enabled to true, or the label to plugin", names[0])})
	}
	return all
}

// servedByNobody returns the nodes whose label, set by a person, asks for a DRA driver that is not
// there, by name.
func (c *Controller) servedByNobody(s *desired) (names []string) {
	for _, on := range c.model.nodes {
		served, byPerson := on.node.ServedBy()
		if byPerson && served == string(v1.ServeDRA) && on.node.Served(s.handOver) && c.model.devicesOf(on.node.Name) == 0 {
			names = append(names, on.node.Name)
		}
	}
	slices.Sort(names)
	return names
}
