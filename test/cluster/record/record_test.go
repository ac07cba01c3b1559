package record

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/cluster/folder"
)

func TestClustersAreFoundByOthers(t *testing.T) {
	t.Setenv("GPUREADY_CLUSTERS", t.TempDir())
	for _, name := range []string{"a", "../a"} {
		_, err := Find(name)
		require.ErrorIs(t, err, ErrNotUp)
	}
	f, err := folder.Claim("a", nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Release()) }()
	r, err := Find("a")
	require.NoError(t, err)
	require.Zero(t, r.Process, "it comes up")
	require.ErrorContains(t, r.End(), "still comes up")

	written := Record{Name: "a", Process: os.Getpid(), Dir: f.Path, Nodes: []Node{{Name: "n1", IP: "10.88.1.1"}}}
	require.NoError(t, written.Write())
	r, err = Find("a")
	require.NoError(t, err)
	require.Equal(t, written, r)
	require.Equal(t, []string{"a"}, Names())

	require.NoError(t, os.WriteFile(f.Log("n1-kubelet"), nil, 0o600))
	file, err := r.Log("n1/kubelet")
	require.NoError(t, err)
	require.Equal(t, f.Log("n1-kubelet"), file)
	_, err = r.Log("kublet")
	require.ErrorContains(t, err, "there are n1-kubelet")
}

func TestAClusterThatWasKilledIsNotUp(t *testing.T) {
	t.Setenv("GPUREADY_CLUSTERS", t.TempDir())
	dead := folder.PathOf("dead")
	require.NoError(t, os.MkdirAll(dead, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dead, "lock"), nil, 0o600)) // which nobody holds
	_, err := Find("dead")
	require.ErrorIs(t, err, ErrNotUp)
	require.ErrorContains(t, err, "it was killed")
	require.Empty(t, Names())
}
