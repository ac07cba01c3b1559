package deployments

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/nodestate"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/test/lab/golden"
)

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(data)
}

func TestChartIsCurrent(t *testing.T) {
	table, err := valueTable([]byte(read(t, "helm/gpuready/values.yaml")))
	require.NoError(t, err)
	readme, err := fillReadme(read(t, "helm/gpuready/README.md"), table)
	require.NoError(t, err)
	golden.Require(t, "helm/gpuready/README.md", readme)
	golden.Require(t, "helm/gpuready/templates/_generated.tpl", renderDefinitions(map[string]string{
		"gpuready.feature": nodestate.FeaturePattern,
		"gpuready.choices": celList(nodestate.ChoicePrefixes),
		"gpuready.startup": celList(startupKeys()),
	}))
	var fields []ForeignValue
	for _, f := range v1.IgnoredFields() {
		one := ForeignValue{Key: f.Field, When: f.When, Why: f.Why}
		if f.Default != "" {
			one.Unless = []any{f.Default}
		}
		fields = append(fields, one)
	}
	ignored, err := ignoredFields(fields)
	require.NoError(t, err)
	golden.Require(t, "helm/gpuready/files/ignored-fields.yaml", ignored)
}

func TestManifestsAreCurrent(t *testing.T) {
	files, err := renderManifests()
	require.NoError(t, err)
	for name, want := range files {
		golden.Require(t, "static/"+name, want)
	}
}

func TestDashboardIsCurrent(t *testing.T) {
	want, err := renderDashboard()
	require.NoError(t, err)
	golden.Require(t, "monitoring/dashboard.json", want)
}
