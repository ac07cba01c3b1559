package main

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/cluster"
)

func TestMain(m *testing.M) {
	if exit, ran := cluster.Inside(os.Args[1:]); ran {
		os.Exit(exit)
	}
	os.Exit(m.Run())
}

// TestPanelsAreDrawnFromResults gives a chart and a table what Prometheus' API answers.
func TestPanelsAreDrawnFromResults(t *testing.T) {
	var found []series
	require.NoError(t, json.Unmarshal([]byte(`[
		{"metric": {"__name__": "m", "node": "n2", "gpu": "0"}, "values": [[10, "1"], [15, "2.5"]]},
		{"metric": {"__name__": "m", "node": "n1", "gpu": "3"}, "values": [[10, "NaN"], [15, "3"]]},
		{"metric": {"__name__": "m", "node": "n1", "gpu": "4"}, "values": [[15, "NaN"]]}]`), &found))
	all := lines(found, "{{node}} GPU {{gpu}}")
	require.Len(t, all, 2)
	require.Equal(t, line{Name: "n1 GPU 3", Times: []float64{15}, Values: []float64{3}}, all[0])
	require.Equal(t, line{Name: "n2 GPU 0", Times: []float64{10, 15}, Values: []float64{1, 2.5}}, all[1])

	found = nil
	require.NoError(t, json.Unmarshal([]byte(`[{"metric": {"pod": "p", "pool": "b"}, "value": [10, "3"]}, {"metric": {"pool": "a", "state": "done"}, "value": [10, "2"]}]`), &found))
	shown := organization{
		ExcludeByName: map[string]bool{"pod": true},
		IndexByName:   map[string]int{"pool": 0, "state": 1, "Value": 2},
		RenameByName:  map[string]string{"pool": "Pool", "state": "State", "Value": "Nodes"},
	}
	labels, rows := tabulate(found, shown)
	require.Equal(t, []string{"pool", "state", "Value"}, labels)
	require.Equal(t, [][]string{{"a", "done", "2"}, {"b", "", "3"}}, rows)

	var p panel
	require.NoError(t, json.Unmarshal([]byte(`{"fieldConfig": {"overrides": [
		{"matcher": {"id": "byName", "options": "State"}, "properties": [{"id": "custom.width", "value": 80}]}]}}`), &p))
	p.Transformations = append(p.Transformations, struct{ Options organization }{shown})
	titles, widths := p.head(labels)
	require.Equal(t, []string{"Pool", "State", "Nodes"}, titles)
	require.Equal(t, []int{0, 80, 0}, widths)

	shown.ExcludeByName["Value"] = true
	labels, _ = tabulate(found, shown)
	require.Equal(t, []string{"pool", "state"}, labels)
}

// TestReasonsAreOfPanels keeps the reasons for empty panels beside the panels.
func TestReasonsAreOfPanels(t *testing.T) {
	data, err := os.ReadFile("../../" + dashboardFile)
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(data, &d))
	titles := map[string]bool{}
	for _, p := range d.Panels {
		titles[p.Title] = true
		if p.Type != "row" {
			require.NotEmpty(t, p.Targets, p.Title)
			require.NotZero(t, p.GridPos.W, p.Title)
		}
	}
	for title := range noData {
		require.Contains(t, titles, title)
	}
}
