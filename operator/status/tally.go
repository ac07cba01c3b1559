package status

import (
	"cmp"
	"slices"
	"strings"
	"time"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
)

// Tally counts GPU nodes by progress.
type Tally struct {
	Groups   []Group
	Upgrades map[string]int // nodes in each state of the driver's upgrade

	notReady []*Node // the first ones, in the order in which they are reported
	troubled []*Node // nodes with failing pods that they do not wait for
}

// A Place is shared by the nodes of a Group: the pool, the first state that they have
// not reached ("" if they have reached all), and the status.
type Place struct {
	Pool   fleet.Pool
	State  progress.State
	Status progress.Status
}

// Group is the number of nodes at one place, and since when the first of them has not been
// ready (failed, unknown or waiting); zero if all are ready.
type Group struct {
	Place
	Nodes int
	Since time.Time
}

// Count returns the Tally of nodes.
func Count(nodes []Node) Tally {
	t := Tally{Upgrades: map[string]int{}}
	index := map[Place]int{} // in t.Groups
	for i := range nodes {
		n := &nodes[i]
		at := Place{n.Pool, n.State, n.Status}
		g, ok := index[at]
		if !ok {
			g = len(t.Groups)
			index[at] = g
			t.Groups = append(t.Groups, Group{Place: at})
		}
		t.Groups[g].Nodes++
		if _, notReady := ranks[n.Status]; notReady {
			t.addNotReady(n)
			if since := &t.Groups[g].Since; !n.Since.IsZero() && (since.IsZero() || n.Since.Before(*since)) {
				*since = n.Since
			}
		}
		if len(n.Others) > 0 {
			t.troubled = append(t.troubled, n)
		}
		if s := n.Labels[label.UpgradeState]; s != "" {
			t.Upgrades[s]++
		}
	}
	return t
}

// ranks is the order in which nodes that are not ready are reported.
var ranks = map[progress.Status]int{progress.Failed: 0, progress.Unknown: 1, progress.Waiting: 2}

// addNotReady adds a node to the sorted list of the first v1.MaxNotReady nodes, if it is one
// of them.
func (t *Tally) addNotReady(n *Node) {
	order := func(a, b *Node) int { return cmp.Or(ranks[a.Status]-ranks[b.Status], strings.Compare(a.Name, b.Name)) }
	if len(t.notReady) == v1.MaxNotReady && order(n, t.notReady[v1.MaxNotReady-1]) > 0 {
		return
	}
	i, _ := slices.BinarySearchFunc(t.notReady, n, order)
	t.notReady = slices.Insert(t.notReady, i, n)
	t.notReady = t.notReady[:min(len(t.notReady), v1.MaxNotReady)]
}
