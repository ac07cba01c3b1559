package report

import (
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/provision/step"
)

// Sizes of pictures, in pixels.
const (
	pictureWidth = 920
	labelWidth   = 190
	valueWidth   = 150
	rowHeight    = 26
	axisHeight   = 30
)

// plotWidth is the width of the plot area, in pixels.
const plotWidth = pictureWidth - labelWidth - valueWidth

// stepClass returns the CSS class of a step, which sets its colour.
func stepClass(id step.ID) string {
	switch id {
	case step.Asked, step.Registered, step.Ready, step.Labelled:
		return "node"
	case step.DriverScheduled, step.DriverPulled, step.DriverStarted, step.DriverReady:
		return "driver"
	case step.ToolkitReady:
		return "toolkit"
	case step.PluginReady, step.Capacity, step.Allocatable:
		return "plugin"
	case step.Validated:
		return "proof"
	}
	return "workload"
}

// style is the style sheet of pictures and of the page. Its colours are distinguishable on
// light and dark ground, also with red-green colour blindness.
const style = `
:root { color-scheme: light dark; --ink: #1c2024; --faint: #626b75; --line: #d9dee4; --ground: #ffffff; --panel: #f6f8fa;
  --node: #6e7781; --driver: #b35900; --toolkit: #7a5af8; --plugin: #0a7d6c; --proof: #9a7b00; --workload: #1f6feb; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --faint: #9aa5b1; --line: #30373f; --ground: #0f1419; --panel: #171d24;
  --node: #8b949e; --driver: #f0883e; --toolkit: #a78bfa; --plugin: #2dbfa6; --proof: #d8b11e; --workload: #58a6ff; } }
svg { font: 12px system-ui, sans-serif; } svg text { fill: var(--ink); } svg .faint { fill: var(--faint); } svg .grid { stroke: var(--line); }
svg .ground { fill: var(--ground); } svg .end { text-anchor: end; } svg .middle { text-anchor: middle; }
.node { fill: var(--node); } .driver { fill: var(--driver); } .toolkit { fill: var(--toolkit); } .plugin { fill: var(--plugin); } .proof { fill: var(--proof); } .workload { fill: var(--workload); }
svg .b { opacity: .55; } svg circle { opacity: .45; } svg .mark { stroke: var(--ink); stroke-width: 2; } svg .mark95 { stroke: var(--faint); stroke-width: 1.5; }
`

// picture builds an SVG.
type picture struct {
	strings.Builder
	most float64 // seconds at the right end of the plot
}

func (p *picture) x(seconds float64) float64 { return labelWidth + plotWidth*seconds/p.most }

func (p *picture) text(x, y float64, class, text string) {
	fmt.Fprintf(p, `<text x="%.1f" y="%.1f" class="%s">%s</text>`+"\n", x, y, class, html.EscapeString(text))
}

// drawAxis draws the seconds along the top, and vertical grid lines.
func (p *picture) drawAxis(y, height float64) {
	unit := gridDistance(p.most)
	for s := 0.0; s <= p.most*1.0001; s += unit {
		fmt.Fprintf(p, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" class="grid"/>`+"\n", p.x(s), p.x(s), y+axisHeight-8, y+height)
		p.text(p.x(s), y+axisHeight-14, "faint middle", fmt.Sprintf("%g s", math.Round(s*1000)/1000))
	}
}

// gridDistance returns a round distance that gives about six grid lines.
func gridDistance(most float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(most/6)))
	for _, factor := range []float64{1, 2, 5, 10} {
		if most/(unit*factor) <= 8 {
			return unit * factor
		}
	}
	return unit * 10
}

// openSVG writes the opening tag of a stand-alone SVG.
func openSVG(b *strings.Builder, height float64, title string) {
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" width="%d" height="%.0f" role="img" aria-label="%s">`+"\n",
		pictureWidth, height, pictureWidth, height, html.EscapeString(title))
}

// stepsOf returns the steps that at least one of the timelines reached, in order.
func stepsOf(lines []step.Timeline) []step.Step {
	var all []step.Step
	for _, s := range step.Steps() {
		if s.ID != step.Asked && slices.ContainsFunc(lines, func(l step.Timeline) bool {
			r, ok := l.Find(s.ID)
			return ok && !r.Before
		}) {
			all = append(all, s)
		}
	}
	return all
}

// drawWaterfall draws one timeline of each report. Each step is a bar, from the end of the step
// before it to its own end.
func drawWaterfall(names []string, lines []step.Timeline) string {
	steps := stepsOf(lines)
	most := 0.1
	for _, l := range lines {
		for _, r := range l.Steps {
			most = max(most, r.At)
		}
	}
	p := &picture{most: most}
	row := float64(rowHeight)
	if len(lines) > 1 {
		row = 18*float64(len(lines)) + 8
	}
	height := axisHeight + row*float64(len(steps)) + 8
	openSVG(&p.Builder, height, "when each step was taken: "+strings.Join(names, ", "))
	p.drawAxis(0, height-4)
	for i, s := range steps {
		y := axisHeight + row*float64(i)
		p.text(0, y+row/2+4, "", s.Title)
		for j, l := range lines {
			r, ok := l.Find(s.ID)
			if !ok || r.Before {
				continue
			}
			bar := (row - 8) / float64(len(lines))
			top := y + 4 + bar*float64(j)
			fmt.Fprintf(p, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="2" class="%s %s"><title>%s</title></rect>`+"\n", p.x(r.At-r.Took), top, max(p.x(r.At)-p.x(r.At-r.Took), 1.5), bar-2,
				stepClass(s.ID), reportClass(j), html.EscapeString(fmt.Sprintf("%s: %s after %.2f s, took %.2f s", names[j], s.Title, r.At, r.Took)))
			p.text(labelWidth+plotWidth+8, top+bar/2+3, "", fmt.Sprintf("%s%.1f s  +%.1f", reportLetter(j, len(lines)), r.At, r.Took))
		}
	}
	p.WriteString("</svg>\n")
	return p.String()
}

// reportClass returns the CSS class of the j-th report.
func reportClass(j int) string {
	if j == 1 {
		return "b"
	}
	return "a"
}

// reportLetter returns the letter that stands for the j-th of several reports; "" for a single one.
func reportLetter(j, of int) string {
	if of < 2 {
		return ""
	}
	return string(rune('A'+j)) + " "
}

// drawSpread draws the time of each step in all samples: a point for each sample, marks at the
// median and at p95.
func drawSpread(reports []*Report) string {
	var lines []step.Timeline
	for _, r := range reports {
		lines = append(lines, r.timelines()...)
	}
	steps := stepsOf(lines)
	most := 0.1
	for _, l := range lines {
		for _, r := range l.Steps {
			most = max(most, r.Took)
		}
	}
	p := &picture{most: most}
	row := rowHeight * float64(len(reports))
	height := axisHeight + row*float64(len(steps)) + 8
	openSVG(&p.Builder, height, "how long each step took in each sample")
	p.drawAxis(0, height-4)
	for i, s := range steps {
		y := axisHeight + row*float64(i)
		p.text(0, y+row/2+4, "", s.Title)
		for j, r := range reports {
			p.drawPoints(y+rowHeight*(float64(j)+0.5), s.ID, r, reportLetter(j, len(reports)))
		}
	}
	p.WriteString("</svg>\n")
	return p.String()
}

func (p *picture) drawPoints(y float64, id step.ID, r *Report, name string) {
	var took []float64
	for _, l := range r.timelines() {
		if reached, ok := l.Find(id); ok && !reached.Before {
			took = append(took, reached.Took)
		}
	}
	if len(took) == 0 {
		return
	}
	for i, t := range took {
		fmt.Fprintf(p, `<circle cx="%.1f" cy="%.1f" r="3.5" class="%s"/>`+"\n", p.x(t), y+float64(i%5-2), stepClass(id))
	}
	d := Distribute(took)
	fmt.Fprintf(p, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" class="mark"/>`+"\n", p.x(d.P50), p.x(d.P50), y-9, y+9)
	fmt.Fprintf(p, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" class="mark95"/>`+"\n", p.x(d.P95), p.x(d.P95), y-6, y+6)
	p.text(labelWidth+plotWidth+8, y+4, "", fmt.Sprintf("%s%.1f s, p95 %.1f", name, d.P50, d.P95))
}

// SVG writes the waterfall of the typical sample as a stand-alone file.
func (r *Report) SVG(w io.Writer) error {
	line, ok := r.Typical()
	if !ok {
		return fmt.Errorf("no sample of %s counts: there is nothing to draw", r.Stack)
	}
	inner := drawWaterfall([]string{r.Stack}, []step.Timeline{line})
	inner = strings.TrimSuffix(inner[strings.IndexByte(inner, '\n')+1:], "</svg>\n")
	head := []string{fmt.Sprintf("%s, test %s, the middle one of %d samples, %s", r.Stack, r.Test, len(r.Counted()), r.Began.UTC().Format("2006-01-02"))}
	if r.Notice != "" {
		head = append([]string{r.Notice}, head...)
	}
	top := 20*len(head) + 14
	height := float64(top+axisHeight+rowHeight*len(stepsOf([]step.Timeline{line}))) + 20
	var b strings.Builder
	openSVG(&b, height, head[0])
	fmt.Fprintf(&b, "<style>%s</style>\n<rect width=\"100%%\" height=\"100%%\" class=\"ground\"/>\n<g transform=\"translate(12 0) scale(.974)\">\n", style)
	for i, text := range head {
		fmt.Fprintf(&b, `<text x="0" y="%d">%s</text>`+"\n", 22+20*i, html.EscapeString(text))
	}
	fmt.Fprintf(&b, "<g transform=\"translate(0 %d)\">\n%s</g>\n</g>\n</svg>\n", top, inner)
	_, err := io.WriteString(w, b.String())
	return err
}
