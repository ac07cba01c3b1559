package state

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

var (
	update   = flag.Bool("update", false, "write the golden files anew")
	rendered = flag.String("rendered", "", "write what is rendered of all cases to this folder")
)

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
