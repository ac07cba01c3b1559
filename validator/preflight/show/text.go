// Package show formats the result of a preflight: as text for a terminal, as JSON, as JUnit
// XML for a CI system, and as an HTML page.
package show

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/validator/preflight/judge"
	"github.com/gpuready/gpuready/validator/preflight/result"
)

// Formats returns the formats of Write.
func Formats() []string { return []string{"text", "json", "junit"} }

// Write writes the result. color is for text on a terminal.
func Write(w io.Writer, r result.Result, format string, color bool) error {
	switch format {
	case "text":
		return text(w, r, color)
	case "json":
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(r)
	case "junit":
		return junit(w, r)
	}
	return fmt.Errorf("no format %q; there are %s", format, strings.Join(Formats(), ", "))
}

// simulated replaces every speed where there is no GPU.
const simulated = "n/a (simulated)"

// Colours (ANSI) of the verdicts.
var colors = map[result.Verdict]string{
	result.OK: "32", result.NotRun: "33", result.Slow: "33;1", result.Wrong: "31;1", result.Unhealthy: "31;1",
}

type page struct {
	strings.Builder
	color bool
}

func (p *page) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

func (p *page) paint(code, s string) string {
	if !p.color {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func text(w io.Writer, r result.Result, color bool) error {
	p := &page{color: color}
	p.line("%s: %s, driver %s, CUDA %s, %.1f s", clean(r.Node), products(r), clean(r.Driver), clean(r.CUDA), r.Seconds)
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
	p.line("gpu-validator: preflight %s", p.paint(colors[r.Verdict], last))
	_, err := io.WriteString(w, p.String())
	return err
}

// devices writes a table of the node's devices.
func (p *page) devices(r result.Result) {
	rows := [][]string{{"", "PCI", "SLOT", "HEALTH", "RIGHT", "SPEED", "UUID"}}
	for _, g := range r.GPUs {
		health, right, speed := aspects(r, g)
		if g.Parent != "" {
			health = ""
		}
		rows = append(rows, []string{label(g), clean(string(g.PCI)), or(clean(g.Slot), "-"), health, right, speed, clean(string(g.UUID))})
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
				padded = p.paint(shade(cell), padded)
			}
			line.WriteString(padded)
		}
		p.line("%s", strings.TrimRight(line.String(), " "))
	}
	p.line("")
}

func shade(word string) string {
	switch word {
	case "", "-", "ok", simulated, "not judged":
		return "0"
	}
	return colors[result.Verdict(word)]
}

// aspects returns one word each for a device's health, correctness and speed.
func aspects(r result.Result, g result.GPU) (health, right, speed string) {
	worst := [3]result.Verdict{result.OK, result.OK, result.OK}
	for _, f := range g.Findings {
		i := 0
		switch {
		case f.Figure != "":
			i = 2
		case f.Sample != "":
			i = 1
		}
		worst[i] = result.Worse(worst[i], f.Verdict)
	}
	for _, run := range g.Runs {
		worst[1] = result.Worse(worst[1], run.Verdict)
	}
	health, right, speed = string(worst[0]), string(worst[1]), string(worst[2])
	if r.Simulated && worst[0] == result.OK {
		health = simulated
	}
	if len(g.Runs) == 0 && worst[1] == result.OK {
		right = "-"
	}
	if worst[2] == result.OK {
		switch judged := judged(g); {
		case len(g.Figures) == 0:
			speed = "-"
		case r.Simulated:
			speed = simulated
		case !judged:
			speed = "not judged"
		}
	}
	return health, right, speed
}

func judged(g result.GPU) bool {
	for _, f := range g.Figures {
		if f.Limit > 0 || f.Median > 0 {
			return true
		}
	}
	return false
}

const barWidth = 30

// bars shows each figure of all devices, with the limit marked.
func (p *page) bars(r result.Result) {
	for _, c := range charts(r) {
		if r.Simulated {
			p.line("%s: %s", c.name, simulated)
			continue
		}
		p.line("%s, %s", c.name, c.unit)
		for _, row := range c.rows {
			f := row.figure
			value, share, limit := "-", "", ""
			if f.Value > 0 {
				value = judge.Number(f.Value / c.scale)
			}
			if f.Value > 0 && f.Expected > 0 {
				share = fmt.Sprintf("%3.0f %% of %s (%s)", 100*f.Value/f.Expected, judge.Number(f.Expected/c.scale), f.Source)
			}
			if f.Limit > 0 {
				limit = ", limit " + judge.Number(f.Limit/c.scale)
			}
			word := ""
			if f.Verdict == result.Slow {
				word = "  " + p.paint(colors[result.Slow], "slow")
			}
			line := fmt.Sprintf("  %s %s %7s  %s%s%s%s", pad(row.label, c.width), bar(f, c.most), value, share, limit, formatHistory(f, c.scale), word)
			p.line("%s", strings.TrimRight(line, " "))
		}
	}
	if len(charts(r)) > 0 {
		p.line("")
	}
}

// formatHistory formats the figures of earlier runs on the same GPU.
func formatHistory(f result.Figure, scale float64) string {
	if f.Last == 0 || f.Value == 0 {
		return ""
	}
	return fmt.Sprintf(", %+.1f %% since the last run, best %s", 100*(f.Value/f.Last-1), judge.Number(f.Best/scale))
}

// bar draws a figure; the limit is a line across it, or beyond its end.
func bar(f result.Figure, most float64) string {
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
func (p *page) matrix(r result.Result) {
	m := peers(r)
	if len(m.gpus) == 0 {
		return
	}
	if r.Simulated {
		p.line("from GPU to GPU: %s", simulated)
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
				cell = judge.Number(path.Value / 1e9)
			}
			cell = fmt.Sprintf("%7s", cell)
			if path != nil && path.Verdict == result.Slow {
				cell = p.paint(colors[result.Slow], cell)
			}
			p.WriteString(cell)
		}
		p.line("")
	}
	p.line("")
}

func (p *page) findings(r result.Result) {
	write := func(name string, list []result.Finding, notes []string) {
		for _, f := range list {
			p.line("%s %s: %s: %s", p.paint(colors[f.Verdict], strings.ToUpper(string(f.Verdict))), name, f.Reason, clean(f.Message))
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

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
}
