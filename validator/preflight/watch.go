package preflight

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/probe"
)

// Time limits for NVML, so that a preflight ends even if NVML hangs.
const (
	readyTimeout = 5 * time.Second
	endTimeout   = 2 * time.Second
)

// nvmlWatch collects the readings and events of the process that watches NVML.
type nvmlWatch struct {
	stop  context.CancelFunc
	ended chan struct{}

	mu       sync.Mutex
	loaded   bool // samples are running
	readings []Reading
	events   []gpu.Event
	unheard  string // why events are not received; "" if they are
}

// watchNVML starts the process. It returns once the GPUs were read and events are received, or
// when that takes too long.
func watchNVML(ctx context.Context, node check.Node) *nvmlWatch {
	ctx, stop := context.WithCancel(ctx)
	w := &nvmlWatch{stop: stop, ended: make(chan struct{})}
	ready := make(chan struct{})
	var once sync.Once
	go func() {
		defer close(w.ended)
		err := probe.Watch(ctx, node, endTimeout, func(t probe.Message) {
			w.record(t)
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
	case <-time.After(readyTimeout):
	}
	return w
}

func (w *nvmlWatch) record(t probe.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case t.Event != nil:
		w.events = append(w.events, *t.Event)
	case t.Unheard != "":
		w.unheard = t.Unheard
	case t.Conditions != nil || t.Errors != nil:
		w.readings = append(w.readings, Reading{Loaded: w.loaded, Conditions: t.Conditions, Errors: t.Errors})
	}
}

// setLoaded sets whether samples are running.
func (w *nvmlWatch) setLoaded(is bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loaded = is
}

// lastCondition returns the latest condition of a GPU, nil if there is none.
func (w *nvmlWatch) lastCondition(id gpu.UUID) *gpu.Condition {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range slices.Backward(w.readings) {
		if c, ok := r.Conditions[id]; ok {
			return &c
		}
	}
	return nil
}

// readingsSoFar returns the readings so far.
func (w *nvmlWatch) readingsSoFar() []Reading {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.readings)
}

// stopAndRead stops the process, after a last reading, and returns all readings and events,
// and why events were not received, "" if they were.
func (w *nvmlWatch) stopAndRead() ([]Reading, []gpu.Event, string) {
	w.stop()
	<-w.ended
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.readings, w.events, w.unheard
}
