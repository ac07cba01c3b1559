package prefer_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/deviceplugin/prefer"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

// groupsOf returns the groups as the first GPU of each: "0 0 2 2"; "-": none.
func groupsOf(s gpu.Snapshot, of func(gpu.NVLinkGroup) gpu.UUID) (text string) {
	index := map[gpu.UUID]int{}
	for i, d := range s.Devices {
		index[d.UUID] = i
	}
	for i, d := range s.Devices {
		if i > 0 {
			text += " "
		}
		if first := of(d.NVLink); first != "" {
			text += fmt.Sprint(index[first])
		} else {
			text += "-"
		}
	}
	return text
}

func TestGPUsAreGroupedByNVLink(t *testing.T) {
	crossed := func(a, b int) int { return map[[2]int]int{{0, 3}: 4, {0, 1}: 4, {1, 2}: 4}[[2]int{a, b}] }
	for _, c := range []struct {
		name            string
		node            gpu.Snapshot
		domain, nearest string
	}{
		{"NVSwitch", gputest.Node("h100-sxm", 8), "0 0 0 0 0 0 0 0", "0 0 0 0 0 0 0 0"},
		{"more than are tried", gputest.Node("dgx-2", 16), "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0", "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"},
		{"PCIe only", gputest.Node("l40s", 4), "- - - -", "- - - -"},
		{"pairs", wired(4, bridged(2, 4)), "0 0 2 2", "0 0 2 2"},
		{"a GPU without a partner", wired(3, bridged(2, 4)), "0 0 -", "0 0 -"},
		{"quads of pairs", wired(8, func(a, b int) int { return max(bridged(2, 4)(a, b), bridged(4, 2)(a, b)) }), "0 0 0 0 4 4 4 4", "0 0 2 2 4 4 6 6"},
		{"cube mesh", wired(8, meshed), "0 0 0 0 4 4 4 4", "0 1 1 0 4 5 5 4"},
		{"the first partner is not the best", wired(4, crossed), "0 1 1 0", "0 1 1 0"},
		{"one GPU", gputest.Node("t4", 1), "-", "-"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := prefer.GroupByNVLink(c.node)
			require.Equal(t, c.domain, groupsOf(s, func(g gpu.NVLinkGroup) gpu.UUID { return g.Domain }))
			require.Equal(t, c.nearest, groupsOf(s, func(g gpu.NVLinkGroup) gpu.UUID { return g.Nearest }))
		})
	}
}

func TestGPUsOfAGroupAreLinkedEachWithEach(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := prefer.GroupByNVLink(random(t, 1, 16))
		group := map[gpu.UUID]gpu.NVLinkGroup{}
		most := map[gpu.UUID]int{} // links of two of a domain
		for _, d := range s.Devices {
			group[d.UUID] = d.NVLink
			require.Equal(t, d.NVLink.Domain == "", d.NVLink.Nearest == "")
		}
		for _, l := range s.Links {
			if a, b := group[l.A], group[l.B]; a.Domain != "" && a.Domain == b.Domain {
				require.Equal(t, gpu.LinkNVLink, l.Kind)
				most[a.Domain] = max(most[a.Domain], l.Lanes)
			}
		}
		for _, l := range s.Links {
			if a, b := group[l.A], group[l.B]; a.Nearest != "" && a.Nearest == b.Nearest {
				require.Equal(t, a.Domain, b.Domain, "the nearest are of one domain")
				require.Equal(t, most[a.Domain], l.Lanes)
			}
		}
	})
}
