package kubelettest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/kubelettest"
)

func TestConfigMapIsReplacedAsAWhole(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "config")
	read := func() map[string]string {
		files := map[string]string{}
		names, err := filepath.Glob(filepath.Join(dir, "[^.]*"))
		require.NoError(t, err)
		for _, name := range names {
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			files[filepath.Base(name)] = string(text)
		}
		return files
	}
	for _, files := range []map[string]string{
		{"a": "1", "b": "1"},
		{"a": "2", "b": "1", "c": "1"},
		{"c": "2"},
	} {
		require.NoError(t, kubelettest.MountConfigMap(dir, files))
		require.Equal(t, files, read())
		generations, err := filepath.Glob(filepath.Join(dir, "..generation-*"))
		require.NoError(t, err)
		require.Len(t, generations, 1, "the one before is removed")
	}
	require.Error(t, kubelettest.MountConfigMap(filepath.Join(dir, "c"), nil), "a file is no folder")
}
