package sample

import (
	"context"
	"errors"
	"time"

	"github.com/gpuready/gpuready/cuda-samples/driver"
)

// Watch times the work in the current device's default stream.
type Watch struct {
	start, end *driver.Event
}

// NewWatch returns a Watch for the current device.
func NewWatch(d *driver.Device) (*Watch, error) {
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

// Close destroys the events.
func (w *Watch) Close() error { return errors.Join(w.start.Close(), w.end.Close()) }

// Plan configures how often work is done: once to warm up, unless Cold, then Tries times,
// Repeats in a row each. The shortest try counts.
type Plan struct {
	Tries, Repeats int
	Cold           bool
}

// Best returns the time of one call of work: the shortest try, divided by Repeats. After each try,
// the warm-up included, check verifies the result; nil: nothing to check.
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
	took, err := w.end.Elapsed(w.start)
	if err != nil {
		return 0, err
	}
	return took, check()
}
