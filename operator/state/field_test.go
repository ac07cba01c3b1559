package state

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1/schematest"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
)

// elsewhere are the beginnings of fields that have their effect before objects are
// rendered, on which drivers there are, or after it, on how they are rolled.
var elsewhere = []string{
	"driver.upgradePolicy.", "driver.usePrecompiled", "driver.precompiledFallback", "operator.use_ocp_driver_toolkit",
	"driver.repository", "driver.image", "driver.version", "gfd.enabled", // no object is there for the labels
	"driver.simulated.enabled", "driver.simulated.repository", "driver.simulated.image", "driver.simulated.version",
	"driver.licensingConfig.configMapName",                                          // secretName wins over it
	"driver.livenessProbe.successThreshold", "driver.startupProbe.successThreshold", // Kubernetes takes nothing but 1
}

func TestEveryServedFieldHasAnEffect(t *testing.T) {
	var idle []string
	for _, field := range schematest.Served() {
		if slices.ContainsFunc(elsewhere, func(e string) bool { return field == e || strings.HasSuffix(e, ".") && strings.HasPrefix(field, e) }) {
			continue
		}
		in := Input{Cluster: cluster, Drivers: []driver.Choice{ubuntu()}, Injections: []fleet.Injection{fleet.NRI, fleet.Handler},
			Keys: map[string][]string{"repos": {"cuda.list"}, "certs": {"ca.crt"}, "modules": {"nvidia.conf"}}}
		spec := everything
		if strings.HasPrefix(field, "driver.simulated.") {
			spec, in.Drivers = simulatedEverything, []driver.Choice{simulated()}
		}
		with, without := without(t, spec, field)
		in.Policy = with
		before, _ := render(t, in)
		in.Policy = without
		after, _ := render(t, in)
		if reflect.DeepEqual(before, after) {
			idle = append(idle, field)
		}
	}
	require.Empty(t, idle)
}

// without returns the policy, and the same without the field, or with it false.
func without(t *testing.T, spec, field string) (*v1.ClusterPolicy, *v1.ClusterPolicy) {
	t.Helper()
	var object map[string]any
	require.NoError(t, yaml.Unmarshal([]byte("spec: "+spec), &object))
	path := strings.Split("spec."+field, ".")
	if path[len(path)-1] == "enabled" && field != "driver.rdma.enabled" && field != "dcgmExporter.hpcJobMapping.enabled" {
		require.NoError(t, unstructured.SetNestedField(object, true, path...))
	}
	decode := func() *v1.ClusterPolicy {
		var p v1.ClusterPolicy
		require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object, &p))
		return &p
	}
	with := decode()
	_, found, err := unstructured.NestedFieldNoCopy(object, path...)
	require.NoError(t, err)
	require.True(t, found, "the policy of this test does not set spec.%s", field)
	switch path[len(path)-1] {
	case "enabled":
		err = unstructured.SetNestedField(object, false, path...)
	case "updateStrategy":
		err = unstructured.SetNestedField(object, "OnDelete", path...)
	default:
		unstructured.RemoveNestedField(object, path...)
	}
	require.NoError(t, err)
	return with, decode()
}
