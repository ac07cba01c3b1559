package apply

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
)

func newStore(t *testing.T) (*Store, string) {
	t.Helper()
	at := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(at, "etc/containerd"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(at, conf), []byte("version = 2\n"), 0o600))
	root, err := host.Open(at)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	return storeOf(root, "boot"), filepath.Join(at, conf)
}

func begin(t *testing.T, s *Store, data string) {
	t.Helper()
	changes, err := s.Plan([]Item{{Path: conf, File: &File{Data: []byte(data), Mode: 0o600}}})
	require.NoError(t, err)
	require.NoError(t, s.Begin(changes, []byte("why")))
}

func content(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(data)
}

func TestTransactionIsCommittedOrUndone(t *testing.T) {
	s, file := newStore(t)
	_, pending, err := s.Pending()
	require.NoError(t, err)
	require.False(t, pending)

	begin(t, s, "version = 2 # ours\n")
	note, pending, err := s.Pending()
	require.NoError(t, err)
	require.True(t, pending)
	require.Equal(t, "why", string(note))
	require.NoError(t, s.Undo())
	require.Equal(t, "version = 2\n", content(t, file))
	_, pending, err = s.Pending()
	require.NoError(t, err)
	require.False(t, pending)

	begin(t, s, "version = 2 # ours\n")
	require.NoError(t, s.Commit())
	require.NoError(t, s.Undo(), "there is nothing to undo")
	require.Equal(t, "version = 2 # ours\n", content(t, file))
}

func TestChangesOfOthersAreNotOverwritten(t *testing.T) {
	s, file := newStore(t)
	begin(t, s, "version = 2 # ours\n")
	require.NoError(t, os.WriteFile(file, []byte("version = 2 # theirs\n"), 0o600))
	_, pending, err := s.Pending()
	require.ErrorContains(t, err, "changed by others")
	require.False(t, pending)
	require.Equal(t, "version = 2 # theirs\n", content(t, file))
	_, _, err = s.Pending()
	require.NoError(t, err, "it is said once")
}

func TestNoteIsKeptUntilItIsRemoved(t *testing.T) {
	s, _ := newStore(t)
	for range 2 {
		note, err := s.Note("refused.json")
		require.NoError(t, err)
		require.Nil(t, note)
		require.NoError(t, s.SetNote("refused.json", []byte("{}")))
		note, err = s.Note("refused.json")
		require.NoError(t, err)
		require.Equal(t, "{}", string(note))
		other, err := s.Note("restoring")
		require.NoError(t, err)
		require.Nil(t, other)
		require.NoError(t, s.SetNote("refused.json", nil))
		require.NoError(t, s.SetNote("refused.json", nil))
	}
}
