// Package summary shows the state of all ClusterPolicies.
package summary

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/kubectl/output"
)

// Policy is a ClusterPolicy with its status.
type Policy struct {
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	// Current reports whether the status is that of the policy's latest generation.
	Current bool                   `json:"current"`
	Status  v1.ClusterPolicyStatus `json:"status"`
}

// Summary holds all policies at one moment.
type Summary struct {
	Time     time.Time `json:"time"`
	Policies []Policy  `json:"policies"` // oldest first: the first is in force
}

// Of returns the Summary of policies.
func Of(policies []v1.ClusterPolicy, now time.Time) Summary {
	s := Summary{Time: now.UTC(), Policies: []Policy{}}
	for _, p := range policies {
		s.Policies = append(s.Policies, Policy{p.Name, p.CreationTimestamp.UTC(), p.Status.ObservedGeneration == p.Generation, p.Status})
	}
	slices.SortFunc(s.Policies, func(a, b Policy) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return s
}

var stateColors = map[v1.State]string{v1.Ready: output.Green, v1.NotReady: output.Red, v1.Ignored: output.Dim, v1.Disabled: output.Yellow}

// Text writes the summary for people.
func (s Summary) Text(w io.Writer, look output.Style) error {
	p := &output.Pen{Style: look}
	if len(s.Policies) == 0 {
		p.Line("", 0, "There is no ClusterPolicy: no node is served. Apply one; docs/operator.md has examples.")
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

func (policy Policy) draw(p *output.Pen, now time.Time) {
	st := policy.Status
	title := "ClusterPolicy " + policy.Name + ": "
	if st.State == "" {
		p.Line(output.Yellow, 0, title+"has no status yet; see that the operator runs")
		return
	}
	title += string(st.State)
	if n := st.Nodes; n != nil {
		title += fmt.Sprintf(", %d of %d GPU nodes ready", n.Ready, n.Total)
	}
	p.Line(stateColors[st.State], 0, title)
	if !policy.Current {
		p.Line(output.Yellow, 2, "! the policy has changed, and this status is of an earlier version")
	}
	conditions(p, st.Conditions, now)
	pools(p, st.Pools)
	prebuilt(p, st.Prebuilt)
	upgrade(p, st.Upgrade)
	notReady(p, st, now)
}

func conditions(p *output.Pen, all []metav1.Condition, now time.Time) {
	var rows []output.Row
	for _, c := range all {
		good := metav1.ConditionFalse
		if c.Type == v1.ConditionReady {
			good = metav1.ConditionTrue
		}
		r := output.Row{Cells: []output.Cell{{Text: c.Type}, {Text: string(c.Status), Color: output.Yellow}, {Text: c.Reason}, {Text: output.Since(c.LastTransitionTime.Time, now)}}, Below: c.Message}
		if c.Status == good {
			r.Cells[1].Color, r.Below = output.Green, ""
		} else if c.Type == v1.ConditionDegraded || c.Type == v1.ConditionReady {
			r.Cells[1].Color = output.Red
		}
		rows = append(rows, r)
	}
	if len(rows) > 0 {
		p.WriteString("\n")
	}
	p.Table([]string{"CONDITION", "STATUS", "REASON", "FOR"}, rows)
}

func pools(p *output.Pen, all []v1.PoolStatus) {
	if len(all) == 0 {
		return
	}
	p.WriteString("\n")
	var rows []output.Row
	for _, pool := range all {
		driver := pool.Variant
		if driver == "" {
			driver = "the host's"
		}
		color := output.Green
		if pool.Ready < pool.Nodes {
			color = output.Yellow
		}
		r := output.Row{Cells: []output.Cell{{Text: pool.Name}, {Text: fmt.Sprintf("%d/%d", pool.Ready, pool.Nodes), Color: color}, {Text: driver}, {Text: pool.Image}}}
		if pool.Reason != "" {
			r.Below, r.Color = pool.Reason+": "+pool.Message, output.Yellow
		}
		rows = append(rows, r)
	}
	p.Table([]string{"POOL", "READY", "DRIVER", "IMAGE"}, rows)
}

func prebuilt(p *output.Pen, all []v1.PrebuiltStatus) {
	if len(all) == 0 {
		return
	}
	p.WriteString("\n")
	var rows []output.Row
	for _, b := range all {
		color := map[v1.PrebuiltState]string{v1.PrebuiltPresent: output.Green, v1.PrebuiltBuilding: output.Yellow}[b.State]
		if color == "" {
			color = output.Red
		}
		rows = append(rows, output.Row{Cells: []output.Cell{{Text: b.Kernel}, {Text: b.OSTag}, {Text: b.Version + " " + b.Kind}, {Text: string(b.State), Color: color}, {Text: b.Image}}, Below: b.Message, Color: color})
	}
	p.Table([]string{"KERNEL TO COME", "OS", "MODULES", "STATE", "IMAGE"}, rows)
}

func upgrade(p *output.Pen, u *v1.UpgradeStatus) {
	if u == nil || u.InProgress+u.Pending+u.Failed == 0 {
		return
	}
	p.WriteString("\n")
	p.Line("", 0, fmt.Sprintf("Driver upgrade: %d of %d nodes done, %d on their way, %d to come, %d failed", u.Done, u.Total, u.InProgress, u.Pending, u.Failed))
	for _, w := range u.Waiting {
		p.Line(output.Yellow, 2, w.Node+": "+w.Message)
	}
}

func notReady(p *output.Pen, st v1.ClusterPolicyStatus, now time.Time) {
	if len(st.NotReady) == 0 {
		return
	}
	p.WriteString("\n")
	var rows []output.Row
	for _, n := range st.NotReady {
		rows = append(rows, output.Row{Cells: []output.Cell{{Text: n.Node}, {Text: n.State}, {Text: n.Reason, Color: output.Yellow}, {Text: output.Since(n.Since.Time, now)}}, Below: n.Message})
	}
	p.Table([]string{"NODE", "STATE", "REASON", "FOR"}, rows)
	if n := st.Nodes; n != nil && n.Total-n.Ready > len(st.NotReady) {
		more := n.Total - n.Ready - len(st.NotReady)
		p.Line(output.Dim, 0, fmt.Sprintf("and %d more; kubectl get nodes -l nvidia.com/gpu.present=true", more))
	}
	p.WriteString("\n")
	p.Line(output.Dim, 0, "For details of a node: kubectl gpu explain NODE")
}
