package host

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/inotify"
)

func TestALockIsHeldByOneAndItsEndIsSeen(t *testing.T) {
	path := filepath.Join(t.TempDir(), DriverLock)
	first, err := TryLock(path)
	require.NoError(t, err)
	watcher, err := inotify.NewWhole()
	require.NoError(t, err)
	defer watcher.Close()
	require.NoError(t, watcher.Add(filepath.Dir(path)))
	_, err = TryLock(path)
	require.ErrorIs(t, err, ErrHeld)
	require.ErrorContains(t, err, "is locked by pid "+strconv.Itoa(os.Getpid())+" on ")
	require.NoError(t, first.Release(false))
	event, err := watcher.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, path, filepath.Join(event.Dir, event.Name))
	second, err := TryLock(path)
	require.NoError(t, err)
	require.NoError(t, second.Release(true))
	require.NoFileExists(t, path)
}
