package preflight

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/preflight/judge"
	"github.com/gpuready/gpuready/validator/probe"
)

// Patience with NVML: a preflight is bounded also where it hangs.
const (
	untilReady = 5 * time.Second
	untilEnded = 2 * time.Second
)

// watching keeps what the process that watches NVML tells.
type watching struct {
	stop  context.CancelFunc
	ended chan struct{}

	mu       sync.Mutex
	busy     bool
	readings []judge.Reading
	events   []gpu.Event
	unheard  string
}

// watch begins, and returns once the GPUs were read and events are heard, or when
// that takes too long.
func watch(ctx context.Context, node check.Node) *watching {
	ctx, stop := context.WithCancel(ctx)
	w := &watching{stop: stop, ended: make(chan struct{})}
	ready := make(chan struct{})
	var once sync.Once
	go func() {
		defer close(w.ended)
		err := probe.Watch(ctx, node, untilEnded, func(t probe.Told) {
			w.told(t)
			if t.Ready {
				once.Do(func() { close(ready) })
			}
		})
		w.mu.Lock()
		defer w.mu.Unlock()
		if err != nil && w.unheard == "" {
			w.unheard = err.Error()
		}
	}()
	select {
	case <-ready:
	case <-w.ended:
	case <-time.After(untilReady):
	}
	return w
}

func (w *watching) told(t probe.Told) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case t.Event != nil:
		w.events = append(w.events, *t.Event)
	case t.Unheard != "":
		w.unheard = t.Unheard
	case t.Conditions != nil || t.Errors != nil:
		w.readings = append(w.readings, judge.Reading{Loaded: w.busy, Conditions: t.Conditions, Errors: t.Errors})
	}
}

// loaded says whether samples are running.
func (w *watching) loaded(is bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy = is
}

// last is the condition that a GPU told last, nil where it told none.
func (w *watching) last(id gpu.UUID) *gpu.Condition {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range slices.Backward(w.readings) {
		if c, has := r.Conditions[id]; has {
			return &c
		}
	}
	return nil
}

// end reads once more and returns all that was told.
func (w *watching) end() ([]judge.Reading, []gpu.Event, string) {
	w.stop()
	<-w.ended
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.readings, w.events, w.unheard
}
