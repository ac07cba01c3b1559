package operator

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/test/lab/cluster"
)

// bundle returns the folder from which the Operator Lifecycle Manager installs.
func bundle() string { return program("bundle/manifests") }

// TestBundle applies the policy that the bundle proposes, with the commands of the
// reference's documentation, and checks that the API server stores it unchanged.
func TestBundle(t *testing.T) {
	t.Parallel()
	s := up(t, cluster.Config{Bare: true})
	s.Kubectl(t, "create", "namespace", namespace)
	s.Kubectl(t, "create", "-f", program("olm/clusterserviceversions.json"), "-f", filepath.Join(bundle(), "nvidia.com_clusterpolicies.yaml"))
	s.served(t, "crd/clusterserviceversions.operators.coreos.com", "crd/clusterpolicies.nvidia.com")
	dir := t.TempDir()
	name := s.serviceVersion(t, dir)

	s.Shell(t, dir, "kubectl get csv -n "+namespace+" "+name+" -ojsonpath={.metadata.annotations.alm-examples} | jq '.[0]' > clusterpolicy.json")
	text, err := os.ReadFile(filepath.Join(dir, "clusterpolicy.json"))
	require.NoError(t, err)
	proposed := specOf(t, string(text))
	require.Contains(t, proposed, "driver")
	for _, dry := range []string{" --dry-run=server", ""} {
		out := s.Shell(t, dir, "kubectl apply --validate=strict -f clusterpolicy.json -o json"+dry)
		requireKept(t, proposed, specOf(t, out), "spec")
	}
	require.Equal(t, "clusterpolicy.nvidia.com/gpu-cluster-policy unchanged\n", s.Shell(t, dir, "kubectl apply -f clusterpolicy.json"))
}

// requireKept checks that each field still has the proposed value. Defaults from the schema may be
// added.
func requireKept(t *testing.T, proposed, applied any, path string) {
	t.Helper()
	fields, ok := proposed.(map[string]any)
	if !ok {
		require.Equal(t, proposed, applied, path)
		return
	}
	has, ok := applied.(map[string]any)
	require.True(t, ok, path)
	for field, value := range fields {
		require.Contains(t, has, field, path)
		requireKept(t, value, has[field], path+"."+field)
	}
}

// serviceVersion creates the bundle's ClusterServiceVersion in its target namespace, as the
// lifecycle manager does.
func (s *suite) serviceVersion(t *testing.T, dir string) (name string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(bundle(), "gpuready.clusterserviceversion.yaml"))
	require.NoError(t, err)
	var csv unstructured.Unstructured
	require.NoError(t, yaml.Unmarshal(text, &csv.Object))
	csv.SetNamespace(namespace)
	text, err = csv.MarshalJSON()
	require.NoError(t, err)
	file := filepath.Join(dir, "csv.json")
	require.NoError(t, os.WriteFile(file, text, 0o644))
	s.Kubectl(t, "create", "--validate=strict", "-f", file)
	return csv.GetName()
}

// specOf returns the spec of an object.
func specOf(t *testing.T, text string) map[string]any {
	t.Helper()
	var o struct{ Spec map[string]any }
	require.NoError(t, json.Unmarshal([]byte(text), &o), text)
	return o.Spec
}
