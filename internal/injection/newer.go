package injection

import (
	"context"
	"time"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// Newer returns nil when the toolkit has said something since the given time,
// and ctx.Err() when ctx ends before. It is for a container that was given
// nothing, with the time when its process began: for what the toolkit had said
// by then it would be created anew in vain, and again and again.
func Newer(ctx context.Context, dir, boot string, than time.Time) error {
	newer := false
	var same time.Time // of the word that was heard already
	ctx, done := context.WithCancel(ctx)
	defer done()
	err := nodestate.WatchBoot(ctx, dir, boot, func(s nodestate.State, err error) {
		switch {
		case err != nil: // silent, or not readable: no word
		// The clock may have been set back meanwhile; what follows upon the same
		// word is another in any case.
		case s.Time.After(than), !same.IsZero() && !s.Time.Equal(same):
			newer = true
			done()
		default:
			same = s.Time
		}
	})
	if newer {
		return nil
	}
	return err
}
