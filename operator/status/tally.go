package status

import (
	"cmp"
	"iter"
	"strings"
	"time"

	"github.com/google/btree"

	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
	"github.com/gpuready/gpuready/operator/road"
)

// Tally counts GPU nodes by how far they are. It is kept while they change, so that a
// node's change costs among thousands what it does among a few.
type Tally struct {
	nodes    map[string]*Node
	groups   map[Place]*group
	notReady *btree.BTreeG[*Node] // those that are not ready, in the order in which they are told of
	troubled map[string]*Node     // those with pods that do not start, beside what they wait for
	upgrades map[string]int       // by the state of the driver's upgrade
}

// Place is where nodes stand: their pool, the first state that they have not reached (""
// if they have reached all), and how they stand there.
type Place struct {
	Pool   fleet.Pool
	State  road.State
	Status progress.Status
}

// group is the nodes at one place.
type group struct {
	count int
	since *btree.BTreeG[*Node] // those that wait for something, from the one that does so longest
}

// btreeDegree is that of trees of nodes.
const btreeDegree = 16

// NewTally returns a Tally of no nodes.
func NewTally() *Tally {
	return &Tally{
		nodes: map[string]*Node{}, groups: map[Place]*group{}, troubled: map[string]*Node{}, upgrades: map[string]int{},
		notReady: btree.NewG(btreeDegree, func(a, b *Node) bool {
			return cmp.Or(ranks[a.Status]-ranks[b.Status], strings.Compare(a.Name, b.Name)) < 0
		}),
	}
}

// ranks are the order in which nodes that are not ready are told of.
var ranks = map[progress.Status]int{progress.Failed: 0, progress.Unknown: 1, progress.Waiting: 2}

// Put counts a node, in place of what it was before; nil: it was not counted.
func (t *Tally) Put(n Node) (before *Node) {
	before = t.Drop(n.Name)
	t.nodes[n.Name] = &n
	g := t.groups[n.place()]
	if g == nil {
		g = &group{since: btree.NewG(btreeDegree, func(a, b *Node) bool {
			return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Name, b.Name)) < 0
		})}
		t.groups[n.place()] = g
	}
	g.count++
	if _, late := ranks[n.Status]; late {
		t.notReady.ReplaceOrInsert(&n)
		if !n.Since.IsZero() {
			g.since.ReplaceOrInsert(&n)
		}
	}
	if len(n.Beside) > 0 {
		t.troubled[n.Name] = &n
	}
	if s := n.Labels[label.UpgradeState]; s != "" {
		t.upgrades[s]++
	}
	return before
}

// Drop counts a node no more, and returns what it was; nil: it was not counted.
func (t *Tally) Drop(name string) *Node {
	n := t.nodes[name]
	if n == nil {
		return nil
	}
	delete(t.nodes, name)
	delete(t.troubled, name)
	t.notReady.Delete(n)
	g := t.groups[n.place()]
	g.since.Delete(n)
	if g.count--; g.count == 0 {
		delete(t.groups, n.place())
	}
	if s := n.Labels[label.UpgradeState]; s != "" {
		if t.upgrades[s]--; t.upgrades[s] == 0 {
			delete(t.upgrades, s)
		}
	}
	return n
}

// Nodes are all that are counted.
func (t *Tally) Nodes() iter.Seq[*Node] {
	return func(yield func(*Node) bool) {
		for _, n := range t.nodes {
			if !yield(n) {
				return
			}
		}
	}
}

// Group is how many nodes stand at one place, and since when the first of those that
// wait for something does; zero: none does.
type Group struct {
	Place
	Nodes int
	Since time.Time
}

// Groups are the places where nodes stand.
func (t *Tally) Groups() (all []Group) {
	for at, g := range t.groups {
		one := Group{Place: at, Nodes: g.count}
		if first, is := g.since.Min(); is {
			one.Since = first.Since
		}
		all = append(all, one)
	}
	return all
}

// Upgrades are how many nodes are in each state of the driver's upgrade.
func (t *Tally) Upgrades() map[string]int { return t.upgrades }

func (n *Node) place() Place { return Place{n.Pool, n.State, n.Status} }
