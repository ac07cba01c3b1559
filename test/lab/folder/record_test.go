package folder

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClustersAreFoundByOthers(t *testing.T) {
	t.Setenv("GPUREADY_CLUSTERS", t.TempDir())
	for _, name := range []string{"a", "../a"} {
		_, err := FindRecord(name)
		require.ErrorIs(t, err, ErrNotUp)
	}
	f, err := Claim("a", nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Release()) }()
	r, err := FindRecord("a")
	require.NoError(t, err)
	require.Zero(t, r.Process, "it comes up")
	require.ErrorContains(t, r.End(), "still comes up")

	written := Record{Name: "a", Process: os.Getpid(), Dir: f.Path, Nodes: []NodeRecord{{Name: "n1", IP: "10.88.1.1"}}}
	require.NoError(t, written.Write())
	r, err = FindRecord("a")
	require.NoError(t, err)
	require.Equal(t, written, r)
	require.Equal(t, []string{"a"}, ListNames())

	require.NoError(t, os.WriteFile(f.Log("n1-kubelet"), nil, 0o600))
	file, err := r.Log("n1/kubelet")
	require.NoError(t, err)
	require.Equal(t, f.Log("n1-kubelet"), file)
	_, err = r.Log("kublet")
	require.ErrorContains(t, err, "there are n1-kubelet")
}

func TestAClusterThatWasKilledIsNotUp(t *testing.T) {
	t.Setenv("GPUREADY_CLUSTERS", t.TempDir())
	dead := PathOf("dead")
	require.NoError(t, os.MkdirAll(dead, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dead, "lock"), nil, 0o600)) // which nobody holds
	_, err := FindRecord("dead")
	require.ErrorIs(t, err, ErrNotUp)
	require.ErrorContains(t, err, "it was killed")
	require.Empty(t, ListNames())
}
