package main

import (
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
		Defaults struct {
			Unit       string
			Thresholds struct{ Steps []threshold }
		}
	}
	Targets []struct {
		Expr, LegendFormat string
		Instant            bool
	}
	Transformations []struct {
		Options struct{ ExcludeByName map[string]bool }
	}
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
	Thresholds        []threshold `json:",omitempty"`
	Series            []line      `json:",omitempty"`
	Columns           []string    `json:",omitempty"`
	Rows              [][]string  `json:",omitempty"`
	Note              string      `json:",omitempty"` // why there is nothing
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
		defaults := one.FieldConfig.Defaults
		made := drawing{Type: one.Type, Title: one.Title, Unit: defaults.Unit, Thresholds: defaults.Thresholds.Steps, X: one.GridPos.X, Y: one.GridPos.Y, W: one.GridPos.W, H: one.GridPos.H}
		for _, target := range one.Targets {
			found, err := p.query(ctx, expandVariables(target.Expr), s, !target.Instant)
			if err != nil {
				return nil, err
			}
			switch one.Type {
			case "table":
				made.Columns, made.Rows = tabulate(found, one.excluded())
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

// excluded returns the columns that a table hides.
func (p panel) excluded() map[string]bool {
	hidden := map[string]bool{}
	for _, t := range p.Transformations {
		maps.Copy(hidden, t.Options.ExcludeByName)
	}
	return hidden
}

// tabulate returns the rows of a table: the labels of each series, and its value.
func tabulate(found []series, hidden map[string]bool) (columns []string, rows [][]string) {
	has := map[string]bool{}
	for _, s := range found {
		for label := range s.Metric {
			has[label] = !hidden[label]
		}
	}
	for _, label := range slices.Sorted(maps.Keys(has)) {
		if has[label] {
			columns = append(columns, label)
		}
	}
	for _, s := range found {
		var row []string
		for _, label := range columns {
			row = append(row, s.Metric[label])
		}
		if !hidden["Value"] {
			row = append(row, fmt.Sprint(s.Value.value))
		}
		rows = append(rows, row)
	}
	if !hidden["Value"] {
		columns = append(columns, "Value")
	}
	slices.SortFunc(rows, slices.Compare)
	return columns, rows
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
