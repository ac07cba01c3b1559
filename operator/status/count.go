package status

import (
	"cmp"
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

// count is how many nodes are how far. Total are those that are served.
type count struct {
	v1.NodesStatus
	unknown int
	list    []v1.NodeStatus
	rows    []row // of list, with what they are ordered by
	pools   map[fleet.Pool]*v1.PoolStatus
	beside  []string // states and nodes
}

// row is a node that is not ready.
type row struct {
	rank int
	Node
}

// ranks are the order in which nodes that are not ready are told of.
var ranks = map[progress.Status]int{progress.Failed: 0, progress.Unknown: 1, progress.Waiting: 2}

func (r row) compare(o row) int { return cmp.Or(r.rank-o.rank, strings.Compare(r.Name, o.Name)) }

func tally(nodes []Node) count {
	c := count{pools: map[fleet.Pool]*v1.PoolStatus{}}
	for _, n := range nodes {
		if n.Status == progress.Excluded {
			c.Excluded++
			continue
		}
		c.Total++
		p := c.pools[n.Pool]
		if p == nil {
			p = &v1.PoolStatus{Name: n.Pool.String(), OS: n.Pool.OS, Kernel: n.Pool.Kernel, RHCOS: n.Pool.RHCOS, Arch: n.Pool.Arch}
			c.pools[n.Pool] = p
		}
		p.Nodes++
		for _, t := range n.Beside {
			c.beside = append(c.beside, fmt.Sprintf("%s on %s (%s)", t.State, n.Name, t.Reason))
		}
		switch n.Status {
		case progress.Ready:
			c.Ready++
			p.Ready++
			continue
		case progress.Waiting:
			c.Progressing++
		case progress.Failed:
			c.Failed++
		default:
			c.unknown++
		}
		c.keep(row{ranks[n.Status], n})
	}
	for _, r := range c.rows {
		c.list = append(c.list, v1.NodeStatus{
			Node: r.Name, Pool: r.Pool.String(), State: string(r.State), Reason: r.Reason,
			Message: record.Clean(r.Message, maxLine), Since: second(r.Since),
		})
	}
	return c
}

// keep keeps the first MaxNotReady rows, in order, without sorting them all.
func (c *count) keep(r row) {
	if len(c.rows) == v1.MaxNotReady {
		if r.compare(c.rows[len(c.rows)-1]) >= 0 {
			return
		}
		c.rows = c.rows[:len(c.rows)-1]
	}
	at, _ := slices.BinarySearchFunc(c.rows, r, row.compare)
	c.rows = slices.Insert(c.rows, at, r)
}

// second is t as it is written, so that what was read is equal to what is summed up.
func second(t time.Time) metav1.Time {
	if t.IsZero() {
		return metav1.Time{}
	}
	return metav1.NewTime(t.UTC().Truncate(time.Second))
}

func (c count) String() string {
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

// examples names the first nodes that are so.
func (c count) examples(statuses ...progress.Status) string {
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

// pools are the pools of the nodes that are served, with the driver that each gets.
func pools(in Input, c count) (all []v1.PoolStatus) {
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
