// Package serving plans how nodes change between the two ways in which pods get their GPUs: as
// resources of the device plugin, or by ResourceClaims of the DRA driver. It is pure. All state is
// in the Nodes' label nvidia.com/gpu.serve and in what the API server shows of a node: its
// allocatable resources, and its ResourceSlices. So any later plan continues where this one stopped.
//
// Nothing is evicted: pods keep their GPUs, and each GPU changes when its pod has ended. Until a node
// serves in its new way it counts as unavailable, and the policy limits how many are.
package serving

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
)

// Input holds everything that a plan depends on.
type Input struct {
	Nodes []*fleet.Node // GPU nodes of this operator, in any order
	// Want names the way in which pods shall get GPUs.
	Want v1.Serve
	// MaxUnavailable limits the nodes that are on the way, cordoned or not ready: a number, or a
	// percentage of the nodes, which is rounded up.
	MaxUnavailable intstr.IntOrString
	// Devices are the numbers of devices that the DRA driver has published, by node.
	Devices map[string]int
	// Unknown means that Devices is not known: no node changes.
	Unknown bool
	// Writing are nodes with a pending write.
	Writing map[string]bool
}

// Plan holds what to do now.
type Plan struct {
	DRA         map[string]bool   // nodes that shall have the operator's label
	Waiting     map[string]string // what the nodes on the way wait for, one sentence
	Unsupported map[string]string // why nodes that follow the policy cannot serve claims, with the next action
	Counts      Counts
}

// Counts counts the nodes of the operator.
type Counts struct {
	Total      int // that follow the policy
	DRA        int // of Total: that the operator has told to serve claims
	InProgress int // of Total: on the way
	Pending    int // of Total: their change has not begun
	ByPerson   int // whose label a person has set
}

// node is a node that follows the policy.
type node struct {
	*fleet.Node
	now, want v1.Serve
	why       string // what it waits for; "": it serves as now says
}

// NewPlan returns the plan for an input.
func NewPlan(in Input) *Plan {
	p := &Plan{DRA: map[string]bool{}, Waiting: map[string]string{}, Unsupported: map[string]string{}}
	var pending []*node
	unavailable := 0
	for _, observed := range in.Nodes {
		n, follows := p.observe(in, observed)
		if !follows {
			continue
		}
		p.Counts.Total++
		// The label of a node that is being written may be another by now.
		if !n.available() || n.now != n.want && in.Writing[n.Name] {
			unavailable++
		}
		switch {
		case n.now != n.want:
			pending = append(pending, n)
		case n.why != "" && (n.want == v1.ServeDRA || in.Devices[n.Name] > 0): // a node without GPUs so far is no change
			p.Counts.InProgress++
			p.Waiting[n.Name] = n.why
		}
		if n.now == v1.ServeDRA {
			p.DRA[n.Name] = true
		}
	}
	p.Counts.Pending = len(pending)
	p.start(in, pending, unavailable)
	p.Counts.DRA = len(p.DRA)
	return p
}

// observe returns a node with how it serves and shall serve, and whether it follows the policy.
func (p *Plan) observe(in Input, observed *fleet.Node) (n *node, follows bool) {
	now, byPerson := observed.ServedBy()
	if byPerson {
		p.Counts.ByPerson++
		return nil, false
	}
	n = &node{Node: observed, now: cmp.Or(v1.Serve(now), v1.ServePlugin), want: cmp.Or(in.Want, v1.ServePlugin)}
	if why := unsupported(observed); n.want == v1.ServeDRA && why != "" {
		p.Unsupported[n.Name], n.want = why, v1.ServePlugin
	}
	n.why = waitsFor(n, in.Devices[n.Name])
	return n, true
}

// unsupported returns why a node cannot serve claims, and the next action; "": it can.
func unsupported(n *fleet.Node) string {
	for _, operand := range []string{label.DRAOperand, "device-plugin"} {
		if key := label.Deploy + operand; n.Labels[key] == "false" {
			return "its label " + key + "=false keeps a pod away that claims need; remove the label"
		}
	}
	if !n.SupportsDRA() {
		return fmt.Sprintf("claims need a kubelet of 1.34 and a container runtime with CDI, and it has kubelet %s and %s; upgrade it", n.Kubelet, n.Runtime)
	}
	return ""
}

// waitsFor returns what a node waits for until it serves as its label says; "": it does.
func waitsFor(n *node, devices int) string {
	switch {
	case n.now == v1.ServeDRA && n.Allocatable:
		return "the device plugin still offers resources of nvidia.com to pods"
	case n.now == v1.ServeDRA && devices == 0:
		return "no device is published: pods hold all GPUs from before and keep them until they end, or the pod of gpu-dra-driver is not ready"
	case n.now == v1.ServePlugin && devices > 0:
		return fmt.Sprintf("gpu-dra-driver still publishes %d devices", devices)
	case n.now == v1.ServePlugin && !n.Allocatable:
		return "the device plugin offers no resource of nvidia.com yet"
	}
	return ""
}

// available reports whether pods can get GPUs of the node in one way.
func (n *node) available() bool { return n.Ready && !n.Cordoned && n.why == "" }

// offersNone reports whether the node offers no GPU, and will not before it has changed. One that is
// cordoned or not ready, or whose device plugin is being restarted, will offer them again by itself.
func (n *node) offersNone() bool {
	return n.why != "" && (n.now == v1.ServeDRA || n.Allocatable || !n.Registered)
}

// hasRoom reports whether the limit lets a node begin, while some are unavailable. What offers no GPU
// takes none away. Nodes that are unavailable for a while count already, and are on the way longer
// than that: they begin while fewer than the limit are, so that an outage changes no whole fleet.
func (p *Plan) hasRoom(n *node, unavailable, limit int) bool {
	switch {
	case n.available():
		return unavailable < limit
	case n.offersNone():
		return true
	}
	return p.Counts.InProgress < limit
}

// start begins the change of as many nodes as the policy allows: first of those that serve nobody
// anyway, then pool by pool.
func (p *Plan) start(in Input, pending []*node, unavailable int) {
	rank := func(n *node) int {
		if n.available() {
			return 1
		}
		return 0
	}
	slices.SortFunc(pending, func(a, b *node) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Pool.String(), b.Pool.String()), cmp.Compare(a.Name, b.Name))
	})
	limit, err := intstr.GetScaledValueFromIntOrPercent(&in.MaxUnavailable, p.Counts.Total, true)
	if err != nil {
		limit = 0 // the schema refuses such a value; no node changes because of one
	}
	for _, n := range pending {
		if in.Unknown || in.Writing[n.Name] || !p.hasRoom(n, unavailable, limit) {
			continue
		}
		if n.available() {
			unavailable++
		}
		p.Counts.Pending--
		p.Counts.InProgress++
		p.Waiting[n.Name] = "its label nvidia.com/gpu.serve is written"
		if n.want == v1.ServeDRA {
			p.DRA[n.Name] = true
		} else {
			delete(p.DRA, n.Name)
		}
	}
}
