package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/progress"
)

// counts counts the nodes by progress. Total counts the served nodes.
type counts struct {
	v1.NodesStatus
	unknown int
	rows    []*Node // the first nodes that are not ready
	list    []v1.NodeStatus
	pools   map[fleet.Pool]*v1.PoolStatus
	beside  []string // failing states and their nodes
}

func (t Tally) counts() counts {
	c := counts{pools: map[fleet.Pool]*v1.PoolStatus{}, rows: t.notReady}
	for _, g := range t.Groups {
		c.add(g.Place, g.Nodes)
	}
	for _, n := range c.rows {
		c.list = append(c.list, v1.NodeStatus{
			Node: n.Name, Pool: n.Pool.String(), State: string(n.State), Reason: n.Reason,
			Message: record.Clean(n.Message, maxLine), Since: truncateToSecond(n.Since),
		})
	}
	for _, n := range t.troubled {
		for _, trouble := range n.Others {
			c.beside = append(c.beside, fmt.Sprintf("%s on %s (%s)", trouble.State, n.Name, trouble.Reason))
		}
	}
	return c
}

// add counts the nodes at one place.
func (c *counts) add(at Place, nodes int) {
	if at.Status == progress.Excluded {
		c.Excluded += nodes
		return
	}
	p := c.pools[at.Pool]
	if p == nil {
		p = &v1.PoolStatus{Name: at.Pool.String(), OS: at.Pool.OS, Kernel: at.Pool.Kernel, RHCOS: at.Pool.RHCOS, Arch: at.Pool.Arch, NVIDIADriver: selecting(at.Pool)}
		c.pools[at.Pool] = p
	}
	c.Total += nodes
	p.Nodes += nodes
	switch at.Status {
	case progress.Ready:
		c.Ready += nodes
		p.Ready += nodes
	case progress.Waiting:
		c.Progressing += nodes
	case progress.Failed:
		c.Failed += nodes
	default:
		c.unknown += nodes
	}
}

// selecting names the NVIDIADrivers that select a pool's nodes; "" for none.
func selecting(p fleet.Pool) string {
	if p.Drivers == fleet.NoDriver {
		return ""
	}
	return p.Drivers
}

// truncateToSecond returns t with the precision it is stored with, so that a status that was
// read equals a computed one.
func truncateToSecond(t time.Time) metav1.Time {
	if t.IsZero() {
		return metav1.Time{}
	}
	return metav1.NewTime(t.UTC().Truncate(time.Second))
}

func (c counts) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%d of %d GPU nodes are ready", c.Ready, c.Total)
	for _, part := range []struct {
		n    int
		what string
	}{{c.Failed, "failed"}, {c.unknown, "not known"}, {c.Progressing, "on their way"}, {c.Excluded, "kept away from"}} {
		if part.n > 0 {
			fmt.Fprintf(&text, ", %d %s", part.n, part.what)
		}
	}
	return text.String()
}

// examples names the first nodes with some statuses.
func (c counts) examples(statuses ...progress.Status) string {
	var all []string
	for _, r := range c.rows {
		if slices.Contains(statuses, r.Status) && len(all) < maxNamed {
			all = append(all, fmt.Sprintf("%s: %s: %s: %s", r.Name, r.State, r.Reason, record.Clean(r.Message, maxLine)))
		}
	}
	if len(all) == 0 {
		return ""
	}
	return "; " + strings.Join(all, "; ")
}

// poolStatuses returns the pools of the served nodes, with the driver that each gets.
func poolStatuses(in Input, c counts) (all []v1.PoolStatus) {
	choices := map[fleet.Pool]driver.Choice{}
	for _, choice := range in.Choices {
		choices[choice.Pool] = choice
	}
	for pool, p := range c.pools {
		choice := choices[pool]
		p.Variant, p.DaemonSet, p.Image = string(choice.Variant), choice.Name, choice.Image
		if choice.Problem != nil {
			p.Reason, p.Message = string(choice.Problem.Reason), record.Clean(choice.Problem.Message, maxLine)
		}
		all = append(all, *p)
	}
	slices.SortFunc(all, func(a, b v1.PoolStatus) int { return strings.Compare(a.Name, b.Name) })
	return all[:min(len(all), v1.MaxPools)]
}
