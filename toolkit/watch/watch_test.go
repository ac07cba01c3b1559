package watch

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/inotify"
)

func TestSetFailsAndKeepsItsTargetsWithoutDescriptors(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "run/cdi"), 0o755))
	root, err := host.Open(dir)
	require.NoError(t, err)
	defer root.Close()
	w, err := New(root)
	require.NoError(t, err)
	defer w.Close()
	targets := []Target{{"/run/cdi", "*.yaml", 1}, {"/run/nvidia/validations", "*", 2}}
	more, err := w.Set(targets)
	require.NoError(t, err)
	require.True(t, more)

	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}))
	_, err = w.Set(targets)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	require.True(t, inotify.Exhausted(err), "%v", err)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "run/cdi/a.yaml"), nil, 0o644))
	means, err := w.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, Meaning(1), means)
}
