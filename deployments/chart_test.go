package deployments

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

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
