package nodestate

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStateIsHeldWhileItsWriterLives(t *testing.T) {
	const boot = "11111111-2222-3333-4444-555555555555"
	dir := filepath.Join(t.TempDir(), string(MPS))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	type word struct {
		s   State
		err error
	}
	words := make(chan word)
	ended := make(chan error, 1)
	go func() {
		ended <- WatchHeld(ctx, dir, boot, func(s State, err error) {
			select {
			case words <- word{s, err}:
			case <-ctx.Done():
			}
		})
	}()
	next := func() word {
		t.Helper()
		select {
		case w := <-words:
			return w
		case <-ctx.Done():
			t.Fatal("nothing is said")
			return word{}
		}
	}
	say := func(message string) {
		t.Helper()
		require.NoError(t, Write(dir, State{Component: MPS, BootID: boot, Phase: Ready, Message: message}))
	}
	require.True(t, IsAbsent(next().err))
	for _, life := range []string{"one", "two"} {
		say(life + " begins")
		w := next()
		require.ErrorIs(t, w.err, ErrUnheld)
		require.False(t, IsAbsent(w.err))
		require.Equal(t, life+" begins", w.s.Message)
		hold, err := Hold(dir)
		require.NoError(t, err)
		for _, message := range []string{life, life + " again"} {
			say(message)
			if w = next(); w.s.Message == life+" begins" { // an event of that write came late, when it was held
				require.NoError(t, w.err)
				w = next()
			}
			require.NoError(t, w.err)
			require.Equal(t, message, w.s.Message)
		}
		require.NoError(t, hold.Close())
		w = next()
		require.ErrorIs(t, w.err, ErrUnheld)
		require.Equal(t, life+" again", w.s.Message, "its last word")
	}
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}
