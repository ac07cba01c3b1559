// Package release tests releases: what is signed about them, what a changed release is refused for,
// and whether a release that was pulled and verified runs.
package release

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deployments/release/registry"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

func TestMain(m *testing.M) {
	if exit, ran := cluster.Inside(os.Args[1:]); ran {
		os.Exit(exit)
	}
	os.Exit(m.Run())
}

// tool returns the path of a program below bin/tools. The test is skipped without the programs.
func tool(t *testing.T, name string) string {
	t.Helper()
	bin := os.Getenv("GPUREADY_E2E")
	if bin == "" {
		t.Skip("needs the programs of make e2e-release, in the folder that GPUREADY_E2E names")
	}
	return filepath.Join(bin, "tools", name)
}

// serve starts a registry with a folder as its storage, until the test's end.
func serve(t *testing.T, storage string) string {
	t.Helper()
	r, err := registry.Start(t.Context(), registry.Config{Program: tool(t, "registry"), Storage: storage, Listen: "localhost:0"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Stop()) })
	return r.Host
}
