package record

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHeldReaderEndsWithItsHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "alive")
	_, err := WatchHolder(path)
	require.ErrorIs(t, err, ErrUnheld)

	one, err := Hold(path)
	require.NoError(t, err)
	other, err := Hold(path) // a second program that starts while the first one ends
	require.NoError(t, err)
	held, err := WatchHolder(path)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { _, err := io.Copy(io.Discard, held); ended <- err }()
	require.NoError(t, one.Close())
	select {
	case err := <-ended:
		t.Fatal("it is held still", err)
	default:
	}
	require.NoError(t, other.Close())
	require.NoError(t, <-ended)
	require.NoError(t, held.Close())
	_, err = WatchHolder(path)
	require.ErrorIs(t, err, ErrUnheld)

	again, err := Hold(path)
	require.NoError(t, err)
	held, err = WatchHolder(path)
	require.NoError(t, err)
	go func() { _, err := io.Copy(io.Discard, held); ended <- err }()
	require.NoError(t, held.Close())
	require.Error(t, <-ended, "who has looked for long enough")
	require.NoError(t, again.Close())
}

func TestChildDoesNotInheritTheHold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "alive")
	mine, err := Hold(path)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "cat")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	require.NoError(t, mine.Close())
	_, err = WatchHolder(path)
	require.ErrorIs(t, err, ErrUnheld)
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait())
}

func TestHoldRefusesAnythingButAFIFO(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	held, err := Hold(at("alive"))
	require.NoError(t, err)
	defer func() { require.NoError(t, held.Close()) }()
	require.NoError(t, os.Symlink("alive", at("link")))
	require.NoError(t, os.WriteFile(at("file"), []byte("x"), 0o644))
	for _, name := range []string{"link", "file"} {
		_, err := WatchHolder(at(name))
		require.ErrorIs(t, err, ErrUnheld, name)
		_, err = Hold(at(name))
		require.ErrorContains(t, err, "hold "+at(name), name)
	}
}
