package report

import (
	"cmp"
	"fmt"
	"html"
	"io"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/validator/preflight"
)

// safe is text that is already HTML.
type safe string

// htmlPage builds a page. It does not use html/template, which would keep the linker from
// removing unused code, in a program that is always resident.
type htmlPage struct{ strings.Builder }

// add writes HTML; all arguments except numbers and safe text are escaped.
func (d *htmlPage) add(format string, args ...any) {
	for i, a := range args {
		switch a := a.(type) {
		case int, float64:
		case safe:
			args[i] = string(a)
		default:
			args[i] = html.EscapeString(clean(fmt.Sprint(a)))
		}
	}
	fmt.Fprintf(d, format+"\n", args...)
}

const pageStyle = `
:root { color-scheme: light dark; --paper: #fff; --ink: #1d2430; --faint: #667085; --line: #d5dae1; --bar: #3b7dd8; --ok: #1a7f4b; --warn: #9a5b00; --bad: #c3273a; --panel: #f6f7f9 }
@media (prefers-color-scheme: dark) { :root { --paper: #14181f; --ink: #e6e9ee; --faint: #98a2b3; --line: #333b47; --bar: #5c9bef; --ok: #52c78a; --warn: #e2a33c; --bad: #ff7280; --panel: #1c222b } }
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem }
p { margin: .3rem 0 } .faint { color: var(--faint) } code, .mono { font-family: ui-monospace, monospace; font-size: .85em }
table { border-collapse: collapse; width: 100% } th { text-align: left; color: var(--faint); font-weight: 500 } td, th { border-bottom: 1px solid var(--line); padding: .3rem .8rem .3rem 0; white-space: nowrap }
.wide { overflow-x: auto } .verdict { border-radius: .4rem; color: var(--paper); display: inline-block; font-weight: 600; padding: .1rem .7rem }
.ok { color: var(--ok) } .warn { color: var(--warn) } .bad { color: var(--bad) } .verdict.ok { background: var(--ok); color: var(--paper) } .verdict.warn { background: var(--warn); color: var(--paper) } .verdict.bad { background: var(--bad); color: var(--paper) }
.headline { font-size: 1.15rem; font-weight: 600 } .gpu { border-top: 1px solid var(--line); margin: 1.5rem 0 0; padding-top: .8rem } .gpu h2 { margin: 0 } .gpu ul { margin: .3rem 0; padding-left: 1.2rem }
.finding { background: var(--panel); border-left: 4px solid var(--line); margin: .5rem 0; padding: .5rem .9rem } .finding.warn { border-color: var(--warn); color: inherit } .finding.bad { border-color: var(--bad); color: inherit }
svg { display: block; max-width: 100% } svg text { fill: var(--ink); font: 12px system-ui, sans-serif } svg .soft { fill: var(--faint) } .back { fill: var(--line); fill-opacity: .45 } .fill { fill: var(--bar) } .slow { fill: var(--bad) } .limit { stroke: var(--ink); stroke-dasharray: 3 2; stroke-width: 1.5 } .edge { fill: none; stroke: var(--line) }
`

// WritePreflightHTML writes the result as one page that needs no network and no script.
func WritePreflightHTML(w io.Writer, r preflight.Result) error {
	d := &htmlPage{}
	d.add(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Preflight of %s: %s</title>
<style>%s</style>
</head>
<body>`, r.Node, r.Word(), safe(pageStyle))
	d.add(`<h1>Preflight of %s</h1>`, r.Node)
	d.add(`<p class="headline"><span class="verdict %s">%s</span> %s</p>`, cssClass(r.Verdict), r.Word(), countBad(r))
	if products := countProducts(r); products != "" {
		d.add(`<p>%s</p>`, products)
	}
	d.add(`<p class="faint">%s, %s s, driver %s, CUDA %s, gpu-validator %s</p>`, r.Time.UTC().Format(time.RFC3339), fmt.Sprintf("%.1f", r.Seconds), r.Driver, r.CUDA, r.Version)
	if r.Simulated {
		d.add(`<p><b>There is no GPU under this driver.</b> What is right here is arithmetic and plumbing; nothing says how healthy or how fast a GPU is.</p>`)
	}
	d.groups(r)
	d.devices(r)
	if !r.Simulated { // there are no speeds
		d.bars(r)
		d.heat(r)
	}
	d.add("</body>\n</html>")
	_, err := io.WriteString(w, d.String())
	return err
}

// cssClass returns the CSS class of a verdict.
func cssClass(v preflight.Verdict) safe {
	switch v {
	case preflight.OK:
		return "ok"
	case preflight.Wrong, preflight.Unhealthy:
		return "bad"
	}
	return "warn"
}

// countBad returns how many GPUs are bad: "3 of 8 GPUs bad: 2 unhealthy, 1 slow". A MIG device counts
// with its GPU.
func countBad(r preflight.Result) string {
	verdicts := map[gpu.UUID]preflight.Verdict{}
	for _, g := range r.GPUs {
		id := cmp.Or(g.Parent, g.UUID)
		verdicts[id] = preflight.Worse(cmp.Or(verdicts[id], preflight.OK), g.Verdict)
	}
	count := map[preflight.Verdict]int{}
	for _, v := range verdicts {
		count[v]++
	}
	gpus := fmt.Sprintf("%d GPUs", len(verdicts))
	if len(verdicts) == 1 {
		gpus = "1 GPU"
	}
	var bad []string
	for _, v := range []preflight.Verdict{preflight.Unhealthy, preflight.Wrong, preflight.Slow} {
		if count[v] > 0 {
			bad = append(bad, fmt.Sprintf("%d %s", count[v], v))
		}
	}
	switch {
	case len(bad) > 0:
		return fmt.Sprintf("%d of %s bad: %s", count[preflight.Unhealthy]+count[preflight.Wrong]+count[preflight.Slow], gpus, strings.Join(bad, ", "))
	case count[preflight.NotRun] > 0:
		return fmt.Sprintf("%d of %s not fully tested", count[preflight.NotRun], gpus)
	case r.Verdict != preflight.OK:
		return fmt.Sprintf("0 of %s bad; the node: %s", gpus, r.Verdict)
	}
	return fmt.Sprintf("%d of %s ok", count[preflight.OK], gpus)
}

// groups writes a section for each GPU that has findings or notes, its MIG devices with it, and one
// for the node.
func (d *htmlPage) groups(r preflight.Result) {
	for i := 0; i < len(r.GPUs); {
		end := i + 1
		for end < len(r.GPUs) && r.GPUs[end].Parent != "" && r.GPUs[end].Parent == r.GPUs[i].UUID {
			end++
		}
		d.group(r.GPUs[i:end])
		i = end
	}
	if len(r.Findings)+len(r.Notes) == 0 {
		return
	}
	d.add(`<section class="gpu"><h2>The node</h2>`)
	d.findings("", r.Findings)
	d.listNotes("", r.Notes)
	d.add(`</section>`)
}

// group writes the section of a GPU, which is the first of the devices, and its MIG devices.
func (d *htmlPage) group(devices []preflight.GPU) {
	verdict, lines := preflight.OK, 0
	for _, g := range devices {
		verdict = preflight.Worse(verdict, g.Verdict)
		lines += len(g.Findings) + len(g.Notes)
	}
	if lines == 0 {
		return
	}
	g := devices[0]
	d.add(`<section class="gpu"><h2>%s <span class="verdict %s">%s</span></h2>`, strings.TrimSpace(deviceLabel(g)), cssClass(verdict), verdict)
	where := []string{clean(g.Product), clean(string(g.PCI))}
	if g.Slot != "" {
		where = append(where, "slot "+clean(g.Slot))
	}
	d.add(`<p class="faint">%s, <span class="mono">%s</span></p>`, strings.Join(where, ", "), g.UUID)
	for i, g := range devices {
		name := ""
		if i > 0 {
			name = strings.TrimSpace(deviceLabel(g))
		}
		d.findings(name, g.Findings)
		d.listNotes(name, g.Notes)
	}
	d.add(`</section>`)
}

// findings writes what was found; name is the device's, if it is not that of the section.
func (d *htmlPage) findings(name string, list []preflight.Finding) {
	for _, f := range list {
		d.add(`<div class="finding %s"><p>%s<b class="%s">%s</b>: %s <span class="faint">(%s)</span></p><p>→ %s</p></div>`,
			cssClass(f.Verdict), prefix(name), cssClass(f.Verdict), f.Verdict, f.Message, f.Reason, f.Action)
	}
}

// prefix returns what a line about a device begins with.
func prefix(name string) string {
	if name == "" {
		return ""
	}
	return name + ": "
}

// listNotes lists notes, if there are any.
func (d *htmlPage) listNotes(name string, list []string) {
	if len(list) == 0 {
		return
	}
	d.add(`<ul>`)
	for _, n := range list {
		d.add(`<li>%s</li>`, prefix(name)+n)
	}
	d.add(`</ul>`)
}

func (d *htmlPage) devices(r preflight.Result) {
	if len(r.GPUs) == 0 {
		return
	}
	d.add(`<h2>All devices</h2>
<div class="wide"><table>
<tr><th></th><th>Product</th><th>PCI address</th><th>Slot</th><th>Health</th><th>Right</th><th>Speed</th><th>UUID</th></tr>`)
	for _, g := range r.GPUs {
		health, right, speed := aspects(r, g)
		if g.Parent != "" {
			health = ""
		}
		d.add(`<tr><td>%s</td><td>%s</td><td class="mono">%s</td><td>%s</td>%s%s%s<td class="mono">%s</td></tr>`,
			strings.TrimSpace(deviceLabel(g)), g.Product, g.PCI, cmp.Or(g.Slot, "–"), verdictCell(health), verdictCell(right), verdictCell(speed), g.UUID)
	}
	d.add(`</table></div>`)
}

// verdictCell returns a cell with a verdict, or with its replacement.
func verdictCell(s string) safe {
	c := safe("faint")
	switch v := preflight.Verdict(s); v {
	case preflight.OK, preflight.NotRun, preflight.Slow, preflight.Wrong, preflight.Unhealthy:
		c = cssClass(v)
	}
	return safe(fmt.Sprintf(`<td class="%s">%s</td>`, c, html.EscapeString(s)))
}

// describeMeasured describes a measured figure and its limit.
func describeMeasured(f preflight.Figure) string {
	s := "measured " + preflight.Speed(f.Value, f.Unit)
	if f.Expected > 0 {
		s += fmt.Sprintf(", expected %s (%s)", preflight.Speed(f.Expected, f.Unit), f.Source)
	}
	if f.Limit > 0 {
		s += ", limit " + preflight.Speed(f.Limit, f.Unit)
	}
	return s
}

// describeFigure returns a full description of a figure.
func describeFigure(f preflight.Figure) string {
	if f.Value == 0 {
		return "not measured"
	}
	s := describeMeasured(f)
	if f.Median > 0 {
		s += ", median here " + preflight.Speed(f.Median, f.Unit)
	}
	if f.Last > 0 {
		s += fmt.Sprintf(", last run %s, best %s", preflight.Speed(f.Last, f.Unit), preflight.Speed(f.Best, f.Unit))
	}
	return s
}
