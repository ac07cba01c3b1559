package root

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPutCreatesExactlyTheEntry(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "f")
	for _, e := range []Entry{
		NewFile("f", 0o444, []byte("one")),
		NewFile("f", 0o444, []byte("two")),
		NewFile("f", 0o755, []byte("two")),
		{Path: "f", Kind: Link, Target: "elsewhere"},
		{Path: "f", Kind: Node, Mode: 0o666, Major: 195, Plain: true},
	} {
		// A left-over of a killed run must not be in the way.
		require.NoError(t, os.WriteFile(Temporary(path), []byte("half"), 0o400))
		require.False(t, e.is(path))
		require.NoError(t, e.Put(root))
		require.True(t, e.is(path))
		before, err := os.Lstat(path)
		require.NoError(t, err)
		require.NoError(t, e.Put(root))
		after, err := os.Lstat(path)
		require.NoError(t, err)
		require.True(t, os.SameFile(before, after), "it was there already")
	}
	entries, err := os.ReadDir(root)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func TestRemoveLeavesChangedEntries(t *testing.T) {
	root := t.TempDir()
	e := NewFile("f", 0o644, []byte("mine"))
	require.NoError(t, e.Put(root))
	require.NoError(t, os.WriteFile(filepath.Join(root, "f"), []byte("else"), 0o644))
	gone, err := e.Remove(root)
	require.NoError(t, err)
	require.False(t, gone)
	require.FileExists(t, filepath.Join(root, "f"))
	require.NoError(t, e.Put(root))
	gone, err = e.Remove(root)
	require.NoError(t, err)
	require.True(t, gone)
	gone, err = e.Remove(root)
	require.NoError(t, err)
	require.True(t, gone, "it is gone already")
}

func TestPutWithoutContentFails(t *testing.T) {
	root := t.TempDir()
	e := NewFile("f", 0o644, []byte("mine"))
	listed := e
	listed.content = nil
	require.ErrorContains(t, listed.Put(root), "only gpusim up can make it again")
	require.NoError(t, e.Put(root))
	require.NoError(t, listed.Put(root))
	require.Equal(t, []Entry{e}, Union([]Entry{listed}, []Entry{e}))
}

func TestOnlyEmptyUnneededDirectoriesAreRemoved(t *testing.T) {
	root := t.TempDir()
	needs := []Entry{NewFile("a/b/f", 0o644, nil), {Path: "d", Kind: Dir}}
	dirs := MissingDirs(root, append(needs, NewFile("a/c/f", 0o644, nil), NewFile("e/f", 0o644, nil)))
	require.Equal(t, []string{"a", "a/b", "d", "a/c", "e"}, dirs)
	for _, d := range dirs {
		require.NoError(t, Mkdir(filepath.Join(root, d)))
	}
	require.NoError(t, os.WriteFile(filepath.Join(root, "e/other"), nil, 0o600))
	require.Equal(t, []string{"a", "a/b", "d", "e"}, RemoveEmpty(root, dirs, needs))
	require.Empty(t, MissingDirs(root, needs))
}
