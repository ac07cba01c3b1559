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
)

// Tally counts GPU nodes by progress. It is updated incrementally, so that a node's change
// costs the same among thousands of nodes as among a few.
type Tally struct {
	nodes    map[string]*Node
	groups   map[Place]*group
	notReady *btree.BTreeG[*Node] // in the order in which they are reported
	troubled map[string]*Node     // nodes with failing pods that they do not wait for
	upgrades map[string]int       // by the state of the driver's upgrade
}

// Place groups nodes by pool, by the first state that they have not reached ("" if they have
// reached all), and by status.
type Place struct {
	Pool   fleet.Pool
	State  progress.State
	Status progress.Status
}

// group holds the nodes at one place.
type group struct {
	count int
	since *btree.BTreeG[*Node] // waiting nodes, the longest waiting first
}

// btreeDegree is the degree of the trees of nodes.
const btreeDegree = 16

// NewTally returns an empty Tally.
func NewTally() *Tally {
	return &Tally{
		nodes: map[string]*Node{}, groups: map[Place]*group{}, troubled: map[string]*Node{}, upgrades: map[string]int{},
		notReady: btree.NewG(btreeDegree, func(a, b *Node) bool {
			return cmp.Or(ranks[a.Status]-ranks[b.Status], strings.Compare(a.Name, b.Name)) < 0
		}),
	}
}

// ranks is the order in which nodes that are not ready are reported.
var ranks = map[progress.Status]int{progress.Failed: 0, progress.Unknown: 1, progress.Waiting: 2}

// Add counts a node and returns its previous state, or nil if it was not counted.
func (t *Tally) Add(n Node) (before *Node) {
	before = t.Remove(n.Name)
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
	if len(n.Others) > 0 {
		t.troubled[n.Name] = &n
	}
	if s := n.Labels[label.UpgradeState]; s != "" {
		t.upgrades[s]++
	}
	return before
}

// Remove removes a node and returns it, or nil if it was not counted.
func (t *Tally) Remove(name string) *Node {
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

// Nodes returns all counted nodes.
func (t *Tally) Nodes() iter.Seq[*Node] {
	return func(yield func(*Node) bool) {
		for _, n := range t.nodes {
			if !yield(n) {
				return
			}
		}
	}
}

// Group is the number of nodes at one place, and since when the longest waiting of them waits;
// zero if none waits.
type Group struct {
	Place
	Nodes int
	Since time.Time
}

// Groups returns the places that have nodes.
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

// Upgrades returns the number of nodes in each state of the driver's upgrade.
func (t *Tally) Upgrades() map[string]int { return t.upgrades }

func (n *Node) place() Place { return Place{n.Pool, n.State, n.Status} }
