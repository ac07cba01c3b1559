package state

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

var update = flag.Bool("update", false, "write the golden files anew")

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

// text formats the objects as kubectl would apply them, with the problems as comments.
func text(t *testing.T, objects []Object, problems []Problem) string {
	t.Helper()
	var b bytes.Buffer
	for _, p := range problems {
		b.WriteString("# " + string(p.State) + ": " + string(p.Reason) + ": " + p.Message + "\n")
	}
	for _, o := range objects {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o.Object)
		require.NoError(t, err)
		delete(fields, "status")
		data, err := yaml.Marshal(fields)
		require.NoError(t, err)
		b.WriteString("---\n")
		b.Write(data)
	}
	return b.String()
}

func TestRenderMatchesGoldenFiles(t *testing.T) {
	for name, in := range cases(t) {
		t.Run(name, func(t *testing.T) {
			objects, problems := render(t, in)
			have := text(t, objects, problems)
			file := filepath.Join("testdata", name+".yaml")
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(have), 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), have, "run go test -update, and look at what changed")
		})
	}
}
