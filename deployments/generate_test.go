package deployments

import (
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deployments/agents"
	"github.com/gpuready/gpuready/internal/nodestate"
)

var update = flag.Bool("update", false, "write the generated files anew")

// requireCurrent compares a generated file with what is checked in.
func requireCurrent(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
	}
	require.True(t, want == read(t, path), "%s: run make generate", path)
}

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
	requireCurrent(t, "helm/gpuready/README.md", readme)
	requireCurrent(t, "helm/gpuready/templates/_generated.tpl", constants(map[string]string{
		"gpuready.feature": nodestate.FeaturePattern,
		"gpuready.choices": celList(nodestate.ChoicePrefixes),
		"gpuready.startup": celList(agents.StartupKeys()),
	}))
}

func TestManifestsAreCurrent(t *testing.T) {
	files, err := renderManifests()
	require.NoError(t, err)
	for name, want := range files {
		requireCurrent(t, "static/"+name, want)
	}
}

func TestDashboardIsCurrent(t *testing.T) {
	want, err := renderDashboard()
	require.NoError(t, err)
	requireCurrent(t, "monitoring/dashboard.json", string(want))
}
