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

// ErrUnheld means that the process that wrote the state has ended and could not
// say so.
var ErrUnheld = errors.New("its writer has ended")

// holdName is beside the state.
const holdName = "alive"

// Hold says that the state in dir is that of a process which lives, for as long as
// what it returns is open. Call it after the first Write, and Write again then:
// whoever follows the state looks whether it is held when it changes.
func Hold(dir string) (io.Closer, error) { return record.Hold(filepath.Join(dir, holdName)) }

// WatchHeld is WatchBoot for a state that its writer holds: where it does not, the
// error is ErrUnheld, and the State is filled with its last word.
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
			// Who holds it is looked at first: what is read after that is its word, or
			// a later one.
			unheld := h.look(filepath.Join(dir, holdName))
			s, err := ReadBoot(dir, boot)
			if err == nil && unheld != nil {
				// Not wrapped: that nobody has ever held it is no state that is absent.
				err = fmt.Errorf("%s: %w: %s", filepath.Join(dir, FileName), ErrUnheld, unheld.Error())
			}
			said := s.Time.String()
			if err != nil {
				said += err.Error()
			}
			if said != last {
				last = said
				deliver(s, err)
			}
		}
	})
	return group.Wait()
}

// holder follows who holds a path. One goroutine uses it.
type holder struct {
	held  io.ReadCloser // nil: nobody
	ended chan struct{} // closed when nobody holds it any more; nil: nobody does
}

func (h *holder) look(path string) error {
	if h.held != nil {
		return nil
	}
	held, err := record.Held(path)
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

// close waits for the goroutine.
func (h *holder) close() {
	if h.held == nil {
		return
	}
	_ = h.held.Close()
	<-h.ended
	h.held, h.ended = nil, nil
}
