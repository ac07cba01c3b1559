package injection

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/nodestate"
)

func TestOnlyAnotherWordOfTheToolkitIsNewer(t *testing.T) {
	given := &nodestate.Injection{Working: true, Generation: "a"}
	dir := filepath.Join(t.TempDir(), "toolkit")
	toolkit(t, dir, given, "")
	require.NoError(t, WaitNewer(t.Context(), dir, boot, time.Now().Add(-time.Hour)))

	for name, ahead := range map[string]time.Duration{"heard": 0, "heard before the clock was set back": time.Hour} {
		t.Run(name, func(t *testing.T) {
			than := time.Now().Add(ahead)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, WaitNewer(ctx, dir, boot, than), context.DeadlineExceeded)

			ended := make(chan error, 1)
			go func() { ended <- WaitNewer(t.Context(), dir, boot, than) }()
			for { // until it has looked: it follows what comes then
				select {
				case err := <-ended:
					require.NoError(t, err)
					return
				case <-time.After(time.Millisecond):
					toolkit(t, dir, given, "")
				}
			}
		})
	}
}
