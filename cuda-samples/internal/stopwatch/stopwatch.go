// Package stopwatch times work on a device by the device's own clock.
package stopwatch

import (
	"context"
	"errors"
	"time"

	"github.com/gpuready/gpuready/cuda-samples/driver"
)

// Watch times what is put into the current device's default stream.
type Watch struct {
	start, end *driver.Event
}

// New makes a watch for a device that is current.
func New(d *driver.Device) (*Watch, error) {
	start, err := d.NewEvent()
	if err != nil {
		return nil, err
	}
	end, err := d.NewEvent()
	if err != nil {
		return nil, errors.Join(err, start.Close())
	}
	return &Watch{start, end}, nil
}

// Close gives the events back.
func (w *Watch) Close() error { return errors.Join(w.start.Close(), w.end.Close()) }

// Plan is how often work is done: once to warm up, unless Cold, then Tries times,
// of which the shortest counts, Repeats in a row each.
type Plan struct {
	Tries, Repeats int
	Cold           bool
}

// Best is the shortest time that work took. After each try, the one that warms up
// too, check looks at what it did; nil: nothing to check.
func (w *Watch) Best(ctx context.Context, p Plan, work, check func() error) (time.Duration, error) {
	if check == nil {
		check = func() error { return nil }
	}
	var best time.Duration
	if !p.Cold {
		if _, err := w.once(1, work, check); err != nil {
			return 0, err
		}
	}
	for try := range p.Tries {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		took, err := w.once(p.Repeats, work, check)
		if err != nil {
			return 0, err
		}
		if took /= time.Duration(p.Repeats); try == 0 || took < best {
			best = took
		}
	}
	return best, nil
}

func (w *Watch) once(repeats int, work, check func() error) (time.Duration, error) {
	if err := w.start.Record(nil); err != nil {
		return 0, err
	}
	for range repeats {
		if err := work(); err != nil {
			return 0, err
		}
	}
	if err := w.end.Record(nil); err != nil {
		return 0, err
	}
	if err := w.end.Synchronize(); err != nil {
		return 0, err
	}
	took, err := w.end.Since(w.start)
	if err != nil {
		return 0, err
	}
	return took, check()
}
