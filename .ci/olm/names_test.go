package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// NVIDIA's operator may run in the same cluster, and in the same namespace. The lifecycle manager
// names the roles after the ClusterServiceVersion.
func TestNamesDoNotMeetThoseOfNVIDIAsOperator(t *testing.T) {
	data, err := os.ReadFile("../../deployments/names.yaml")
	require.NoError(t, err)
	var names struct {
		NVIDIAs []string
		Shared  map[string]string
	}
	require.NoError(t, yaml.Unmarshal(data, &names))
	files, err := makeFiles(deployments, deployments+"/"+operatorManifest)
	require.NoError(t, err)
	for path, text := range files {
		if !strings.HasPrefix(path, "manifests/") {
			continue
		}
		var o object
		require.NoError(t, yaml.Unmarshal(text, &o), path)
		kind, name := o["kind"].(string), at(o, "metadata")["name"].(string)
		require.True(t, strings.HasPrefix(name, "gpuready") || names.Shared[kind+" "+name] != "", "%s %s", kind, name)
	}
	install := at(manifest(t, "gpuready.clusterserviceversion.yaml"), "spec", "install", "spec")
	for key, field := range map[string]string{"deployments": "name", "permissions": "serviceAccountName", "clusterPermissions": "serviceAccountName"} {
		for _, one := range install[key].([]any) {
			name := one.(object)[field].(string)
			require.False(t, slices.ContainsFunc(names.NVIDIAs, func(s string) bool { return strings.HasPrefix(name, s) }), "%s %s", key, name)
		}
	}
}
