package prefer_test

import (
	"context"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/deviceplugin/prefer"
	"github.com/gpuready/gpuready/dra/inventory"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/golden"
	"github.com/gpuready/gpuready/test/lab/scheduler"
)

// claims chooses GPUs as the Kubernetes scheduler does, by the ResourceSlices of gpu-dra-driver.
type claims struct {
	*scheduler.Scheduler
	place map[string]int // of a device's name, its GPU's place in the snapshot
	names []string       // of the GPUs
}

func newClaims(s gpu.Snapshot) *claims {
	state := nodestate.State{DevicePlugin: &nodestate.DevicePluginInfo{Serve: nodestate.ServeDRA}}
	// GPUs below one host bridge have the same PCIe root. How NVLinked ones are connected otherwise, a
	// snapshot does not have.
	at, roots := places(s), map[gpu.PCIAddress]string{}
	for i, d := range s.Devices {
		roots[d.PCI] = fmt.Sprintf("pci%04x:00", i)
	}
	for _, l := range s.Links {
		if l.Kind >= gpu.LinkHost && l.Kind < gpu.LinkNVLink {
			roots[s.Devices[at[string(l.B)]].PCI] = roots[s.Devices[at[string(l.A)]].PCI]
		}
	}
	for _, d := range prefer.GroupByNVLink(s).Devices {
		state.DevicePlugin.Inventory = append(state.DevicePlugin.Inventory, nodestate.GPU{UUID: d.UUID, Index: d.Index, Minor: d.Minor, PCI: d.PCI,
			NUMANode: &d.NUMANode, NVLinkDomain: d.NVLink.Domain, NVLinkNearest: d.NVLink.Nearest, Condition: nodestate.Condition{Health: nodestate.Healthy}})
	}
	inv := inventory.New(state, inventory.Problem{}, func(a gpu.PCIAddress) string { return roots[a] })
	all := &claims{place: map[string]int{}, names: make([]string, len(s.Devices)), Scheduler: scheduler.New([]*resourceapi.DeviceClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "gpu.nvidia.com"}}}, scheduler.Slices(inventory.Driver, inv.Slices())...)}
	for _, d := range inv.Devices {
		all.place[d.Name], all.names[at[string(d.UUID)]] = at[string(d.UUID)], d.Name
	}
	return all
}

// nearClaim returns a claim for GPUs that match by one of the lists of attributes, the first that can be had.
// Each alternative of a prioritized list may have its own constraints.
func nearClaim(count int, alternatives ...[]resourceapi.FullyQualifiedName) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "near"}}
	r := resourceapi.DeviceRequest{Name: "gpus"}
	for i, attributes := range append(alternatives, nil) {
		name := fmt.Sprintf("choice-%d", i)
		r.FirstAvailable = append(r.FirstAvailable, resourceapi.DeviceSubRequest{Name: name, DeviceClassName: "gpu.nvidia.com", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(count)})
		for _, attribute := range attributes {
			c.Spec.Devices.Constraints = append(c.Spec.Devices.Constraints, resourceapi.DeviceConstraint{Requests: []string{"gpus/" + name}, MatchAttribute: &attribute})
		}
	}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{r}
	return c
}

// choose returns the GPUs that a claim gets of the free ones; nil: it has to wait.
func (s *claims) choose(c *resourceapi.ResourceClaim, free []int) []int {
	s.Clear()
	for i, name := range s.names {
		if !slices.Contains(free, i) {
			s.Occupy(inventory.Driver, name)
		}
	}
	result, err := s.Find(context.Background(), c)
	if err != nil {
		panic(err)
	}
	if result == nil {
		return nil
	}
	var chosen []int
	for _, r := range result.Devices.Results {
		chosen = append(chosen, s.place[r.Device])
	}
	return chosen
}

// nearFirst lists the alternatives of deployments/static/examples/claim-nvlink.yaml.
var nearFirst = [][]resourceapi.FullyQualifiedName{
	{"gpu.nvidia.com/nvlinkNearest", numaNode}, {"gpu.nvidia.com/nvlinkNearest"}, {"gpu.nvidia.com/nvlinkDomain", numaNode}, {"gpu.nvidia.com/nvlinkDomain"},
	{"resource.kubernetes.io/pcieRoot"}, {numaNode},
}

const numaNode = "resource.kubernetes.io/numaNode"

// The scheduler takes the first devices that satisfy a claim. Of all sets of free GPUs and all sizes, the
// golden file has how often that is as near as the plugin's exact search. docs/dra.md has the same table, and
// names the cases where it is not.
func TestTheSchedulerChoosesNearGPUs(t *testing.T) {
	var report strings.Builder
	fmt.Fprintf(&report, "%-16s %8s %18s %18s %8s\n", "machine", "requests", "without constraint", "claim-nvlink.yaml", "trace")
	for _, m := range machines(8) {
		s, c, topology := newClaims(m.node), chooser(m.node), prefer.NewTopology(m.node)
		score := func(chosen []int) int { return topology.Score(uuidsOf(gpus(chosen...))) }
		asked, plain, near := 0, 0, 0
		for mask := range uint16(1 << len(m.node.Devices)) {
			var free []int
			for i := range m.node.Devices {
				if mask>>i&1 == 1 {
					free = append(free, i)
				}
			}
			for size := 2; size < bits.OnesCount16(mask); size++ { // with all of them there is no choice
				got, err := c.Prefer(gpus(free...), nil, size)
				require.NoError(t, err)
				best := topology.Score(uuidsOf(got))
				asked++
				if score(s.choose(nearClaim(size), free)) == best {
					plain++
				}
				if score(s.choose(nearClaim(size, nearFirst...), free)) == best {
					near++
				}
			}
		}
		graph, events := linked(m.node), trace(1, 8, 1000, loads()[1])
		served := graph.replay(events, func(free []int, size int) []int { return s.choose(nearClaim(size, nearFirst...), free) })
		ours := graph.replay(events, choosePreferred(m.node))
		percent := func(n, of int) string { return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(of)) }
		fmt.Fprintf(&report, "%-16s %8d %18s %18s %8s\n", m.name, asked, percent(plain, asked), percent(near, asked), fmt.Sprintf("%d/%d", served, ours))
	}
	golden.Require(t, "testdata/scheduler.txt", report.String())
	golden.RequireSection(t, "../../docs/dra.md", "<!-- choices of the scheduler: made by go test ./deviceplugin/prefer -update -->\n",
		"<!-- end of choices of the scheduler -->\n", "\n```\n"+report.String()+"```\n\n")
}
