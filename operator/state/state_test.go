package state

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

var rendered = flag.String("rendered", "", "write what is rendered of all cases to this folder")

// policy returns a policy with the API server's defaults.
func policy(t testing.TB, spec string) *v1.ClusterPolicy {
	t.Helper()
	var p v1.ClusterPolicy
	require.NoError(t, yaml.UnmarshalStrict([]byte("spec: "+spec), &p))
	return &p
}

func render(t *testing.T, in Input) ([]Object, []Problem) {
	t.Helper()
	objects, problems, err := Render(in)
	require.NoError(t, err)
	return objects, problems
}

func TestNVIDIAsImagesAreReplacedByOurs(t *testing.T) {
	spec := &policy(t, `
  toolkit: {version: v1.17.5-ubuntu20.04}
  devicePlugin: {repository: registry.example/nvidia, image: k8s-device-plugin, version: v0.17.2}
  validator: {repository: registry.example, image: validator, version: v9}`).Spec
	require.Equal(t, []string{
		"devicePlugin.image: k8s-device-plugin is NVIDIA's, which is started in another way; gpuready/device-plugin:v1.2.3 is used. No action is needed; to name an image of ours, set repository, image and version",
		"toolkit.version: v1.17.5-ubuntu20.04 is NVIDIA's, which is started in another way; gpuready/toolkit:v1.2.3 is used. No action is needed; to name an image of ours, set repository, image and version",
	}, Replaced(spec, cluster))
}
