package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const deployments = "../../deployments"

// manifest returns one of the bundle's manifests.
func manifest(t *testing.T, name string) object {
	t.Helper()
	files, err := makeFiles(deployments, deployments+"/"+operatorManifest)
	require.NoError(t, err)
	var o object
	require.NoError(t, yaml.Unmarshal(files["manifests/"+name], &o))
	require.NotEmpty(t, o, name)
	return o
}

// The output of kubectl get csv … -ojsonpath={.metadata.annotations.alm-examples} | jq
// '.[0]' can be applied: deployments/static tests the example against the schema.
func TestExampleIsTheStaticOne(t *testing.T) {
	examples, err := read(deployments + "/static/examples/clusterpolicy.yaml")
	require.NoError(t, err)
	annotations := at(manifest(t, "gpuready.clusterserviceversion.yaml"), "metadata", "annotations")
	var proposed []object
	require.NoError(t, json.Unmarshal([]byte(annotations["alm-examples"].(string)), &proposed))
	require.Equal(t, examples, proposed)
	require.Equal(t, "gpu-cluster-policy", at(proposed[0], "metadata")["name"])
}

func TestConsoleFieldsExistInTheDefinitions(t *testing.T) {
	owned := at(manifest(t, "gpuready.clusterserviceversion.yaml"), "spec", "customresourcedefinitions")["owned"].([]any)
	require.Len(t, owned, 2)
	checkbox := ""
	for i, file := range []string{"nvidia.com_clusterpolicies.yaml", "nvidia.com_nvidiadrivers.yaml"} {
		versions := at(manifest(t, file), "spec")["versions"].([]any)
		schema := at(versions[0].(object), "schema", "openAPIV3Schema")
		require.Equal(t, versions[0].(object)["name"], owned[i].(object)["version"])
		for _, one := range owned[i].(object)["specDescriptors"].([]any) {
			d := one.(object)
			path, is := d["path"].(string), true
			level := schema
			for key := range strings.SplitSeq("spec."+path, ".") {
				level, is = at(level, "properties")[key].(object)
				require.True(t, is, path)
			}
			if path == "driver.usePrecompiled" {
				checkbox = d["x-descriptors"].([]any)[0].(string)
			}
		}
	}
	require.Contains(t, checkbox, "booleanSwitch")
}
