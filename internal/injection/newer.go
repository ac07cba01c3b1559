package injection

import (
	"context"
	"time"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// WaitNewer returns nil when the toolkit has written its state since the given time, and
// ctx.Err() when ctx ends first. It is for a container that got nothing, with the start
// time of its process. An older state is no reason to create the container again: it
// would get nothing again, in a loop.
func WaitNewer(ctx context.Context, dir, boot string, than time.Time) error {
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
