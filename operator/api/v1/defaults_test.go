package v1_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/deployments"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

// findDefaults collects the defaults of a schema by field.
func findDefaults(schema map[string]any, field string, found map[string]any) {
	if value, ok := schema["default"]; ok {
		found[field] = value
	}
	properties, _ := schema["properties"].(map[string]any)
	for name, one := range properties {
		path := name
		if field != "" {
			path = field + "." + name
		}
		findDefaults(one.(map[string]any), path, found)
	}
	for key, suffix := range map[string]string{"items": "[]", "additionalProperties": ".*"} {
		if one, ok := schema[key].(map[string]any); ok {
			findDefaults(one, field+suffix, found)
		}
	}
}

// NVIDIA's operator may still run when our definition takes the place of its own. It must not read
// another value than before.
func TestDefaultsOfTheSchemaAreThoseOfNVIDIAsOperator(t *testing.T) {
	data, err := os.ReadFile("testdata/nvidia-defaults.yaml")
	require.NoError(t, err)
	var theirs map[string][]any
	require.NoError(t, yaml.Unmarshal(data, &theirs))
	var definition struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema struct {
						Properties map[string]map[string]any
					}
				}
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(deployments.ClusterPolicyCRD(), &definition))
	require.Len(t, definition.Spec.Versions, 1)
	ours := map[string]any{}
	findDefaults(definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"], "", ours)
	want := map[string]any{}
	for field, values := range theirs {
		if len(values) == 1 {
			want[field] = values[0]
		}
	}
	require.Equal(t, want, ours)
}

// digest matches the digests of objects, which hide what differs, and pointers.
var digest = regexp.MustCompile(`(?i)"[a-z./-]*digest":"[0-9a-f]+"|0x[0-9a-f]+`)

// Under NVIDIA's definition, or an older one of ours, the API server does not fill in what ours
// does: the operator does.
func TestAbsentFieldsHaveTheDefaultsOfTheSchema(t *testing.T) {
	for _, spec := range []string{
		// Programs get kernelModuleType, mps.root and config.default only if they are set. NVIDIA's
		// definition has the same defaults.
		`{driver: {kernelModuleType: auto}}`,
		`{operator: {}, daemonsets: {}, cdi: {}, mig: {}, node: {startupTaint: {}}, hostPaths: {}, sandboxWorkloads: {}, driver: {kernelModuleType: auto, upgradePolicy: {}}, toolkit: {}, devicePlugin: {mps: {root: /run/nvidia/mps}}, validator: {}, gfd: {}}`,
		`{driver: {kernelModuleType: auto, upgradePolicy: {autoUpgrade: true, drain: {enable: true}, podDeletion: {}, waitForCompletion: {podSelector: a=b}}}, node: {startupTaint: {manage: true}}}`,
		`{driver: {kernelModuleType: auto, usePrecompiled: true, repository: r, image: i, version: v}, devicePlugin: {config: {name: c}, mps: {root: /run/nvidia/mps}}}`,
		`{driver: {kernelModuleType: auto}, dcgm: {enabled: true, repository: r, image: i, version: v}, dcgmExporter: {enabled: true, repository: r, image: i, version: v}, migManager: {enabled: true, repository: r, image: i, version: v, config: {default: all-disabled}}}`,
	} {
		admitted, err := load(t).Admit(t.Context(), policy(spec))
		require.NoError(t, err, spec)
		var raw v1.ClusterPolicy
		require.NoError(t, yaml.Unmarshal(policy(spec), &raw))
		want, have := digest.ReplaceAllString(effects(t, admitted), ""), digest.ReplaceAllString(effects(t, &raw), "")
		same := 0
		for same < min(len(want), len(have)) && want[same] == have[same] {
			same++
		}
		part := func(text string) string { return text[max(0, same-200):min(len(text), same+200)] }
		require.Equal(t, part(want), part(have), spec)
	}
}
