// The dashboard for Grafana, monitoring/dashboard.json. Its panels are in panels.go and panels_agents.go.

package deployments

import (
	"encoding/json"
	"maps"
	"strings"
)

type object = map[string]any

// kind selects how a panel shows its series.
type kind int

const (
	chart  kind = iota // lines
	stack              // areas, one on the other: parts of a whole
	states             // a bar for each series that is 0 or 1, see panel.colors
	stat               // the last value as a number, see panel.colors
	table              // the labels of each series, and its last value if there is a column for it
)

// panel is one panel.
type panel struct {
	title, about string
	kind         kind
	unit         string // Grafana's
	width        int    // of 24
	expr         string
	legend       string    // of a series: "{{node}}"
	columns      []column  // of a table
	colors       [2]string // of a number that is 0, and of one that is not; of the states 0 and 1
}

// column is a column of a table. The label Value stands for the value of a series.
type column struct {
	label, title string
	width        int // in pixels; 0: what the others leave
}

// section is a row of the dashboard with the panels below it.
type section struct {
	title  string
	height int // of each panel
	panels []panel
}

var source = object{"type": "prometheus", "uid": "${source}"}

// renderDashboard returns dashboard.json.
func renderDashboard() ([]byte, error) {
	var panels []object
	y, id := 0, 0
	for _, s := range sections() {
		id++
		panels = append(panels, object{
			"id": id, "type": "row", "title": s.title, "collapsed": false, "panels": []object{},
			"gridPos": object{"x": 0, "y": y, "w": 24, "h": 1},
		})
		y++
		x := 0
		for _, p := range s.panels {
			id++
			if x+p.width > 24 {
				x, y = 0, y+s.height
			}
			o := p.render()
			o["id"], o["gridPos"] = id, object{"x": x, "y": y, "w": p.width, "h": s.height}
			panels = append(panels, o)
			x += p.width
		}
		y += s.height
	}
	data, err := json.MarshalIndent(object{
		"uid": "gpuready", "title": "gpuready", "tags": []string{"gpu", "kubernetes"}, "schemaVersion": 39, "version": 1, "editable": true,
		"time": object{"from": "now-6h", "to": "now"}, "refresh": "30s", "panels": panels,
		"templating": object{"list": []object{
			{"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"},
			{
				"name": "node", "label": "Node", "type": "query", "datasource": source, "refresh": 2, "sort": 1,
				"multi": true, "includeAll": true, "allValue": ".*", "current": object{"text": "All", "value": "$__all"},
				"query": object{"query": "label_values(" + plugin + "phase, node)", "refId": "node"},
			},
		}},
	}, "", "  ")
	return append(data, '\n'), err
}

// render returns the panel without its number and place.
func (p panel) render() object {
	types := map[kind]string{chart: "timeseries", stack: "timeseries", states: "state-timeline", stat: "stat", table: "table"}
	target := object{"refId": "A", "datasource": source, "expr": p.expr, "legendFormat": p.legend}
	if p.kind == stat || p.kind == table {
		target["instant"] = true
	}
	if p.kind == table {
		target["format"] = "table"
	}
	o := object{
		"type": types[p.kind], "title": p.title, "description": p.about, "datasource": source, "targets": []object{target},
		"fieldConfig": object{"defaults": p.renderDefaults(), "overrides": p.renderWidths()},
	}
	switch p.kind {
	case chart, stack:
		o["options"] = object{"legend": p.renderLegend(), "tooltip": object{"mode": "multi", "sort": "desc"}}
	case states:
		o["options"] = object{"showValue": "never", "rowHeight": 0.8, "legend": object{"showLegend": false}}
	case table:
		o["options"] = object{"sortBy": []object{{"displayName": p.columns[0].title, "desc": false}}}
		o["transformations"] = []object{{"id": "organize", "options": p.organize()}}
	}
	return o
}

// renderDefaults returns the unit, the range and the colours of the values.
func (p panel) renderDefaults() object {
	defaults := object{"unit": p.unit}
	if p.unit == count {
		defaults["decimals"] = 0
	}
	switch p.kind {
	case chart:
		defaults["min"], defaults["color"] = 0, object{"mode": "palette-classic"}
	case stack:
		defaults["min"], defaults["color"] = 0, object{"mode": "palette-classic"}
		defaults["custom"] = object{"fillOpacity": 30, "stacking": object{"mode": "normal", "group": "A"}}
	case stat:
		steps := []object{{"color": p.colors[0], "value": nil}, {"color": p.colors[1], "value": 1}}
		defaults["thresholds"] = object{"mode": "absolute", "steps": steps}
	case states:
		defaults["mappings"] = []object{{"type": "value", "options": object{
			"0": object{"text": "no", "color": p.colors[0], "index": 0}, "1": object{"text": "yes", "color": p.colors[1], "index": 1},
		}}}
	}
	return defaults
}

// renderLegend returns the legend of a chart. Where each GPU, pod or process has a series, it is a list
// beside the lines, with the last values; otherwise it is a line below them.
func (p panel) renderLegend() object {
	if strings.Count(p.legend, "{{") > 1 && p.width >= 8 {
		return object{
			"showLegend": true, "displayMode": "table", "placement": "right", "calcs": []string{"lastNotNull"},
			"sortBy": "Last *", "sortDesc": true,
		}
	}
	return object{"showLegend": true, "displayMode": "list", "placement": "bottom", "calcs": []string{}}
}

// renderWidths returns the widths of the columns.
func (p panel) renderWidths() []object {
	all := []object{}
	for _, c := range p.columns {
		if c.width > 0 {
			all = append(all, object{
				"matcher":    object{"id": "byName", "options": c.title},
				"properties": []object{{"id": "custom.width", "value": c.width}},
			})
		}
	}
	return all
}

// organize returns the options that hide the other columns, order these and name them.
func (p panel) organize() object {
	hidden := object{"Time": true, "Value": true}
	order, names := object{}, object{}
	for i, c := range p.columns {
		order[c.label], names[c.label] = i, c.title
	}
	maps.DeleteFunc(hidden, func(label string, _ any) bool { return order[label] != nil })
	return object{"excludeByName": hidden, "indexByName": order, "renameByName": names}
}
