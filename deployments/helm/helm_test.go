package helm

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deployments/agents"
	"github.com/gpuready/gpuready/internal/nodestate"
)

var update = flag.Bool("update", false, "write what is generated anew")

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return data
}

func TestGeneratedFilesAreCurrent(t *testing.T) {
	table, err := Table(read(t, "gpuready/values.yaml"))
	require.NoError(t, err)
	readme, err := Readme(string(read(t, "gpuready/README.md")), table)
	require.NoError(t, err)
	for path, want := range map[string]string{
		"gpuready/README.md": readme,
		"gpuready/templates/_generated.tpl": constants(map[string]string{
			"gpuready.feature": nodestate.FeaturePattern,
			"gpuready.choices": celList(nodestate.ChoicePrefixes),
			"gpuready.startup": celList(agents.StartupKeys()),
		}),
	} {
		if *update {
			require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
		}
		require.True(t, want == string(read(t, path)), "%s: run make generate", path)
	}
}

func TestEachRightIsGivenForAReason(t *testing.T) {
	all, err := Rights()
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, r := range all {
		require.Contains(t, []string{"cluster", "operands", "lease", "default", "openshift", "crds", "cleanup"}, r.Where)
		require.NotEmpty(t, r.Verbs)
		for verb, why := range r.Verbs {
			require.NotEmpty(t, why, "%s: %s", r.Resources, verb)
			require.NotContains(t, []string{"*", "deletecollection", "bind", "escalate", "impersonate"}, verb)
			for _, resource := range r.Resources {
				key := r.Where + " " + r.Group + "/" + resource + " " + verb
				require.False(t, seen[key], "%s is given twice", key)
				seen[key] = true
			}
		}
	}
	// A right in a namespace adds nothing to the same right in the whole cluster.
	for key := range seen {
		if rest, is := bytes.CutPrefix([]byte(key), []byte("cluster ")); is {
			for _, where := range []string{"operands ", "lease ", "default ", "openshift "} {
				require.False(t, seen[where+string(rest)], "%s is given on the cluster, too", rest)
			}
		}
	}
}

func TestSecretsAreReadOnlyByName(t *testing.T) {
	all, err := Rights()
	require.NoError(t, err)
	for _, r := range all {
		for _, resource := range r.Resources {
			if resource == "secrets" {
				require.Equal(t, "operands", r.Where)
				require.Len(t, r.Verbs, 1)
				require.Contains(t, r.Verbs, "get", "who lists Secrets reads them all")
			}
		}
	}
}
