package configure

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/change"
)

const config = "/etc/containerd/config.toml"

func newJournal(t *testing.T) (HostJournal, string) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "etc/containerd"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, config), []byte("version = 2\n"), 0o600))
	root, err := host.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	return HostJournal{Root: root, Dir: "/usr/local/nvidia/toolkit", BootID: "0f0e0d0c-0b0a-4909-8807-060504030201", Mutex: &sync.Mutex{}}, filepath.Join(dir, config)
}

func begin(t *testing.T, j HostJournal, data string) {
	t.Helper()
	changes, err := j.Plan([]change.Item{{Path: config, File: &change.File{Data: []byte(data), Mode: 0o600}}})
	require.NoError(t, err)
	require.NoError(t, j.Begin(changes, []byte("why")))
}

func content(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(data)
}

func TestTransactionIsCommittedOrUndone(t *testing.T) {
	j, file := newJournal(t)
	_, pending, err := j.Pending()
	require.NoError(t, err)
	require.False(t, pending)

	begin(t, j, "version = 2 # ours\n")
	note, pending, err := j.Pending()
	require.NoError(t, err)
	require.True(t, pending)
	require.Equal(t, "why", string(note))
	require.NoError(t, j.Undo())
	require.Equal(t, "version = 2\n", content(t, file))
	_, pending, err = j.Pending()
	require.NoError(t, err)
	require.False(t, pending)

	begin(t, j, "version = 2 # ours\n")
	require.NoError(t, j.Commit())
	require.NoError(t, j.Undo(), "there is nothing to undo")
	require.Equal(t, "version = 2 # ours\n", content(t, file))
}

func TestChangesOfOthersAreNotOverwritten(t *testing.T) {
	j, file := newJournal(t)
	begin(t, j, "version = 2 # ours\n")
	require.NoError(t, os.WriteFile(file, []byte("version = 2 # theirs\n"), 0o600))
	_, pending, err := j.Pending()
	require.ErrorContains(t, err, "changed by others")
	require.False(t, pending)
	require.Equal(t, "version = 2 # theirs\n", content(t, file))
	_, _, err = j.Pending()
	require.NoError(t, err, "it is said once")
}

func TestRefusalIsKeptUntilItIsRemoved(t *testing.T) {
	j, _ := newJournal(t)
	note, err := j.Refused()
	require.NoError(t, err)
	require.Nil(t, note)
	require.NoError(t, j.Refuse([]byte("{}")))
	note, err = j.Refused()
	require.NoError(t, err)
	require.Equal(t, "{}", string(note))
	require.NoError(t, j.Refuse(nil))
	require.NoError(t, j.Refuse(nil))
	note, err = j.Refused()
	require.NoError(t, err)
	require.Nil(t, note)
}

func TestUnfinishedRestoreIsRecorded(t *testing.T) {
	j, _ := newJournal(t)
	for range 2 {
		_, begun, err := j.Restoring()
		require.NoError(t, err)
		require.False(t, begun)
		require.NoError(t, j.BeginRestoring([]string{"nvidia", "gpu"}))
		own, begun, err := j.Restoring()
		require.NoError(t, err)
		require.True(t, begun)
		require.Equal(t, []string{"nvidia", "gpu"}, own)
		require.NoError(t, j.EndRestoring())
		require.NoError(t, j.EndRestoring())
	}
}
