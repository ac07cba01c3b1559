package report

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/internal/suggest"
	"github.com/gpuready/gpuready/validator/preflight"
)

// WritePreflight writes the result. color is for text on a terminal.
func WritePreflight(w io.Writer, r preflight.Result, format string, color bool) error {
	switch format {
	case "text":
		return writePreflightText(w, r, color)
	case "json":
		return encodeJSON(w, r)
	case "junit":
		return writePreflightJUnit(w, r)
	}
	return fmt.Errorf("unknown format %q%s", format, suggest.Hint(format, Formats()))
}

// simulatedText replaces every speed where there is no GPU.
const simulatedText = "n/a (simulated)"

// Colours (ANSI) of the verdicts.
var verdictColors = map[preflight.Verdict]string{
	preflight.OK: "32", preflight.NotRun: "33", preflight.Slow: "33;1", preflight.Wrong: "31;1", preflight.Unhealthy: "31;1",
}

type textPage struct {
	strings.Builder
	color bool
}

func (p *textPage) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

func (p *textPage) paint(code, s string) string { return paint(p.color, code, s) }

func writePreflightText(w io.Writer, r preflight.Result, color bool) error {
	p := &textPage{color: color}
	p.line("%s: %s, driver %s, CUDA %s, %.1f s", clean(r.Node), countProducts(r), clean(r.Driver), clean(r.CUDA), r.Seconds)
	p.line("")
	p.devices(r)
	p.bars(r)
	p.matrix(r)
	p.findings(r)
	last := r.Word()
	if g, f := r.Worst(); f != nil {
		last += ": "
		if g != nil {
			last += clean(g.Name()) + ": "
		}
		last += string(f.Reason)
	}
	p.line("gpu-validator: preflight %s", p.paint(verdictColors[r.Verdict], last))
	_, err := io.WriteString(w, p.String())
	return err
}

// devices writes a table of the node's devices.
func (p *textPage) devices(r preflight.Result) {
	rows := [][]string{{"", "PCI", "SLOT", "HEALTH", "RIGHT", "SPEED", "UUID"}}
	for _, g := range r.GPUs {
		health, right, speed := aspects(r, g)
		if g.Parent != "" {
			health = ""
		}
		rows = append(rows, []string{deviceLabel(g), clean(string(g.PCI)), cmp.Or(clean(g.Slot), "-"), health, right, speed, clean(string(g.UUID))})
	}
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for n, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			padded := pad(cell, width[i]) + "  "
			if n > 0 && i >= 3 && i <= 5 {
				padded = p.paint(aspectColor(cell), padded)
			}
			line.WriteString(padded)
		}
		p.line("%s", strings.TrimRight(line.String(), " "))
	}
	p.line("")
}

func aspectColor(word string) string {
	switch word {
	case "", "-", "ok", simulatedText, "not judged":
		return "0"
	}
	return verdictColors[preflight.Verdict(word)]
}

// aspects returns one word each for a device's health, correctness and speed.
func aspects(r preflight.Result, g preflight.GPU) (health, right, speed string) {
	worst := [3]preflight.Verdict{preflight.OK, preflight.OK, preflight.OK}
	for _, f := range g.Findings {
		i := 0
		switch {
		case f.Figure != "":
			i = 2
		case f.Sample != "":
			i = 1
		}
		worst[i] = preflight.Worse(worst[i], f.Verdict)
	}
	for _, run := range g.Runs {
		worst[1] = preflight.Worse(worst[1], run.Verdict)
	}
	health, right, speed = string(worst[0]), string(worst[1]), string(worst[2])
	if r.Simulated && worst[0] == preflight.OK {
		health = simulatedText
	}
	if len(g.Runs) == 0 && worst[1] == preflight.OK {
		right = "-"
	}
	if worst[2] == preflight.OK {
		switch judged := isJudged(g); {
		case len(g.Figures) == 0:
			speed = "-"
		case r.Simulated:
			speed = simulatedText
		case !judged:
			speed = "not judged"
		}
	}
	return health, right, speed
}

func isJudged(g preflight.GPU) bool {
	for _, f := range g.Figures {
		if f.Limit > 0 || f.Median > 0 {
			return true
		}
	}
	return false
}

const barWidth = 30

// bars shows each figure of all devices, with the limit marked.
func (p *textPage) bars(r preflight.Result) {
	for _, c := range charts(r) {
		if r.Simulated {
			p.line("%s: %s", c.name, simulatedText)
			continue
		}
		p.line("%s, %s", c.name, c.unit)
		for _, row := range c.rows {
			f := row.figure
			value, share, limit := "-", "", ""
			if f.Value > 0 {
				value = preflight.Number(f.Value / c.scale)
			}
			if f.Value > 0 && f.Expected > 0 {
				share = fmt.Sprintf("%3.0f %% of %s (%s)", 100*f.Value/f.Expected, preflight.Number(f.Expected/c.scale), f.Source)
			}
			if f.Limit > 0 {
				limit = ", limit " + preflight.Number(f.Limit/c.scale)
			}
			word := ""
			if f.Verdict == preflight.Slow {
				word = "  " + p.paint(verdictColors[preflight.Slow], "slow")
			}
			line := fmt.Sprintf("  %s %s %7s  %s%s%s%s", pad(row.label, c.width), drawBar(f, c.most), value, share, limit, formatHistory(f, c.scale), word)
			p.line("%s", strings.TrimRight(line, " "))
		}
	}
	if len(charts(r)) > 0 {
		p.line("")
	}
}

// formatHistory formats the figures of earlier runs on the same GPU.
func formatHistory(f preflight.Figure, scale float64) string {
	if f.Last == 0 || f.Value == 0 {
		return ""
	}
	return fmt.Sprintf(", %+.1f %% since the last run, best %s", 100*(f.Value/f.Last-1), preflight.Number(f.Best/scale))
}

// drawBar draws a figure; the limit is a line across it, or beyond its end.
func drawBar(f preflight.Figure, most float64) string {
	cells := make([]rune, barWidth)
	filled := int(f.Value/most*barWidth + 0.5)
	for i := range cells {
		cells[i] = ' '
		if i < filled {
			cells[i] = '█'
		}
	}
	if f.Limit > 0 {
		at := min(int(f.Limit/most*barWidth), barWidth-1)
		cells[at] = '│'
	}
	return string(cells)
}

// matrix writes a table of the paths from GPU to GPU.
func (p *textPage) matrix(r preflight.Result) {
	m := newPeerMatrix(r)
	if len(m.gpus) == 0 {
		return
	}
	if r.Simulated {
		p.line("from GPU to GPU: %s", simulatedText)
		p.line("")
		return
	}
	p.line("from GPU (row) to GPU (column), GB/s")
	fmt.Fprintf(p, "%6s", "")
	for _, g := range m.gpus {
		fmt.Fprintf(p, "%7s", clean(g.Index))
	}
	p.line("")
	for i, g := range m.gpus {
		fmt.Fprintf(p, "%6s", clean(g.Index))
		for _, path := range m.paths[i] {
			cell := "-"
			if path != nil && path.Value > 0 {
				cell = preflight.Number(path.Value / 1e9)
			}
			cell = fmt.Sprintf("%7s", cell)
			if path != nil && path.Verdict == preflight.Slow {
				cell = p.paint(verdictColors[preflight.Slow], cell)
			}
			p.WriteString(cell)
		}
		p.line("")
	}
	p.line("")
}

func (p *textPage) findings(r preflight.Result) {
	write := func(name string, list []preflight.Finding, notes []string) {
		for _, f := range list {
			p.line("%s %s: %s: %s", p.paint(verdictColors[f.Verdict], strings.ToUpper(string(f.Verdict))), name, f.Reason, clean(f.Message))
			p.line("    %s %s", p.paint("36", "→"), clean(f.Action))
		}
		for _, n := range notes {
			p.line("%s %s: %s", p.paint("33", "!"), name, clean(n))
		}
	}
	for _, g := range r.GPUs {
		write(clean(g.Name()), g.Findings, g.Notes)
	}
	write(clean(r.Node), r.Findings, r.Notes)
}

// clean makes text of drivers and earlier results fit for a terminal.
func clean(s string) string { return record.Clean(s, 2048) }

func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
}
