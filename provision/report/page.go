package report

import (
	"fmt"
	"html/template"
	"io"

	"github.com/gpuready/gpuready/provision/step"
)

// Page writes one self-contained HTML page: the steps of one report, or of two side by side
// with their comparison.
func Page(w io.Writer, reports ...*Report) error {
	if len(reports) == 0 || len(reports) > 2 {
		return fmt.Errorf("a page shows one report or two, not %d", len(reports))
	}
	p := page{Style: template.CSS(style), Notices: distinctNotices(reports...), Reports: reports} //nolint:gosec // a constant
	var names []string
	var lines []step.Timeline
	for _, r := range reports {
		if line, ok := r.Typical(); ok {
			names, lines = append(names, r.Stack), append(lines, line)
		}
	}
	if len(lines) == len(reports) {
		// The pictures escape their texts.
		p.Waterfall, p.Spread = template.HTML(drawWaterfall(names, lines)), template.HTML(drawSpread(reports)) //nolint:gosec // see above
	}
	if len(reports) == 2 {
		p.Comparisons = Compare(reports[0], reports[1], DefaultSpans())
	}
	return pageTemplate.Execute(w, p)
}

// page is the data of the template.
type page struct {
	Style             template.CSS
	Notices           []string
	Reports           []*Report
	Waterfall, Spread template.HTML
	Comparisons       []Comparison
}

// Steps returns the steps, with what shows each.
func (page) Steps() []step.Step { return step.Steps() }

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"sec":    formatSeconds,
	"title":  func(id step.ID) string { s, _ := step.Find(id); return s.Title },
	"aside":  func(id step.ID) bool { s, _ := step.Find(id); return s.Aside },
	"share":  func(f float64) string { return fmt.Sprintf("%.0f %%", 100*f) },
	"group":  stepClass,
	"letter": reportLetter,
	"late":   describeLate,
	"nodes":  countNodes,
	"ratio":  func(f float64) string { return fmt.Sprintf("%.2f", f) },
}).Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Time to GPU: {{range $i, $r := .Reports}}{{if $i}} and {{end}}{{$r.Stack}}{{end}}</title>
<style>{{.Style}}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 980px; margin: 2rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.7rem; margin: .2em 0; } h2 { font-size: 1.15rem; margin: 2em 0 .4em; }
.notice { border-left: 4px solid var(--driver); padding: .35em .8em; background: var(--panel); font-weight: 600; }
.faint, figcaption { color: var(--faint); } figure { margin: 0; overflow-x: auto; } figcaption { margin-top: .4em; font-size: .9rem; }
.cards { display: flex; gap: 1rem; flex-wrap: wrap; } .card { background: var(--panel); border-radius: 8px; padding: .8em 1.2em; flex: 1; min-width: 15rem; }
.card b { font-size: 1.9rem; font-variant-numeric: tabular-nums; } .card p { margin: .2em 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; } th, td { padding: .28em .6em; text-align: right; border-bottom: 1px solid var(--line); } th { color: var(--faint); font-weight: 500; }
th:first-child, td:first-child, td.left, th.left { text-align: left; } .dot { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .5em; } .scroll { overflow-x: auto; }
.dot.node { background: var(--node); } .dot.driver { background: var(--driver); } .dot.toolkit { background: var(--toolkit); } .dot.plugin { background: var(--plugin); } .dot.proof { background: var(--proof); } .dot.workload { background: var(--workload); }
</style>
</head>
<body>
{{range .Notices}}<p class="notice">{{.}}</p>
{{end}}<h1>Time to GPU</h1>
<p class="faint">From the moment at which GPUs are asked for, by the clock of the machine that measured.</p>
<div class="cards">
{{range $i, $r := .Reports}}<div class="card">
<p>{{letter $i (len $.Reports)}}{{$r.Stack}} · test {{$r.Test}}</p>
{{with $r.Totals}}<p><b>{{sec .P50}} s</b> in the middle of {{.N}} samples</p>
<p class="faint">p95 {{sec .P95}} s · fastest {{sec .Min}} s · slowest {{sec .Max}} s</p>{{end}}
<p class="faint">{{$r.Began.UTC.Format "2006-01-02 15:04 UTC"}} · Kubernetes {{$r.Cluster.Version}} · {{nodes $r.Cluster.Nodes}} · kubelet {{$r.Cluster.Kubelet}} · {{$r.Cluster.Runtime}} · {{$r.Cluster.System}} · Linux {{$r.Cluster.Kernel}}</p>
{{if $r.Ended}}<p><strong>Partial: {{$r.Ended}}</strong></p>{{end}}</div>
{{end}}</div>
{{if .Comparisons}}<h2>Side by side</h2>
<div class="scroll"><table>
<tr><th>from</th><th class="left">to</th><th>A p50</th><th>p95</th><th>B p50</th><th>p95</th><th>pairs</th><th>B/A</th><th>95 % interval</th><th class="left">verdict</th></tr>
{{range .Comparisons}}<tr><td>{{title .From}}</td><td class="left">{{title .To}}</td><td>{{sec .A.P50}}</td><td>{{sec .A.P95}}</td><td>{{sec .B.P50}}</td><td>{{sec .B.P95}}</td><td>{{.Pairs}}</td><td>{{ratio .Ratio}}</td><td>{{with .Interval}}{{ratio .Low}}–{{ratio .High}}{{else}}–{{end}}</td><td class="left">{{.Verdict}}</td></tr>
{{end}}</table></div>
<p class="faint">The ratio is the median of samples with the same number, one of each stack; the interval holds it with a probability of 95 %, whatever the distribution.</p>
{{end}}{{if .Waterfall}}<h2>One sample, step by step</h2>
<figure>{{.Waterfall}}<figcaption>The sample in the middle{{if gt (len .Reports) 1}} of each{{end}}. A bar begins when the last of the steps before it has ended. Right: seconds since GPUs were asked for, and what the step added.</figcaption></figure>
<h2>What each step took</h2>
<figure>{{.Spread}}<figcaption>A point is one node in one sample; the long mark is the median, the short one p95.</figcaption></figure>
{{end}}{{range $i, $r := .Reports}}<h2>{{letter $i (len $.Reports)}}{{$r.Stack}}</h2>
<div class="scroll"><table>
<tr><th>step</th><th>after p50</th><th>p95</th><th>max</th><th>took p50</th><th>p95</th><th>max</th><th>share</th></tr>
{{range $r.Rows}}<tr><td><span class="dot {{group .Step}}"></span>{{title .Step}}{{late .Late}}</td><td>{{sec .At.P50}}</td><td>{{sec .At.P95}}</td><td>{{sec .At.Max}}</td><td>{{sec .Took.P50}}</td><td>{{sec .Took.P95}}</td><td>{{sec .Took.Max}}</td><td>{{if aside .Step}}–{{else}}{{share .Share}}{{end}}</td></tr>
{{end}}</table></div>
{{range $r.Samples}}{{if ne .Outcome "complete"}}<p>Sample {{.Number}} is not counted: {{.Outcome}}: {{.Reason}}</p>
{{else if .WarmUp}}<p class="faint">Sample {{.Number}} is not counted, as it came first: {{sec .Total}} s</p>
{{end}}{{$n := .Number}}{{range .Gaps}}<p>Sample {{$n}}: the API server was away from {{sec .From}} s to {{sec .To}} s.</p>
{{end}}{{end}}{{range $r.Jumps}}<p>The time of day was set by {{sec .By}} s; no figure depends on it.</p>
{{end}}{{range $operand, $images := $r.Images}}<p class="faint">{{$operand}}: {{range $images}}<code>{{.}}</code> {{end}}</p>
{{end}}{{end}}<h2>What shows each step</h2>
<div class="scroll"><table>
{{range .Steps}}<tr><td><span class="dot {{group .ID}}"></span>{{.Title}}</td><td class="left">{{.From}}</td></tr>
{{end}}</table></div>
</body>
</html>
`))
