package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/validator/preflight"
)

// chart is one figure of all devices.
type chart struct {
	name, unit string
	scale      float64 // of unit
	most       float64 // the longest that a bar can be
	width      int     // of the labels
	rows       []chartRow
}

type chartRow struct {
	label  string
	figure preflight.Figure
}

// charts returns a chart of each figure of a result, in the order of measurement.
func charts(r preflight.Result) []chart {
	var all []chart
	for _, g := range r.GPUs {
		for _, f := range g.Figures {
			i := slices.IndexFunc(all, func(c chart) bool { return c.name == clean(f.Name) })
			if i < 0 {
				i = len(all)
				all = append(all, newChart(f))
			}
			c := &all[i]
			row := chartRow{deviceLabel(g), f}
			c.rows = append(c.rows, row)
			c.width = max(c.width, len([]rune(row.label)))
			c.most = max(c.most, f.Value, f.Expected, f.Limit)
		}
	}
	for i := range all {
		if all[i].most <= 0 {
			all[i].most = 1
		}
	}
	return all
}

func newChart(f preflight.Figure) chart {
	c := chart{name: clean(f.Name), unit: clean(f.Unit), scale: 1}
	switch f.Unit {
	case "B/s":
		c.unit, c.scale = "GB/s", 1e9
	case "FLOP/s":
		c.unit, c.scale = "TFLOP/s", 1e12
	}
	return c
}

// deviceLabel returns the short name of a device in a table.
func deviceLabel(g preflight.GPU) string {
	if g.Parent != "" {
		return "  MIG " + clean(g.Index) + " " + clean(g.Profile)
	}
	return "GPU " + clean(g.Index)
}

// peerMatrix holds the paths between the GPUs that have any.
type peerMatrix struct {
	gpus  []preflight.GPU
	paths [][]*preflight.Peer // by row (from) and column (to); nil: none was tried
	most  float64
}

func newPeerMatrix(r preflight.Result) peerMatrix {
	var m peerMatrix
	place := map[gpu.UUID]int{}
	for _, g := range r.GPUs {
		if slices.ContainsFunc(r.Peers, func(p preflight.Peer) bool { return p.From == g.UUID || p.To == g.UUID }) {
			place[g.UUID] = len(m.gpus)
			m.gpus = append(m.gpus, g)
		}
	}
	m.paths = make([][]*preflight.Peer, len(m.gpus))
	for i := range m.paths {
		m.paths[i] = make([]*preflight.Peer, len(m.gpus))
	}
	for i, p := range r.Peers {
		from, isFrom := place[p.From]
		to, isTo := place[p.To]
		if isFrom && isTo {
			m.paths[from][to] = &r.Peers[i]
			m.most = max(m.most, p.Value, p.Expected)
		}
	}
	return m
}

// countProducts counts the GPUs by product: "8 × NVIDIA H200".
func countProducts(r preflight.Result) string {
	var order []string
	count := map[string]int{}
	for _, g := range r.GPUs {
		if g.Parent != "" {
			continue
		}
		name := cmp.Or(clean(g.Product), "GPU")
		if count[name] == 0 {
			order = append(order, name)
		}
		count[name]++
	}
	for i, name := range order {
		order[i] = fmt.Sprintf("%d × %s", count[name], name)
	}
	return strings.Join(order, ", ")
}
