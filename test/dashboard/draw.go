package main

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const dashboardFile = "deployments/monitoring/dashboard.json"

// noData gives the reason for which a panel is empty in the recording.
var noData = map[string]string{
	"Layers not proven":                  "every layer of every node is proven",
	"Runtime not configured":             "every runtime is configured",
	"Pools without the driver asked for": "every pool gets its driver",
	"Devices in ResourceSlices":          "no node serves ResourceClaims",
	"Claims":                             "no node serves ResourceClaims",
	"Errors while publishing":            "no node serves ResourceClaims",
	"Nodes by how pods get their GPUs":   "the policy has no DRA driver",
}

// dashboard is the part of dashboard.json that is drawn.
type dashboard struct {
	Title  string
	Panels []panel
}

type panel struct {
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	FieldConfig              struct {
		Defaults  defaults
		Overrides []struct {
			Matcher    struct{ Options string }
			Properties []struct{ Value int } // the only property is a width
		}
	}
	Options struct{ Legend struct{ Placement string } }
	Targets []struct {
		Expr, LegendFormat string
		Instant            bool
	}
	Transformations []struct{ Options organization }
}

// defaults are the unit and the look of a panel's values.
type defaults struct {
	Unit       string
	Thresholds struct{ Steps []threshold }
	Custom     struct{ Stacking struct{ Mode string } }
	Mappings   []struct {
		Options map[string]struct{ Text, Color string }
	}
}

// organization hides columns of a table, and orders and names the others.
type organization struct {
	ExcludeByName map[string]bool
	IndexByName   map[string]int
	RenameByName  map[string]string
}

// threshold is the colour of values from Value on; a nil Value is the first one's.
type threshold struct {
	Color string
	Value *float64
}

// drawing is a panel as the page gets it.
type drawing struct {
	Type, Title, Unit string
	X, Y, W, H        int
	Beside, Stacked   bool              // the legend, and the lines
	Thresholds        []threshold       `json:",omitempty"`
	Colors            map[string]string `json:",omitempty"` // by value
	Series            []line            `json:",omitempty"`
	Columns           []string          `json:",omitempty"`
	Widths            []int             `json:",omitempty"` // of the columns; 0: what the others leave
	Rows              [][]string        `json:",omitempty"`
	Note              string            `json:",omitempty"` // why there is nothing
}

// line is a series of a panel: seconds since 1970 and values, or one value.
type line struct {
	Name          string
	Times, Values []float64
}

//go:embed page.html
var page string

// drawRecording writes dir/dashboard.html, with the data that Prometheus recorded in dir. It returns the
// titles of panels without data and without a reason for that.
func drawRecording(ctx context.Context, dir string) (empty []string, err error) {
	data, err := os.ReadFile(dashboardFile)
	if err != nil {
		return nil, fmt.Errorf("%w (run it in the project's folder)", err)
	}
	var d dashboard
	if err := json.Unmarshal(data, &d); err != nil {
		return nil, err
	}
	var s span
	recorded, err := os.ReadFile(filepath.Join(dir, "span.json"))
	if err != nil {
		return nil, fmt.Errorf("%w; make dashboard-picture records", err)
	}
	if err := json.Unmarshal(recorded, &s); err != nil {
		return nil, err
	}
	p, err := startPrometheus(ctx, dir, "")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	drawings, err := p.evaluate(ctx, d, s)
	if err != nil {
		return nil, err
	}
	for _, one := range drawings {
		if one.Note == "" && one.Type != "row" && len(one.Series)+len(one.Rows) == 0 {
			empty = append(empty, one.Title)
		}
	}
	return empty, writePage(dir, d.Title, s, drawings)
}

// evaluate executes the queries of each panel.
func (p *prometheusServer) evaluate(ctx context.Context, d dashboard, s span) ([]drawing, error) {
	var all []drawing
	for _, one := range d.Panels {
		made := one.layOut()
		for _, target := range one.Targets {
			found, err := p.query(ctx, expandVariables(target.Expr), s, !target.Instant)
			if err != nil {
				return nil, err
			}
			switch one.Type {
			case "table":
				var labels []string
				labels, made.Rows = tabulate(found, one.Transformations[0].Options)
				made.Columns, made.Widths = one.head(labels)
			default:
				made.Series = append(made.Series, lines(found, target.LegendFormat)...)
			}
		}
		if len(made.Series)+len(made.Rows) == 0 {
			made.Note = noData[one.Title]
		}
		all = append(all, made)
	}
	return all, nil
}

// expandVariables replaces Grafana's variables: all nodes, and a window of a minute.
func expandVariables(expr string) string {
	return strings.NewReplacer("$__rate_interval", "1m", "$node", ".*").Replace(expr)
}

// layOut returns the drawing of a panel, without data.
func (p panel) layOut() drawing {
	defaults, at := p.FieldConfig.Defaults, p.GridPos
	colors := map[string]string{}
	for _, m := range defaults.Mappings {
		for value, shown := range m.Options {
			colors[value] = shown.Color
		}
	}
	return drawing{
		Type: p.Type, Title: p.Title, Unit: defaults.Unit, X: at.X, Y: at.Y, W: at.W, H: at.H,
		Beside: p.Options.Legend.Placement == "right", Stacked: defaults.Custom.Stacking.Mode == "normal",
		Thresholds: defaults.Thresholds.Steps, Colors: colors,
	}
}

// head returns the titles of the columns of a table, and their widths.
func (p panel) head(labels []string) (titles []string, widths []int) {
	for _, label := range labels {
		title, width := cmp.Or(p.Transformations[0].Options.RenameByName[label], label), 0
		for _, o := range p.FieldConfig.Overrides {
			if o.Matcher.Options == title {
				width = o.Properties[0].Value
			}
		}
		titles, widths = append(titles, title), append(widths, width)
	}
	return titles, widths
}

// tabulate returns the rows of a table, and the labels that are its columns. The label Value is the value of
// a series.
func tabulate(found []series, shown organization) (labels []string, rows [][]string) {
	has := map[string]bool{"Value": !shown.ExcludeByName["Value"]}
	for _, s := range found {
		for label := range s.Metric {
			has[label] = !shown.ExcludeByName[label]
		}
	}
	for _, label := range slices.Sorted(maps.Keys(has)) {
		if has[label] {
			labels = append(labels, label)
		}
	}
	slices.SortStableFunc(labels, func(a, b string) int { return cmp.Compare(shown.IndexByName[a], shown.IndexByName[b]) })
	for _, s := range found {
		var row []string
		for _, label := range labels {
			if label == "Value" {
				row = append(row, fmt.Sprint(s.Value.value))
			} else {
				row = append(row, s.Metric[label])
			}
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, slices.Compare)
	return labels, rows
}

var placeholder = regexp.MustCompile(`\{\{ *(\w+) *\}\}`)

// lines returns the series of a chart with their names, in the order of these.
func lines(found []series, legend string) (all []line) {
	for _, s := range found {
		l := line{Name: placeholder.ReplaceAllStringFunc(legend, func(match string) string {
			return s.Metric[placeholder.FindStringSubmatch(match)[1]]
		})}
		values := s.Values
		if values == nil {
			values = []sample{s.Value}
		}
		for _, v := range values {
			if math.IsNaN(v.value) || math.IsInf(v.value, 0) {
				continue // such as a quantile of no observation: a gap
			}
			l.Times, l.Values = append(l.Times, v.seconds), append(l.Values, v.value)
		}
		if len(l.Values) > 0 {
			all = append(all, l)
		}
	}
	slices.SortFunc(all, func(a, b line) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// writePage writes the page, with uPlot, which draws Grafana's charts too.
func writePage(dir, title string, s span, drawings []drawing) error {
	script, err := os.ReadFile(filepath.Join(dir, "node_modules/uplot/dist/uPlot.iife.min.js"))
	if err != nil {
		return fmt.Errorf("%w; npm install --prefix %s uplot", err, dir)
	}
	style, err := os.ReadFile(filepath.Join(dir, "node_modules/uplot/dist/uPlot.min.css"))
	if err != nil {
		return err
	}
	data, err := json.Marshal(map[string]any{"title": title, "from": s.From.Unix(), "to": s.To.Unix(), "step": interval.Seconds(), "panels": drawings})
	if err != nil {
		return err
	}
	text := strings.NewReplacer("/*style*/", string(style), "/*uplot*/", string(script), "/*data*/null", string(data)).Replace(page)
	return os.WriteFile(filepath.Join(dir, "dashboard.html"), []byte(text), 0o644)
}
