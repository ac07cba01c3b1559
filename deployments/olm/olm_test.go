// Package olm tests the bundle for the Operator Lifecycle Manager, which .ci/olm
// generates.
package olm

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/operator/api/v1/schematest"
)

// csv is the part of the ClusterServiceVersion that the tests read.
type csv struct {
	Metadata struct{ Annotations map[string]string }
	Spec     struct {
		CustomResourceDefinitions struct {
			Owned []struct {
				Name            string
				SpecDescriptors []struct {
					Path        string
					Descriptors []string `json:"x-descriptors"`
				}
			}
		}
	}
}

func read(t *testing.T) csv {
	t.Helper()
	text, err := os.ReadFile("manifests/gpuready.clusterserviceversion.yaml")
	require.NoError(t, err)
	var c csv
	require.NoError(t, yaml.Unmarshal(text, &c))
	return c
}

// examples returns the policies of alm-examples.
func examples(t *testing.T) []json.RawMessage {
	t.Helper()
	var all []json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(read(t).Metadata.Annotations["alm-examples"]), &all))
	require.NotEmpty(t, all)
	return all
}

// The output of kubectl get csv … -ojsonpath={.metadata.annotations.alm-examples} | jq
// '.[0]' can be applied.
func TestExampleIsAPolicy(t *testing.T) {
	schema, err := schematest.Load()
	require.NoError(t, err)
	policy, err := schema.Admit(t.Context(), examples(t)[0])
	require.NoError(t, err)
	require.Equal(t, "gpu-cluster-policy", policy.Name)
}

func TestStaticExamplesArePolicies(t *testing.T) {
	schema, err := schematest.Load()
	require.NoError(t, err)
	files, err := filepath.Glob("../static/examples/clusterpolicy*.yaml")
	require.NoError(t, err)
	require.Len(t, files, 3)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		_, err = schema.Admit(t.Context(), text)
		require.NoError(t, err, file)
	}
}

func TestConsoleFieldsExistInThePolicy(t *testing.T) {
	text, err := os.ReadFile("manifests/nvidia.com_clusterpolicies.yaml")
	require.NoError(t, err)
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema map[string]any `json:"openAPIV3Schema"`
				}
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &crd))
	owned := read(t).Spec.CustomResourceDefinitions.Owned
	require.Len(t, owned, 1)
	checkbox := ""
	for _, d := range owned[0].SpecDescriptors {
		at := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
		for key := range strings.SplitSeq("spec."+d.Path, ".") {
			properties, _ := at["properties"].(map[string]any)
			require.Contains(t, properties, key, d.Path)
			at = properties[key].(map[string]any)
		}
		if d.Path == "driver.usePrecompiled" {
			checkbox = strings.Join(d.Descriptors, " ")
		}
	}
	require.Contains(t, checkbox, "booleanSwitch")
}
