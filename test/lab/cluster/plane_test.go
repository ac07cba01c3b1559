package cluster

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/folder"
	"github.com/gpuready/gpuready/test/lab/golden"
)

func TestControlPlanesArguments(t *testing.T) {
	var b strings.Builder
	for _, p := range planePrograms(&folder.Folder{Path: "/clusters/test"}, planeOptions{Admission: []string{"OwnerReferencesPermissionEnforcement"}, Audit: "system:serviceaccounts"}, func(name string) string { return "/bin/" + name }) {
		b.WriteString(p.Path + " > " + p.Log + "\n")
		for _, arg := range p.Args {
			b.WriteString("  " + arg + "\n")
		}
	}
	golden.Require(t, "testdata/plane.txt", b.String())
}

func TestControlPlanesKeysAreInTheFolder(t *testing.T) {
	t.Setenv("GPUREADY_CLUSTERS", t.TempDir())
	f, err := folder.Claim("a", nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Release()) }()
	p, err := newPlane(f)
	require.NoError(t, err)
	require.NoError(t, p.writeKeys())
	for _, program := range planePrograms(f, p.planeOptions, func(name string) string { return name }) {
		for _, arg := range program.Args {
			if name, value, _ := strings.Cut(arg, "="); strings.HasSuffix(name, "-file") || strings.HasSuffix(name, "kubeconfig") {
				require.FileExists(t, value, "%s %s", program.Name, name)
			}
		}
	}
	require.NoError(t, p.writeAdmin("https://127.0.0.1:1"))
	require.FileExists(t, p.Kubeconfig)
}
