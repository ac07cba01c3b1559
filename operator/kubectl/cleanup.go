package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/operator/kubectl/cluster"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/leftover"
)

const cleanupUsage = `List what gpuready has left on the Nodes of a cluster after it was uninstalled, and remove
it with --yes: the conditions GPUReady and GPUHealthy, the startup taint, labels and
annotations that operator and validator wrote, and the cordon of an unfinished upgrade.
Without names of Nodes it lists all Nodes.

Labels and conditions that others set are kept and listed, and so are the labels that place
pods of NVIDIA's operator, where that runs. A Node on which pods of gpuready still run is
refused. All Nodes are refused while gpuready's operator runs, because it would write
everything again.

If the operator is not removed yet, use gpu-operator cleanup, which also removes its objects.
deployments/static/uninstall.yaml removes the files on the nodes' disks.

Examples:
  kubectl gpu cleanup
  kubectl gpu cleanup gpu-1 gpu-2 --yes
  kubectl gpu cleanup -o json | jq -r '.nodes[].name'
`

const cleanupExits = `
Exit codes:
  0  nothing is left, or all can be removed; with --yes: it is removed
  1  a Node is refused or cannot be written, or the cluster cannot be read
  2  bad usage
`

func cleanUp(ctx context.Context, args []string, stdout, _ io.Writer) error {
	c := newCommandWithExits("cleanup", cleanupUsage, cleanupExits, stdout)
	c.formatFlag()
	yes := c.flags.Bool("yes", false, "remove what is listed")
	taints := c.flags.StringSlice("startup-taint", readiness.StartupTaints(), "keys of startup taints, besides those of ClusterPolicies")
	if err := c.parseNames(args); err != nil {
		return err
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.Close()
	found, err := findLeftovers(ctx, client, c.flags.Args(), *taints)
	if err != nil {
		return err
	}
	if *yes {
		found.remove(ctx, client)
	}
	if err := c.write(stdout, found, found.text); err != nil {
		return err
	}
	if n := found.countObstacles(); n > 0 {
		return program.WithExitCode(program.Failed, fmt.Errorf("not cleaned up: %d of %d nodes, see above", n, len(found.Nodes)))
	}
	return nil
}

// leftovers lists what gpuready has left in a cluster.
type leftovers struct {
	Operator string         `json:"operator,omitempty"` // namespace/name of a Deployment of gpuready's operator that runs: all nodes are refused
	Nodes    []leftoverNode `json:"nodes"`              // on which something is left, by name
	Notes    []string       `json:"notes,omitempty"`    // what else is there, and stays
	Removed  bool           `json:"removed"`            // --yes

	taints []string
	nvidia string // namespace/name of the Deployment of NVIDIA's operator that runs; "": none
}

// leftoverNode is a Node on which something is left.
type leftoverNode struct {
	leftover.Node
	Pods    []string `json:"pods,omitempty"`  // gpuready's that run there: the node is refused
	Removed bool     `json:"removed"`         // all that is listed is removed
	Error   string   `json:"error,omitempty"` // why not
}

// findLeftovers reads what is left on the Nodes of these names, or on all.
func findLeftovers(ctx context.Context, c *cluster.Client, names, taints []string) (*leftovers, error) {
	all, err := c.Nodes(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("read Nodes: %w", err)
	}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(n corev1.Node) bool { return n.Name == name }) {
			return nil, fmt.Errorf("there is no Node %s; see kubectl get nodes", name)
		}
	}
	pods, err := c.ProductPods(ctx)
	if err != nil {
		return nil, fmt.Errorf("read gpuready's pods, of all namespaces: %w", err)
	}
	found := &leftovers{Nodes: []leftoverNode{}, taints: taints}
	if found.Operator, found.nvidia, err = runningOperators(ctx, c); err != nil {
		return nil, fmt.Errorf("read Deployments: %w", err)
	}
	found.readObjects(ctx, c)
	for i := range all {
		n := leftoverNode{Node: found.find(&all[i])}
		if n.Empty() || len(names) > 0 && !slices.Contains(names, n.Name) {
			continue
		}
		for j := range pods {
			if p := &pods[j]; p.Spec.NodeName == n.Name && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
				n.Pods = append(n.Pods, p.Namespace+"/"+p.Name)
			}
		}
		slices.Sort(n.Pods)
		found.Nodes = append(found.Nodes, n)
	}
	slices.SortFunc(found.Nodes, func(a, b leftoverNode) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}

// find returns what is left on a Node.
func (l *leftovers) find(node *corev1.Node) leftover.Node {
	n := leftover.Find(node, l.taints)
	if l.nvidia != "" {
		n = n.KeepOperands("NVIDIA's operator runs, Deployment " + l.nvidia + ", and its pods need it")
	}
	return n
}

// runningOperators returns the Deployments of gpuready's operator and of NVIDIA's that are not scaled
// to zero, or "".
func runningOperators(ctx context.Context, c *cluster.Client) (ours, nvidia string, err error) {
	for _, name := range []string{label.Deployment, label.NVIDIADeployment} {
		all, err := c.DeploymentsNamed(ctx, name)
		if err != nil {
			return "", "", err
		}
		for i := range all {
			d := &all[i]
			switch running := d.Spec.Replicas == nil || *d.Spec.Replicas > 0 || d.Status.Replicas > 0; {
			case !running:
			case d.Labels[label.PartOf] == label.Product:
				ours = cmp.Or(ours, d.Namespace+"/"+d.Name)
			case name == label.NVIDIADeployment:
				nvidia = cmp.Or(nvidia, d.Namespace+"/"+d.Name)
			}
		}
	}
	return ours, nvidia, nil
}

// readObjects notes the objects that stay, and adds the policies' startup taints. What cannot be
// read is left out.
func (l *leftovers) readObjects(ctx context.Context, c *cluster.Client) {
	if policies, err := c.Policies(ctx); err == nil {
		for i := range policies {
			p := &policies[i]
			l.Notes = append(l.Notes, "ClusterPolicy "+p.Name+" stays: kubectl delete clusterpolicy "+p.Name)
			if key := p.Spec.Node.StartupTaint.Key; key != "" && !slices.Contains(l.taints, key) {
				l.taints = append(slices.Clone(l.taints), key)
			}
		}
	}
	if sets, err := c.AllDaemonSets(ctx); err == nil {
		for i := range sets {
			if s := &sets[i]; s.Labels[label.PartOf] == label.Product {
				l.Notes = append(l.Notes, fmt.Sprintf("DaemonSet %s/%s stays, and its pods may come back: kubectl -n %s delete daemonset %s", s.Namespace, s.Name, s.Namespace, s.Name))
			}
		}
	}
}

// refusal returns why a node is not cleaned up, or "".
func (l *leftovers) refusal(n *leftoverNode) string {
	switch {
	case l.Operator != "":
		return "gpuready's operator runs, Deployment " + l.Operator + ", and would write everything again: uninstall it first"
	case len(n.Pods) > 0:
		return "pods of gpuready still run there: " + strings.Join(n.Pods, ", ")
	}
	return ""
}

// remove removes what is left on each node that is not refused.
func (l *leftovers) remove(ctx context.Context, c *cluster.Client) {
	l.Removed = true
	for i := range l.Nodes {
		n := &l.Nodes[i]
		if l.refusal(n) != "" {
			continue
		}
		if err := l.removeFrom(ctx, c, n.Node); err != nil {
			n.Error = record.Clean(fmt.Sprintf("the Node cannot be written: %v", err), 512)
			continue
		}
		n.Removed = true
	}
}

// removeFrom removes what is left on a node. A Node that others change meanwhile is read again.
func (l *leftovers) removeFrom(ctx context.Context, c *cluster.Client, n leftover.Node) error {
	const tries = 4
	for try := 1; ; try++ {
		err := patchNode(ctx, c, n)
		if try == tries || !apierrors.IsConflict(err) {
			return err
		}
		node, err := c.Node(ctx, n.Name)
		if err != nil {
			return err
		}
		n = l.find(node)
	}
}

func patchNode(ctx context.Context, c *cluster.Client, n leftover.Node) error {
	body, err := n.StatusPatch()
	if err != nil {
		return err
	}
	if body != nil {
		node, err := c.PatchNode(ctx, n.Name, "status", body)
		if err != nil {
			return err
		}
		n = n.At(node.ResourceVersion)
	}
	if body, err = n.Patch(); body == nil || err != nil {
		return err
	}
	_, err = c.PatchNode(ctx, n.Name, "", body)
	return err
}

// countObstacles counts the nodes that are refused or could not be written.
func (l *leftovers) countObstacles() (n int) {
	for i := range l.Nodes {
		if l.refusal(&l.Nodes[i]) != "" || l.Removed && !l.Nodes[i].Removed {
			n++
		}
	}
	return n
}

func (l *leftovers) text(w io.Writer, s style) error {
	p := pen{style: s}
	for i := range l.Nodes {
		p.leftoverNode(&l.Nodes[i], l.refusal(&l.Nodes[i]))
	}
	for _, note := range l.Notes {
		p.line("", 0, note)
	}
	switch free := len(l.Nodes) - l.countObstacles(); {
	case len(l.Nodes) == 0:
		p.line("", 0, "gpuready has left nothing on the Nodes")
	case l.Removed:
		p.line("", 0, fmt.Sprintf("cleaned up %d of %d nodes", free, len(l.Nodes)))
	case free > 0:
		p.line("", 0, fmt.Sprintf("nothing was changed; kubectl gpu cleanup --yes cleans up %d of %d nodes", free, len(l.Nodes)))
	}
	_, err := io.WriteString(w, p.String())
	return err
}

// leftoverNode writes a node: what is removed, and what stays.
func (p *pen) leftoverNode(n *leftoverNode, refusal string) {
	head := n.Name
	if n.Removed {
		head += ": removed"
	}
	p.line("", 0, head)
	for _, problem := range []string{refusal, n.Error} {
		if problem != "" {
			p.line(red, 2, problem)
		}
	}
	list := func(what string, names []string) {
		if len(names) > 0 {
			p.line("", 2, what+": "+strings.Join(names, ", "))
		}
	}
	list("conditions", n.Conditions)
	list("taints", n.Taints)
	list("labels", n.Labels)
	for _, key := range slices.Sorted(maps.Keys(n.Restored)) {
		p.line("", 2, "label back to "+key+"="+n.Restored[key])
	}
	list("annotations", n.Annotations)
	if n.Uncordon {
		p.line("", 2, "cordon of an upgrade")
	}
	kept := map[string][]string{} // many have the same cause
	for _, k := range n.Kept {
		kept[k.Why] = append(kept[k.Why], k.What)
	}
	for _, why := range slices.Sorted(maps.Keys(kept)) {
		p.line(dim, 2, "kept, "+why+": "+strings.Join(kept[why], ", "))
	}
}
