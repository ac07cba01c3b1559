package nodestate

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAWriteFaultChangesOnceAtItsBeginAndItsEnd(t *testing.T) {
	full := errors.New("no space left on device")
	var f WriteFault
	require.False(t, f.Record(nil))
	require.Zero(t, f.Delay())
	require.True(t, f.Record(full), "it begins")
	for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second} {
		require.Equal(t, want, f.Delay())
		require.False(t, f.Record(full))
	}
	require.True(t, f.Record(nil), "it ends")
	require.Zero(t, f.Delay())
	require.True(t, f.Record(full))
	require.Equal(t, time.Second, f.Delay())
}

func TestAnEmptyStateIsOneThatCouldNotBeWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), string(Toolkit))
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, FileName), nil, 0o644))
	_, err := ReadBoot(dir, "boot")
	require.ErrorIs(t, err, ErrUnwritten)
	require.ErrorIs(t, err, ErrInvalid)
	require.EqualError(t, err, filepath.Join(dir, FileName)+": not a valid state: it is empty, because its writer cannot write it; free space on the file system of "+
		dir+": df -h "+dir+", df -i "+dir)
}
