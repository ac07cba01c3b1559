package preflight

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

// bridged returns a node of PCIe boards of which up have 12 NVLinks up and the others none, with bridges between
// the pairs.
func bridged(n, up int, pairs ...[2]int) (Observations, Result) {
	s, r := node("h100-sxm", n)
	s.Snapshot.Links = nil
	for _, p := range pairs {
		s.Snapshot.Links = append(s.Snapshot.Links, gpu.Link{A: gputest.GPU(p[0]), B: gputest.GPU(p[1]), Kind: gpu.LinkNVLink, Lanes: 12})
	}
	for i := range n {
		r.GPUs[i].Product = "NVIDIA A100 80GB PCIe"
		for _, reading := range s.Readings {
			c := reading.Conditions[gputest.GPU(i)]
			c.NVLinks = gpu.NVLinks{Down: []int{0, 1, 2}}
			if i < up {
				c.NVLinks = gpu.NVLinks{Up: []int{0, 1, 2}}
			}
			reading.Conditions[gputest.GPU(i)] = c
		}
	}
	return s, r
}

func TestABoardWithoutABridgeIsNoFault(t *testing.T) {
	zero, three := 0, 3
	pair := [2]int{0, 1}
	for name, c := range map[string]struct {
		gpus, up int
		pairs    [][2]int
		product  string
		topology []Topology
		bad      []int // GPUs
		noted    bool  // GPU 2
	}{
		"two bridged, one alone":         {gpus: 3, up: 2, pairs: [][2]int{pair}, noted: true},
		"two bridged, two not":           {gpus: 4, up: 2, pairs: [][2]int{pair}, noted: true},
		"none bridged":                   {gpus: 3, noted: true},
		"the other end is up":            {gpus: 4, up: 3, pairs: [][2]int{pair}, bad: []int{3}},
		"all connected by a switch":      {gpus: 4, up: 2, pairs: [][2]int{pair, {0, 3}}, bad: []int{2, 3}},
		"a product with a baseboard":     {gpus: 3, up: 2, pairs: [][2]int{pair}, product: "NVIDIA A100-SXM4-80GB", bad: []int{2}},
		"said to have no bridge":         {gpus: 3, up: 2, pairs: [][2]int{pair, {0, 3}}, topology: []Topology{{NVLinks: &zero}}},
		"said to have one":               {gpus: 3, topology: []Topology{{Names: []string{"NVIDIA A100 80GB PCIe"}, NVLinks: &three}}, bad: []int{0, 1, 2}},
		"said of another product":        {gpus: 3, topology: []Topology{{Names: []string{"NVIDIA A30"}, NVLinks: &three}}, noted: true},
		"said to have one, and has them": {gpus: 3, up: 3, topology: []Topology{{NVLinks: &three}}},
	} {
		t.Run(name, func(t *testing.T) {
			s, r := bridged(c.gpus, c.up, c.pairs...)
			for i := range r.GPUs {
				if c.product != "" {
					r.GPUs[i].Product = c.product
				}
			}
			limits := table(t)
			limits.Topology = c.topology
			Judge(&r, s, limits)
			var bad []int
			for i, g := range r.GPUs {
				if len(g.Findings) > 0 {
					require.Equal(t, []gpu.Reason{ReasonNVLink}, reasons(g.Findings))
					bad = append(bad, i)
				}
			}
			require.Equal(t, c.bad, bad)
			require.Equal(t, c.noted, len(r.GPUs[2].Notes) > 0, r.GPUs[2].Notes)
		})
	}
}

func TestNVLinksThatWereUpAndAreDownAreAFault(t *testing.T) {
	links := func(pci gpu.PCIAddress, up, down []int) GPU {
		return GPU{UUID: "GPU-a", PCI: pci, Condition: &gpu.Condition{NVLinks: gpu.NVLinks{Up: up, Down: down}}}
	}
	const here = "0000:01:00.0"
	all := []int{0, 1, 2, 3}
	past := []Result{run(0, links(here, all, nil)), run(1, links(here, all[1:], all[:1])), run(2, links(here, nil, all))}
	r := run(3, links(here, all[:2], all[2:]))
	r.GPUs[0].Notes = []string{noteNoBridge}
	CompareHistory(&r, past)
	require.Empty(t, r.GPUs[0].Notes)
	require.Equal(t, Unhealthy, r.Verdict)
	require.Equal(t, []gpu.Reason{ReasonNVLink}, reasons(r.GPUs[0].Findings))
	require.Equal(t, "NVLinks that were up at 2026-01-03T12:00:00Z are down: 2, 3", r.GPUs[0].Findings[0].Message)

	CompareHistory(&r, past)
	require.Len(t, r.GPUs[0].Findings, 1, "there is a finding already")
	for name, g := range map[string]GPU{
		"all are up":           links(here, all, nil),
		"another slot":         links("0000:02:00.0", nil, all),
		"another link is down": links(here, all, []int{4}),
		"never read":           {UUID: "GPU-a", PCI: here},
		"told":                 {UUID: "GPU-a", PCI: here, Condition: &gpu.Condition{NVLinks: gpu.NVLinks{Down: all}}, linksTold: true},
		"in MIG mode":          {UUID: "GPU-a", PCI: here, Condition: &gpu.Condition{NVLinks: gpu.NVLinks{Down: all}}, migMode: true},
	} {
		r := run(3, g)
		CompareHistory(&r, past)
		require.Empty(t, r.GPUs[0].Findings, name)
		require.Equal(t, OK, r.Verdict, name)
	}
}

// A switch that fails, or is missing, takes links of all GPUs of its baseboard.
func TestLinksThatAllGPUsOfABaseboardLackAreMissed(t *testing.T) {
	for name, c := range map[string]struct {
		gpus, up, down   int
		product, compute string
		topology         []Topology
		bad              bool
	}{
		"one switch of four":                 {gpus: 8, up: 13, down: 5, product: "NVIDIA H100 80GB HBM3", compute: "9.0", bad: true},
		"all links":                          {gpus: 8, up: 18, product: "NVIDIA H100 80GB HBM3", compute: "9.0"},
		"all are down":                       {gpus: 8, down: 18, product: "NVIDIA H100 80GB HBM3", compute: "9.0"},
		"half of a board with 4 GPUs":        {gpus: 2, up: 6, down: 12, product: "NVIDIA H100 80GB HBM3", compute: "9.0"},
		"half of a cube mesh":                {gpus: 4, up: 4, down: 2, product: "Tesla V100-SXM2-16GB", compute: "7.0"},
		"boards with bridges":                {gpus: 4, up: 12, down: 6, product: "NVIDIA H100 NVL", compute: "9.0"},
		"a product with fewer of them":       {gpus: 8, up: 8, down: 10, product: "NVIDIA H800", compute: "9.0"},
		"said to be so":                      {gpus: 8, up: 13, down: 5, product: "NVIDIA H100 80GB HBM3", compute: "9.0", topology: []Topology{{NVLinks: new(13)}}},
		"a product that is not in the table": {gpus: 8, up: 8, down: 4, product: "NVIDIA Future", compute: "13.0"},
	} {
		t.Run(name, func(t *testing.T) {
			s, r := node("h100-sxm", c.gpus)
			var links gpu.NVLinks
			for i := range c.up + c.down {
				if i < c.up {
					links.Up = append(links.Up, i)
				} else {
					links.Down = append(links.Down, i)
				}
			}
			for i := range r.GPUs {
				r.GPUs[i].Product, r.GPUs[i].Compute = c.product, c.compute
				for _, reading := range s.Readings {
					condition := reading.Conditions[gputest.GPU(i)]
					condition.NVLinks = links
					reading.Conditions[gputest.GPU(i)] = condition
				}
			}
			limits := table(t)
			limits.Topology = c.topology
			Judge(&r, s, limits)
			for _, g := range r.GPUs {
				if c.bad {
					require.Equal(t, []gpu.Reason{ReasonNVLink}, reasons(g.Findings))
					require.Contains(t, g.Findings[0].Message, "13 of 18 NVLinks are up; down: 13, 14, 15, 16, 17")
				} else {
					require.Empty(t, g.Findings)
				}
			}
		})
	}
}
