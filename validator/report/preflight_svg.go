package report

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpuready/gpuready/validator/preflight"
)

// Sizes of the drawings, in pixels.
const (
	labelWidth = 150
	barLength  = 440
	tailWidth  = 420
	rowHeight  = 24
	cellWidth  = 64
	cellHeight = 34
)

// bars draws each figure: a bar a device, with a line at its limit.
func (d *htmlPage) bars(r preflight.Result) {
	for _, c := range charts(r) {
		if !slices.ContainsFunc(c.rows, func(row chartRow) bool { return row.figure.Value > 0 }) {
			continue // nothing was measured
		}
		d.add(`<h2>%s <span class="faint">%s</span></h2>`, c.name, c.unit)
		height := len(c.rows) * rowHeight
		d.add(`<svg role="img" aria-label="%s" viewBox="0 0 %d %d" width="%d" height="%d">`, c.name, labelWidth+barLength+tailWidth, height, labelWidth+barLength+tailWidth, height)
		for i, row := range c.rows {
			d.bar(row, c, i*rowHeight)
		}
		d.add(`</svg>`)
	}
}

func (d *htmlPage) bar(row chartRow, c chart, y int) {
	f := row.figure
	length := func(v float64) float64 { return v / c.most * barLength }
	shade := safe("fill")
	if f.Verdict == preflight.Slow {
		shade = "slow"
	}
	d.add(`<g><title>%s: %s</title>`, row.label, describeFigure(f))
	d.add(`<text x="0" y="%d">%s</text>`, y+16, row.label)
	d.add(`<rect class="back" x="%d" y="%d" width="%d" height="16"/>`, labelWidth, y+4, barLength)
	d.add(`<rect class="%s" x="%d" y="%d" width="%.1f" height="16"/>`, shade, labelWidth, y+4, length(f.Value))
	if f.Limit > 0 {
		x := labelWidth + length(f.Limit)
		d.add(`<line class="limit" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`, x, y+1, x, y+rowHeight-1)
	}
	tail := "–"
	if f.Value > 0 {
		tail = preflight.Number(f.Value / c.scale)
	}
	if f.Value > 0 && f.Expected > 0 {
		tail += fmt.Sprintf(" · %.0f %% of %s", 100*f.Value/f.Expected, preflight.Number(f.Expected/c.scale))
	}
	if f.Limit > 0 {
		tail += " · limit " + preflight.Number(f.Limit/c.scale)
	}
	if f.Value > 0 && f.Last > 0 {
		tail += fmt.Sprintf(" · %+.1f %% since the last run", 100*(f.Value/f.Last-1))
	}
	if f.Verdict == preflight.Slow {
		tail += " · slow"
	}
	d.add(`<text x="%d" y="%d">%s</text></g>`, labelWidth+barLength+8, y+16, tail)
}

// heat draws the paths from GPU to GPU: the faster, the fuller the colour.
func (d *htmlPage) heat(r preflight.Result) {
	m := newPeerMatrix(r)
	if len(m.gpus) == 0 {
		return
	}
	d.add(`<h2>From GPU (row) to GPU (column) <span class="faint">GB/s</span></h2>`)
	n := len(m.gpus)
	width, height := (n+1)*cellWidth, (n+1)*cellHeight
	d.add(`<div class="wide"><svg role="img" aria-label="From GPU to GPU" viewBox="0 0 %d %d" width="%d" height="%d">`, width, height, width, height)
	for i, g := range m.gpus {
		d.add(`<text class="soft" x="%d" y="%d" text-anchor="middle">GPU %s</text>`, (i+1)*cellWidth+cellWidth/2, cellHeight-8, g.Index)
		d.add(`<text class="soft" x="0" y="%d">GPU %s</text>`, (i+1)*cellHeight+21, g.Index)
		for k, path := range m.paths[i] {
			d.cell(path, m, i, k)
		}
	}
	d.add(`</svg></div>`)
}

func (d *htmlPage) cell(path *preflight.Peer, m peerMatrix, row, column int) {
	x, y := (column+1)*cellWidth, (row+1)*cellHeight
	if path == nil || path.Value == 0 {
		d.add(`<rect class="edge" x="%d" y="%d" width="%d" height="%d"/>`, x+1, y+1, cellWidth-2, cellHeight-2)
		return
	}
	// Keep the number on the colour readable.
	shade, opacity := safe("fill"), 0.08+0.52*path.Value/m.most
	if path.Verdict == preflight.Slow {
		shade, opacity = "slow", 0.6
	}
	f := preflight.Figure{Unit: path.Unit, Value: path.Value, Expected: path.Expected, Limit: path.Limit, Source: cmp.Or(path.Link, "link")}
	direct := ""
	if !path.Access {
		direct = ", through the host's memory"
	}
	d.add(`<g><title>GPU %s to GPU %s, %s: %s%s</title>`, m.gpus[row].Index, m.gpus[column].Index, cmp.Or(path.Link, "link unknown"), describeFigure(f), direct)
	d.add(`<rect class="%s" fill-opacity="%.2f" x="%d" y="%d" width="%d" height="%d"/>`, shade, opacity, x+1, y+1, cellWidth-2, cellHeight-2)
	d.add(`<text x="%d" y="%d" text-anchor="middle">%s</text></g>`, x+cellWidth/2, y+21, preflight.Number(path.Value/1e9))
}
