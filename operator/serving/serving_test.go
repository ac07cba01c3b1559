package serving

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
)

// newNode returns a node that serves by its device plugin, changed.
func newNode(name string, change ...func(*fleet.Node)) *fleet.Node {
	n := &fleet.Node{Name: name, GPU: true, Ready: true, Kubelet: "v1.37.2", Injection: fleet.NRI, Allocatable: true, Labels: map[string]string{}, Annotations: map[string]string{}}
	for _, f := range change {
		f(n)
	}
	return n
}

// labelled gives a node the operator's label.
func labelled(n *fleet.Node) {
	n.Labels[label.Serve], n.Annotations[label.OwnLabels] = "dra", "present,serve"
}

// person gives a node a label of a person.
func person(serve string) func(*fleet.Node) {
	return func(n *fleet.Node) { n.Labels[label.Serve] = serve }
}

func emptied(n *fleet.Node)  { n.Allocatable = false }
func cordoned(n *fleet.Node) { n.Cordoned = true }
func notReady(n *fleet.Node) { n.Ready = false }

// restarting is a node whose device plugin is being replaced: the kubelet still knows its resources.
func restarting(n *fleet.Node) { n.Allocatable, n.Registered = false, true }

func oldNode(n *fleet.Node) { n.Kubelet = "v1.33.4" }
func inPool(os string) func(*fleet.Node) {
	return func(n *fleet.Node) { n.Pool.OS = os }
}

func TestPlan(t *testing.T) {
	dra := func(n *fleet.Node) { labelled(n); emptied(n) } // serves claims if its devices are published
	for _, c := range []struct {
		name    string
		want    v1.Serve
		max     string
		nodes   []*fleet.Node
		devices map[string]int
		dra     string // nodes that shall have the label
		waiting string
		counts  Counts
	}{
		{"one at a time", v1.ServeDRA, "1", []*fleet.Node{newNode("b"), newNode("a"), newNode("c")}, nil, "a", "a", Counts{Total: 3, DRA: 1, InProgress: 1, Pending: 2}},
		{"a percentage, rounded up", v1.ServeDRA, "34%", []*fleet.Node{newNode("a"), newNode("b"), newNode("c"), newNode("d")}, nil, "a b", "a b", Counts{Total: 4, DRA: 2, InProgress: 2, Pending: 2}},
		{"none may be unavailable", v1.ServeDRA, "0", []*fleet.Node{newNode("a")}, nil, "", "", Counts{Total: 1, Pending: 1}},
		{"the first still withdraws its resources", v1.ServeDRA, "1", []*fleet.Node{newNode("a", labelled), newNode("b")}, nil, "a", "a", Counts{Total: 2, DRA: 1, InProgress: 1, Pending: 1}},
		{"the first has published nothing yet", v1.ServeDRA, "1", []*fleet.Node{newNode("a", dra), newNode("b")}, nil, "a", "a", Counts{Total: 2, DRA: 1, InProgress: 1, Pending: 1}},
		{"the first serves: the next", v1.ServeDRA, "1", []*fleet.Node{newNode("a", dra), newNode("b")}, map[string]int{"a": 8}, "a b", "b", Counts{Total: 2, DRA: 2, InProgress: 1}},
		{"all serve", v1.ServeDRA, "1", []*fleet.Node{newNode("a", dra), newNode("b", dra)}, map[string]int{"a": 8, "b": 1}, "a b", "", Counts{Total: 2, DRA: 2}},
		{"pool by pool", v1.ServeDRA, "2", []*fleet.Node{newNode("a", inPool("ubuntu24.04")), newNode("b", inPool("ubuntu22.04")), newNode("c", inPool("ubuntu22.04"))}, nil, "b c", "b c", Counts{Total: 3, DRA: 2, InProgress: 2, Pending: 1}},
		{"who serves nobody goes first and takes no turn", v1.ServeDRA, "1", []*fleet.Node{newNode("a"), newNode("z", emptied)}, nil, "z", "z", Counts{Total: 2, DRA: 1, InProgress: 1, Pending: 1}},
		{"a cordoned node has a turn already", v1.ServeDRA, "1", []*fleet.Node{newNode("a"), newNode("z", cordoned)}, nil, "z", "z", Counts{Total: 2, DRA: 1, InProgress: 1, Pending: 1}},
		{"one of the cordoned nodes", v1.ServeDRA, "1", []*fleet.Node{newNode("a", cordoned), newNode("b", cordoned)}, nil, "a", "a", Counts{Total: 2, DRA: 1, InProgress: 1, Pending: 1}},
		{"an outage of the network does not change all nodes", v1.ServeDRA, "1", []*fleet.Node{newNode("a", notReady), newNode("b", notReady), newNode("c", notReady)}, nil, "a", "a", Counts{Total: 3, DRA: 1, InProgress: 1, Pending: 2}},
		{"nor does an update of the device plugins", v1.ServeDRA, "1", []*fleet.Node{newNode("a", restarting), newNode("b", restarting)}, nil, "a", "a", Counts{Total: 2, DRA: 1, InProgress: 1, Pending: 1}},
		{"none may be on the way, and one is cordoned", v1.ServeDRA, "0", []*fleet.Node{newNode("a", cordoned)}, nil, "", "", Counts{Total: 1, Pending: 1}},
		{"new nodes take no turn", v1.ServeDRA, "1", []*fleet.Node{newNode("a", emptied), newNode("b", emptied)}, nil, "a b", "a b", Counts{Total: 2, DRA: 2, InProgress: 2}},
		{"a person's labels stay", v1.ServeDRA, "100%", []*fleet.Node{newNode("a", person("plugin")), newNode("b", person("dra"), emptied), newNode("c")}, map[string]int{"b": 1}, "c", "c", Counts{Total: 1, DRA: 1, InProgress: 1, ByPerson: 2}},
		{"a person has changed the operator's label", v1.ServeDRA, "100%", []*fleet.Node{newNode("a", labelled, person("plugin"))}, nil, "", "", Counts{ByPerson: 1}},
		{"an old kubelet", v1.ServeDRA, "100%", []*fleet.Node{newNode("a", oldNode)}, nil, "", "", Counts{Total: 1}},
		{"a runtime without CDI", v1.ServeDRA, "100%", []*fleet.Node{newNode("a", func(n *fleet.Node) { n.Injection = fleet.Handler })}, nil, "", "", Counts{Total: 1}},
		{"a person keeps the DRA driver away", v1.ServeDRA, "100%", []*fleet.Node{newNode("a", func(n *fleet.Node) { n.Labels[label.Deploy+label.DRAOperand] = "false" })}, nil, "", "", Counts{Total: 1}},
		{"back, one at a time", v1.ServePlugin, "1", []*fleet.Node{newNode("a", dra), newNode("b", dra)}, map[string]int{"a": 8, "b": 8}, "b", "a", Counts{Total: 2, DRA: 1, InProgress: 1, Pending: 1}},
		{"back: its devices are still published", v1.ServePlugin, "1", []*fleet.Node{newNode("a"), newNode("b", dra)}, map[string]int{"a": 8, "b": 8}, "b", "a", Counts{Total: 2, DRA: 1, InProgress: 1, Pending: 1}},
		{"back: it is", v1.ServePlugin, "1", []*fleet.Node{newNode("a"), newNode("b", dra)}, map[string]int{"b": 8}, "", "b", Counts{Total: 2, InProgress: 1}},
		{"by default the device plugin", "", "1", []*fleet.Node{newNode("a"), newNode("new", emptied)}, nil, "", "", Counts{Total: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := NewPlan(Input{Nodes: c.nodes, Want: c.want, MaxUnavailable: intstr.Parse(c.max), Devices: c.devices})
			require.Equal(t, c.dra, names(p.DRA), "the label")
			require.Equal(t, c.waiting, names(p.Waiting), "on the way")
			require.Equal(t, c.counts, p.Counts)
		})
	}
}

func TestNothingBeginsWhileTheSlicesAreUnknown(t *testing.T) {
	p := NewPlan(Input{Nodes: []*fleet.Node{newNode("a"), newNode("b", labelled, emptied)}, Want: v1.ServeDRA, MaxUnavailable: intstr.FromInt32(2), Unknown: true})
	require.Equal(t, "b", names(p.DRA), "what has begun stays")
}

func TestANodeThatIsWrittenTakesItsTurn(t *testing.T) {
	in := Input{Nodes: []*fleet.Node{newNode("a"), newNode("b")}, Want: v1.ServeDRA, MaxUnavailable: intstr.FromInt32(1), Writing: map[string]bool{"a": true}}
	require.Empty(t, NewPlan(in).DRA, "a's label may have been written, and b waits")
}

// Whatever the nodes are like, no more become unavailable than the policy allows, and in the end all
// that can serve as it wants.
func TestLimitHoldsAndAllNodesChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := make([]*fleet.Node, rapid.IntRange(1, 12).Draw(t, "nodes"))
		devices := map[string]int{}
		for i := range nodes {
			nodes[i] = newNode(fmt.Sprint("n", i), inPool(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "pool")))
			if rapid.Bool().Draw(t, "dra") {
				labelled(nodes[i])
				emptied(nodes[i])
				devices[nodes[i].Name] = 8
			}
		}
		limit := rapid.IntRange(1, 4).Draw(t, "limit")
		want := rapid.SampledFrom([]v1.Serve{v1.ServePlugin, v1.ServeDRA}).Draw(t, "want")
		for range 400 {
			p := NewPlan(Input{Nodes: nodes, Want: want, MaxUnavailable: intstr.FromInt(limit), Devices: devices})
			require.LessOrEqual(t, p.Counts.InProgress, limit)
			if p.Counts.InProgress+p.Counts.Pending == 0 {
				return
			}
			for i, n := range nodes { // one step of some
				changed := newNode(n.Name, inPool(n.Pool.OS), func(c *fleet.Node) { c.Allocatable = n.Allocatable })
				if p.DRA[n.Name] {
					labelled(changed)
				}
				if rapid.Bool().Draw(t, "kubelet") {
					changed.Allocatable = !p.DRA[n.Name]
				}
				if rapid.Bool().Draw(t, "driver") {
					devices[n.Name] = 0
					if p.DRA[n.Name] {
						devices[n.Name] = 8
					}
				}
				nodes[i] = changed
			}
		}
		p := NewPlan(Input{Nodes: nodes, Want: want, MaxUnavailable: intstr.FromInt(limit), Devices: devices})
		require.Zero(t, p.Counts.Pending)
	})
}

// names returns the keys in order.
func names[T any](m map[string]T) string {
	var all []string
	for name := range m {
		all = append(all, name)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}
