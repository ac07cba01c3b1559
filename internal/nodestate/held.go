package nodestate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// ErrUnheld means that the process that wrote the state has ended without updating
// it.
var ErrUnheld = errors.New("its writer has ended")

// holdName is the name of the FIFO beside the state.
const holdName = "alive"

// Hold marks the writer of the state in dir as alive until the returned Closer is
// closed. Call it after the first Write, and Write again afterwards: readers check
// whether the state is held only when it changes.
func Hold(dir string) (io.Closer, error) { return record.Hold(filepath.Join(dir, holdName)) }

// CheckHeld returns an error that wraps ErrUnheld if no process holds the state in dir now.
func CheckHeld(dir string) error {
	held, err := record.WatchHolder(filepath.Join(dir, holdName))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnheld, err)
	}
	return held.Close()
}

// WatchHeld is like WatchBoot for a state that its writer holds. If nobody holds it,
// deliver gets the last State and an error that wraps ErrUnheld.
func WatchHeld(ctx context.Context, dir, boot string, deliver func(State, error)) error {
	changed := make(chan struct{}, 1)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return record.Watch(ctx, []string{filepath.Join(dir, FileName)}, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	})
	group.Go(func() error {
		var h holder
		defer h.close()
		last := ""
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-changed:
			case <-h.ended:
				h.close()
			}
			// Check the holder first: the state read after that is the holder's, or
			// a later one.
			unheld := h.open(filepath.Join(dir, holdName))
			s, err := ReadBoot(dir, boot)
			if err == nil && unheld != nil {
				// Not wrapped: a missing FIFO must not look like an absent state.
				err = fmt.Errorf("%s: %w: %s", filepath.Join(dir, FileName), ErrUnheld, unheld.Error())
			}
			current := s.Time.String()
			if err != nil {
				current += err.Error()
			}
			if current != last {
				last = current
				deliver(s, err)
			}
		}
	})
	return group.Wait()
}

// holder watches whether a process holds a path. It is for use by one goroutine.
type holder struct {
	held  io.ReadCloser // nil: nobody
	ended chan struct{} // closed when nobody holds the path any more; nil: nobody does
}

// open starts watching the holder of path, unless that is under way. It returns an
// error if nobody holds it.
func (h *holder) open(path string) error {
	if h.held != nil {
		return nil
	}
	held, err := record.WatchHolder(path)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	h.held, h.ended = held, ended
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, held)
	}()
	return nil
}

// close stops watching and waits for the goroutine.
func (h *holder) close() {
	if h.held == nil {
		return
	}
	_ = h.held.Close()
	<-h.ended
	h.held, h.ended = nil, nil
}
