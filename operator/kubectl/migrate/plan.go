package migrate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/gpuready/gpuready/internal/version"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/kubectl/cluster"
	"github.com/gpuready/gpuready/operator/label"
)

// Plan describes how far a migration is, what is in its way, and what to do next.
type Plan struct {
	Time       time.Time   `json:"time"`
	NVIDIA     []Operator  `json:"nvidia"`
	GPUReady   []Operator  `json:"gpuready"`
	Definition string      `json:"definition,omitempty"` // the owner of the definition of ClusterPolicies
	Policies   []Policy    `json:"policies"`
	DaemonSets []DaemonSet `json:"daemonSets"`
	Nodes      []Node      `json:"nodes"`             // with GPUs
	Refused    []string    `json:"refused,omitempty"` // why no node can be handed over, each with what to do
	Notes      []string    `json:"notes,omitempty"`
	Next       []string    `json:"next,omitempty"` // commands
}

// DaemonSet is an operand.
type DaemonSet struct {
	Side      Side   `json:"side"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Desired   int32  `json:"desired"` // nodes
	Ready     int32  `json:"ready"`
}

// Node is a GPU node.
type Node struct {
	Name     string   `json:"name"`
	ServedBy Side     `json:"servedBy"`
	Waits    string   `json:"waits,omitempty"`   // why the side that serves it is not ready
	Pods     []string `json:"pods"`              // that have GPUs, as namespace/name
	Refused  []string `json:"refused,omitempty"` // why it cannot be handed over, each with what to do
	Next     string   `json:"next,omitempty"`    // command
}

// NewPlan computes the plan of a snapshot.
func NewPlan(s *Snapshot, now time.Time) Plan {
	p := Plan{
		Time: now.UTC(), NVIDIA: orEmpty(s.NVIDIA), GPUReady: orEmpty(s.GPUReady), Definition: s.Definition, Policies: orEmpty(s.Policies),
		DaemonSets: []DaemonSet{}, Nodes: []Node{}, Notes: s.Notes,
	}
	if all := s.clusterRefusals(GPUReady); runs(s.NVIDIA) {
		p.Refused = all
	} else { // nothing is in the way of anything
		p.Notes = slices.Concat(p.Notes, all)
	}
	p.addDaemonSets(NVIDIA, s.Operands.NVIDIA)
	p.addDaemonSets(GPUReady, s.Operands.GPUReady)
	for _, view := range s.Nodes {
		p.Nodes = append(p.Nodes, s.planNode(view, len(p.Refused) == 0))
	}
	p.Next = s.next(p)
	return p
}

func orEmpty[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}

func (p *Plan) addDaemonSets(side Side, sets []appsv1.DaemonSet) {
	for _, set := range sets {
		p.DaemonSets = append(p.DaemonSets, DaemonSet{side, set.Namespace, set.Name, set.Status.DesiredNumberScheduled, set.Status.NumberReady})
	}
}

// planNode plans one node; possible says that nothing is in the way of all nodes.
func (s *Snapshot) planNode(view cluster.NodeView, possible bool) Node {
	n := Node{Name: view.Node.Name, ServedBy: s.sideOf(view.Node), Pods: orEmpty(s.users(view))}
	switch n.ServedBy {
	case NVIDIA:
		n.Waits, n.Refused = s.nvidiaObstacle(view), s.refusals(view, GPUReady, false)
		if len(n.Refused) == 0 && possible {
			n.Next = "kubectl gpu migrate node " + n.Name
		}
	case Between:
		n.Waits = "its labels are on the way from one operator to the other"
		if !runs(s.NVIDIA) {
			n.Refused = s.withoutNVIDIA()
		}
		n.Refused = append(n.Refused, s.refusals(view, GPUReady, false)...)
		if len(n.Refused) == 0 && possible {
			n.Next = "kubectl gpu migrate node " + n.Name
		}
	case GPUReady:
		if n.Waits = s.obstacle(view); n.Waits != "" {
			n.Next = "kubectl gpu explain " + n.Name + " -n " + s.GPUReady[0].Namespace
		}
	case Nobody:
		if runs(s.NVIDIA) {
			n.Refused = s.refusals(view, GPUReady, false)
		}
	}
	return n
}

// Installation returns the command that installs gpuready beside NVIDIA's operator, from a clone of its
// repository: it leaves the definition as it is, and creates no policy and no second NFD.
func Installation() string {
	return "helm install gpuready " + Chart +
		" -n gpuready-system --create-namespace --wait --skip-crds --set clusterPolicy.create=false --set nfd.enabled=false"
}

// Chart is the chart's folder in a clone of the repository.
const Chart = "deployments/helm/gpuready"

// PublishedChart returns the arguments of helm install that name the chart of a published release.
func PublishedChart() string {
	return "oci://ghcr.io/gpuready/charts/gpuready --version " + strings.TrimPrefix(version.Release(), "v")
}

// containerRuntime begins the paths at which NVIDIA's operator mounts the runtime's configuration into
// its toolkit's container.
const containerRuntime = "/runtime/"

// clusterRefusals lists why no node can be moved to a side.
func (s *Snapshot) clusterRefusals(to Side) (all []string) {
	switch {
	case runs(s.NVIDIA) && to == NVIDIA:
		return nil
	case runs(s.NVIDIA):
		return s.installationRefusals()
	}
	moving := slices.ContainsFunc(s.Nodes, func(v cluster.NodeView) bool { return s.sideOf(v.Node) == Between })
	text, so := "NVIDIA's operator does not run here", "there is nothing to hand over"
	if len(s.NVIDIA) > 0 {
		text, so = "NVIDIA's operator is scaled to zero", "gpuready serves all nodes"
	}
	switch {
	case to == NVIDIA:
		so = "it can take no node back"
	case moving:
		so = "only nodes that are moving can be handed over"
	}
	text += ", so " + so
	if len(s.NVIDIA) > 0 {
		text += ": " + s.NVIDIA[0].start() + " starts it again"
	}
	return []string{text}
}

// start returns the command that starts an operator.
func (o Operator) start() string {
	return fmt.Sprintf("kubectl -n %s scale deployment/%s --replicas=1", o.Namespace, o.Name)
}

// describe returns the command that shows why an operator is not ready.
func (o Operator) describe() string {
	return fmt.Sprintf("kubectl -n %s describe deployment/%s", o.Namespace, o.Name)
}

// withoutNVIDIA lists why no node that is moving can be handed over while NVIDIA's operator does
// not run. Then gpuready's operator sets the labels that place NVIDIA's DaemonSets, too.
func (s *Snapshot) withoutNVIDIA() []string {
	all := s.installationRefusals()
	if names := s.operandNames(); len(names) > 0 {
		all = append(all, fmt.Sprintf("NVIDIA's operator does not run, and gpuready's would place the DaemonSets that it left beside its own. Start NVIDIA's again, or delete them: kubectl -n %s delete daemonset %s", s.Operands.NVIDIA[0].Namespace, strings.Join(names, " ")))
	}
	return all
}

// operandNames returns the names of NVIDIA's DaemonSets.
func (s *Snapshot) operandNames() []string {
	names := make([]string, 0, len(s.Operands.NVIDIA))
	for _, set := range s.Operands.NVIDIA {
		names = append(names, set.Name)
	}
	slices.Sort(names)
	return names
}

// installationRefusals lists what is wrong with gpuready's installation and the policies.
func (s *Snapshot) installationRefusals() (all []string) {
	switch {
	case len(s.GPUReady) == 0:
		all = append(all, "gpuready's operator is not installed: install it beside NVIDIA's")
	case !slices.ContainsFunc(s.GPUReady, func(o Operator) bool { return o.Ready }):
		all = append(all, "gpuready's operator has no ready pod: see "+s.GPUReady[0].describe())
	}
	for _, o := range s.GPUReady {
		if slices.ContainsFunc(s.NVIDIA, func(n Operator) bool { return n.Namespace == o.Namespace }) {
			all = append(all, "both operators are in namespace "+o.Namespace+", where their operands have the same names: install gpuready in another one")
		}
	}
	if s.InForce != nil {
		for _, e := range s.InForce.Spec.Toolkit.Env {
			if strings.HasPrefix(e.Value, containerRuntime) {
				all = append(all, clean(fmt.Sprintf("ClusterPolicy %s: toolkit.env %s is %s, a path in the container of NVIDIA's toolkit, which gpuready's refuses: use the host's path if NVIDIA's toolkit takes it, or remove the variable", s.InForce.Name, e.Name, e.Value)))
			}
		}
	}
	if len(s.Policies) == 0 {
		all = append(all, "there is no ClusterPolicy, so no operator deploys anything")
	}
	for _, p := range s.Policies {
		for _, why := range p.Refused {
			all = append(all, "ClusterPolicy "+p.Name+": "+why)
		}
	}
	return all
}

// next returns the commands of the next step.
func (s *Snapshot) next(p Plan) []string {
	if i := slices.IndexFunc(p.Nodes, func(n Node) bool { return n.ServedBy == Between && n.Next != "" }); i >= 0 {
		return []string{p.Nodes[i].Next}
	}
	if !runs(s.NVIDIA) {
		return nil
	}
	if len(s.GPUReady) == 0 {
		return []string{Installation()}
	}
	if len(p.Refused) > 0 {
		return nil
	}
	var first string
	ready := 0
	for _, n := range p.Nodes {
		switch {
		case n.ServedBy == NVIDIA && n.Next != "" && first == "":
			first = n.Next
		case n.ServedBy == GPUReady && n.Waits != "":
			return []string{n.Next}
		case n.ServedBy == GPUReady:
			ready++
		}
	}
	switch {
	case first != "" && ready > 0:
		return []string{first, "kubectl gpu migrate node --all"}
	case first != "":
		return []string{first}
	case ready > 0 && ready == len(p.Nodes):
		return s.finish()
	}
	return nil
}

// finish returns the commands that take NVIDIA's operator out of the cluster when all nodes are
// handed over. gpuready's operator pauses meanwhile: without NVIDIA's operator it would set the
// labels that place NVIDIA's DaemonSets, too, and so these go first. The policy stays, without the
// fields that gpuready's definition does not have.
func (s *Snapshot) finish() []string {
	theirs, ours := s.NVIDIA[0], s.GPUReady[0]
	names := s.operandNames()
	commands := []string{
		fmt.Sprintf("kubectl -n %s scale deployment/%s --replicas=0", ours.Namespace, ours.Name),
		fmt.Sprintf("kubectl -n %s scale deployment/%s --replicas=0", theirs.Namespace, theirs.Name),
		fmt.Sprintf("kubectl -n %s wait --for=delete pod -l app=%s --timeout=2m", theirs.Namespace, theirs.Name),
	}
	if len(names) > 0 {
		commands = append(commands, fmt.Sprintf("kubectl -n %s delete daemonset %s", theirs.Namespace, strings.Join(names, " ")))
	}
	if s.Definition == "nvidia" { // it has no fields for what gpuready reports in the status
		commands = append(commands,
			fmt.Sprintf("kubectl label crd %s.%s %s=%s --overwrite", v1.Resource, v1.Group, label.PartOf, label.Product),
			"gpu-operator crds --kubeconfig ${KUBECONFIG:-$HOME/.kube/config}")
	}
	return append(commands, // the labels go when the operator has placed its operands by others
		fmt.Sprintf("kubectl -n %s scale deployment/%s --replicas=1", ours.Namespace, ours.Name),
		fmt.Sprintf("kubectl wait clusterpolicy/%s --for=jsonpath={.status.namespace}=%s --timeout=5m", s.InForce.Name, ours.Namespace),
		fmt.Sprintf("kubectl label nodes -l %s=%s %s- %s-", label.HandOver, label.Product, label.HandOver, label.Operands))
}

// CountRefusals returns the number of reasons that are in the way, of the cluster and of nodes.
func (p Plan) CountRefusals() (refused int) {
	refused = len(p.Refused)
	for _, n := range p.Nodes {
		refused += len(n.Refused)
	}
	return refused
}
