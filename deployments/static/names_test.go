package static

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// NVIDIA's operator may run in the same cluster, and in the same namespace.
func TestNamesDoNotMeetThoseOfNVIDIAsOperator(t *testing.T) {
	data, err := os.ReadFile("../names.yaml")
	require.NoError(t, err)
	var names struct {
		Namespaced, Operands, NVIDIAs []string
		Shared                        map[string]string
	}
	require.NoError(t, yaml.UnmarshalStrict(data, &names))
	found := map[string]bool{}
	for _, d := range documents(t) {
		at := d.kind + " " + d.name
		found[at] = true
		switch {
		case !slices.Contains(names.Namespaced, d.kind):
			require.True(t, d.name == "gpuready" || strings.HasPrefix(d.name, "gpuready-") || names.Shared[at] != "", "%s: %s", d.file, at)
		case d.kind != "DaemonSet" || !slices.Contains(names.Operands, d.name):
			require.False(t, slices.ContainsFunc(names.NVIDIAs, func(s string) bool { return strings.HasPrefix(d.name, s) }), "%s: %s", d.file, at)
		}
	}
	for at := range names.Shared {
		require.True(t, found[at], "nothing is named %s", at)
	}
	for _, name := range names.Operands {
		require.True(t, found["DaemonSet "+name], name)
	}
}
