package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/label"
)

// policySummary is a ClusterPolicy with its status.
type policySummary struct {
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	// Current reports whether the status is that of the policy's latest generation.
	Current bool                   `json:"current"`
	Status  v1.ClusterPolicyStatus `json:"status"`
}

// summary holds all policies at one moment.
type summary struct {
	Time     time.Time       `json:"time"`
	Policies []policySummary `json:"policies"` // oldest first: the first is in force
	// Nodes are the GPU nodes as their agents report them, if there is no policy.
	Nodes []nodeSummary `json:"nodes,omitempty"`
}

// nodeSummary is a node as its condition GPUReady describes it.
type nodeSummary struct {
	Name    string                 `json:"name"`
	Ready   corev1.ConditionStatus `json:"ready"`
	Reason  string                 `json:"reason"`
	Message string                 `json:"message"`
	Since   time.Time              `json:"since,omitzero"`
}

// summarizeNodes returns the nodes on which agents report.
func summarizeNodes(nodes []corev1.Node) (all []nodeSummary) {
	for i := range nodes {
		for _, c := range nodes[i].Status.Conditions {
			if c.Type == "GPUReady" {
				all = append(all, nodeSummary{nodes[i].Name, c.Status, record.Clean(c.Reason, 64), record.Clean(c.Message, 1024), c.LastTransitionTime.UTC()})
			}
		}
	}
	return all
}

// summarize returns the summary of policies and, if there are none, of nodes.
func summarize(policies []v1.ClusterPolicy, nodes []corev1.Node, now time.Time) summary {
	s := summary{Time: now.UTC(), Policies: []policySummary{}, Nodes: summarizeNodes(nodes)}
	for _, p := range policies {
		s.Policies = append(s.Policies, policySummary{p.Name, p.CreationTimestamp.UTC(), p.Status.ObservedGeneration == p.Generation, p.Status})
	}
	slices.SortFunc(s.Policies, func(a, b policySummary) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return s
}

// names returns the policies, and the nodes that are not ready.
func (s summary) names() (all []string) {
	for _, policy := range s.Policies {
		all = append(all, "clusterpolicy."+v1.Group+"/"+policy.Name)
		for _, n := range policy.Status.NotReady {
			all = append(all, "node/"+n.Node)
		}
	}
	for _, n := range s.Nodes {
		if n.Ready != corev1.ConditionTrue {
			all = append(all, "node/"+n.Name)
		}
	}
	return all
}

var stateColors = map[v1.State]string{v1.Ready: green, v1.NotReady: red, v1.Ignored: dim, v1.Disabled: yellow}

// text writes the summary for people.
func (s summary) text(w io.Writer, look style) error {
	p := &pen{style: look}
	switch {
	case len(s.Nodes) > 0:
		s.drawNodes(p)
	case len(s.Policies) == 0:
		p.line("", 0, "There is no ClusterPolicy: no node is served. Apply one; docs/operator.md has examples.")
	}
	for i, policy := range s.Policies {
		if i > 0 {
			p.WriteString("\n")
		}
		policy.draw(p, s.Time)
	}
	_, err := io.WriteString(w, p.String())
	return err
}

// drawNodes writes the nodes of a cluster without a policy.
func (s summary) drawNodes(p *pen) {
	var rows []row
	ready := 0
	for _, n := range s.Nodes {
		r := row{Cells: []cell{{Text: n.Name}, {Text: string(n.Ready), Color: yellow}, {Text: n.Reason}, {Text: formatSince(n.Since, s.Time)}}, Below: n.Message}
		switch n.Ready {
		case corev1.ConditionTrue:
			ready++
			r.Cells[1].Color, r.Below = green, ""
		case corev1.ConditionFalse:
			r.Cells[1].Color = red
		}
		rows = append(rows, r)
	}
	p.line("", 0, fmt.Sprintf("No ClusterPolicy: the agents run without an operator, %d of %d GPU nodes ready", ready, len(s.Nodes)))
	p.WriteString("\n")
	p.table([]string{"NODE", "GPUREADY", "REASON", "FOR"}, rows)
}

func (policy policySummary) draw(p *pen, now time.Time) {
	st := policy.Status
	title := "ClusterPolicy " + policy.Name + ": "
	if st.State == "" {
		p.line(yellow, 0, title+"has no status yet; see that the operator runs")
		return
	}
	title += string(st.State)
	if n := st.Nodes; n != nil {
		title += fmt.Sprintf(", %d of %d GPU nodes ready", n.Ready, n.Total)
	}
	p.line(stateColors[st.State], 0, title)
	switch {
	case st.Foreign():
		p.line(yellow, 2, "! NVIDIA's operator serves this policy and has written this status; gpuready serves only the nodes that are handed over to it (docs/operator.md)")
	case !policy.Current:
		p.line(yellow, 2, "! the policy has changed, and this status is of an earlier version")
	}
	drawConditions(p, st.Conditions, now)
	drawUnserved(p, st.Unserved)
	drawPools(p, st.Pools)
	drawPrebuilt(p, st.Prebuilt)
	drawUpgrade(p, st.Upgrade)
	drawServe(p, st.Serve)
	drawNotReady(p, st, now)
}

func drawConditions(p *pen, all []metav1.Condition, now time.Time) {
	var rows []row
	for _, c := range all {
		good := metav1.ConditionFalse
		if c.Type == v1.ConditionReady {
			good = metav1.ConditionTrue
		}
		r := row{Cells: []cell{{Text: c.Type}, {Text: string(c.Status), Color: yellow}, {Text: c.Reason}, {Text: formatSince(c.LastTransitionTime.Time, now)}}, Below: c.Message}
		if c.Status == good {
			r.Cells[1].Color, r.Below = green, ""
		} else if c.Type == v1.ConditionDegraded || c.Type == v1.ConditionReady {
			r.Cells[1].Color = red
		}
		rows = append(rows, r)
	}
	if len(rows) > 0 {
		p.WriteString("\n")
	}
	p.table([]string{"CONDITION", "STATUS", "REASON", "FOR"}, rows)
}

// drawUnserved writes the fields without effect, each with the reason and what to do.
func drawUnserved(p *pen, lines []string) {
	if len(lines) > 0 {
		p.WriteString("\n")
		p.line("", 0, "Fields without effect:")
	}
	for _, line := range lines {
		p.line(dim, 2, line)
	}
}

func drawPools(p *pen, all []v1.PoolStatus) {
	if len(all) == 0 {
		return
	}
	p.WriteString("\n")
	var rows []row
	for _, pool := range all {
		driver := pool.Variant
		if driver == "" {
			driver = "the host's"
		}
		color := green
		if pool.Ready < pool.Nodes {
			color = yellow
		}
		r := row{Cells: []cell{{Text: pool.Name}, {Text: fmt.Sprintf("%d/%d", pool.Ready, pool.Nodes), Color: color}, {Text: driver}, {Text: pool.Image}}}
		if p.Wide {
			r.Cells = append(r.Cells, cell{Text: pool.DaemonSet}, cell{Text: pool.NVIDIADriver})
		}
		if pool.Reason != "" {
			r.Below, r.Color = pool.Reason+": "+pool.Message, yellow
		}
		rows = append(rows, r)
	}
	head := []string{"POOL", "READY", "DRIVER", "IMAGE"}
	if p.Wide {
		head = append(head, "DAEMONSET", "NVIDIADRIVER")
	}
	p.table(head, rows)
}

func drawPrebuilt(p *pen, all []v1.PrebuiltStatus) {
	if len(all) == 0 {
		return
	}
	p.WriteString("\n")
	var rows []row
	for _, b := range all {
		color := map[v1.PrebuiltState]string{v1.PrebuiltPresent: green, v1.PrebuiltBuilding: yellow}[b.State]
		if color == "" {
			color = red
		}
		rows = append(rows, row{Cells: []cell{{Text: b.Kernel}, {Text: b.OSTag}, {Text: b.Version + " " + b.Kind}, {Text: string(b.State), Color: color}, {Text: b.Image}}, Below: b.Message, Color: color})
	}
	p.table([]string{"KERNEL TO COME", "OS", "MODULES", "STATE", "IMAGE"}, rows)
}

func drawUpgrade(p *pen, u *v1.UpgradeStatus) {
	if u == nil || u.InProgress+u.Pending+u.Failed == 0 {
		return
	}
	p.WriteString("\n")
	p.line("", 0, fmt.Sprintf("Driver upgrade: %d of %d nodes done, %d on their way, %d to come, %d failed", u.Done, u.Total, u.InProgress, u.Pending, u.Failed))
	for _, w := range u.Waiting {
		p.line(yellow, 2, w.Node+": "+w.Message)
	}
}

// drawServe writes how pods get the nodes' GPUs, and which nodes are on the way.
func drawServe(p *pen, s *v1.ServeStatus) {
	if s == nil {
		return
	}
	p.WriteString("\n")
	parts := []string{fmt.Sprintf("GPUs by ResourceClaims (DRA): %d of %d nodes that follow the policy", s.DRA, s.Total)}
	for _, more := range []struct {
		n    int
		text string
	}{{s.InProgress, "on their way"}, {s.Pending, "to come"}, {s.Unsupported, "that cannot"}} {
		if more.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", more.n, more.text))
		}
	}
	text := strings.Join(parts, ", ")
	switch n := s.ByPerson; {
	case n == 1:
		text += "; 1 more follows its own label " + label.Serve
	case n > 1:
		text += fmt.Sprintf("; %d more follow their own label %s", n, label.Serve)
	}
	p.line("", 0, text)
	for _, w := range s.Waiting {
		p.line(yellow, 2, w.Node+": "+w.Message)
	}
}

func drawNotReady(p *pen, st v1.ClusterPolicyStatus, now time.Time) {
	if len(st.NotReady) == 0 {
		return
	}
	p.WriteString("\n")
	var rows []row
	for _, n := range st.NotReady {
		r := row{Cells: []cell{{Text: n.Node}, {Text: n.State}, {Text: n.Reason, Color: yellow}, {Text: formatSince(n.Since.Time, now)}}, Below: n.Message}
		if p.Wide {
			r.Cells = append(r.Cells, cell{Text: n.Pool})
		}
		rows = append(rows, r)
	}
	head := []string{"NODE", "STATE", "REASON", "FOR"}
	if p.Wide {
		head = append(head, "POOL")
	}
	p.table(head, rows)
	if n := st.Nodes; n != nil && n.Total-n.Ready > len(st.NotReady) {
		more := n.Total - n.Ready - len(st.NotReady)
		p.line(dim, 0, fmt.Sprintf("and %d more; kubectl get nodes -l nvidia.com/gpu.present=true", more))
	}
	p.WriteString("\n")
	p.line(dim, 0, "For details of a node: kubectl gpu explain NODE")
}
