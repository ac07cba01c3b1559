// Package gputest supports tests of GPU software. Source is a whole gpu.Source in
// memory, Node returns ready-made nodes, and Conformance is the suite that every
// gpu.Source passes.
package gputest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// Source is a gpu.Source whose GPUs are set by the test. All of its methods may be
// called concurrently.
type Source struct {
	mu        sync.Mutex
	state     gpu.Snapshot
	err       error               // the error of Snapshot
	watchErr  error               // the error of a new Watch
	end       error               // ends the running Watch
	unwatched map[gpu.UUID]string // GPUs that Watch cannot watch, and why
	queue     []gpu.Event         // for the running Watch
	watching  bool
	closed    bool
	changed   chan struct{} // capacity 1: queue, watchErr or closed changed
}

var errClosed = errors.New("gputest: the source is closed")

// New returns a Source with the given state.
func New(s gpu.Snapshot) *Source {
	return &Source{state: s.Sorted(), unwatched: map[gpu.UUID]string{}, changed: make(chan struct{}, 1)}
}

// Snapshot returns the present state, or the error given to Fail.
func (s *Source) Snapshot(ctx context.Context) (gpu.Snapshot, error) {
	if err := ctx.Err(); err != nil {
		return gpu.Snapshot{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return gpu.Snapshot{}, errClosed
	case s.err != nil:
		return gpu.Snapshot{}, s.err
	}
	return s.state.Clone(), nil
}

// Watch delivers the events that Emit, Set and the other methods cause while it runs.
func (s *Source) Watch(ctx context.Context, ready func(), deliver func(gpu.Event)) error {
	if err := s.startWatch(); err != nil {
		return err
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.watching, s.queue = false, nil
	}()
	if ready != nil {
		ready()
	}
	for {
		s.mu.Lock()
		queue, err := s.queue, s.end
		s.queue = nil
		if s.closed {
			err = errClosed
		}
		s.mu.Unlock()
		for _, event := range queue {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			deliver(event)
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.changed:
		}
	}
}

func (s *Source) startWatch() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return errClosed
	case s.watching:
		return errors.New("gputest: Watch is already running; one at a time")
	case s.watchErr != nil:
		return s.watchErr
	}
	s.watching, s.end = true, nil
	for _, d := range s.state.Devices {
		if why, ok := s.unwatched[d.UUID]; ok {
			s.emit(Event(gpu.EventUnwatched, d.UUID, why))
		}
	}
	return nil
}

// Close ends Watch and makes Snapshot fail.
func (s *Source) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.signal()
	return nil
}

// Set replaces the state. A Watch gets one event for each GPU that differs, or one for
// the whole node when GPUs came, went or moved or the driver differs.
func (s *Source) Set(next gpu.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(next)
}

// Update changes the state with a function, which must not call the Source; see Set.
func (s *Source) Update(change func(*gpu.Snapshot)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.state.Clone()
	change(&next)
	s.set(next)
}

// set is like Set, with s.mu held.
func (s *Source) set(next gpu.Snapshot) {
	old := s.state
	next = next.Sorted()
	s.state = next
	same := func(a, b gpu.Device) bool { return a.UUID == b.UUID && a.Index == b.Index }
	if old.Driver != next.Driver || !slices.EqualFunc(old.Devices, next.Devices, same) {
		s.emit(Event(gpu.EventChanged, "", "devices or driver changed"))
		return
	}
	for i, d := range next.Devices {
		if !d.Equal(old.Devices[i]) {
			s.emit(Event(gpu.EventChanged, d.UUID, "the device changed"))
		}
	}
}

// Emit delivers an event to the running Watch; without one it is lost, as with NVML. A
// zero Time becomes now.
func (s *Source) Emit(e gpu.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.emit(e)
}

// Fail makes Snapshot and each Watch, running or new, return err (wrap gpu.ErrNoDriver or one
// of its siblings). Fail(nil) makes them work again.
func (s *Source) Fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	s.failWatch(err)
}

// FailWatch makes each Watch, running or new, return err, while Snapshot works. FailWatch(nil)
// makes a new Watch work again; a Watch that an error is ending still ends.
func (s *Source) FailWatch(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failWatch(err)
}

func (s *Source) failWatch(err error) {
	s.watchErr = err
	if err != nil {
		s.end = err
	}
	s.signal()
}

// FailDevice sets the fault of a GPU, or clears it with the zero Fault. A Watch gets
// EventLost if that is the reason, else EventChanged.
func (s *Source) FailDevice(id gpu.UUID, fault gpu.Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = s.state.Clone()
	for i := range s.state.Devices {
		if d := &s.state.Devices[i]; d.UUID == id {
			d.Fault = fault
			kind := gpu.EventChanged
			if fault.Reason == gpu.ReasonLost {
				kind = gpu.EventLost
			}
			s.emit(Event(kind, id, fault.Message))
		}
	}
}

// Unwatch makes the health of a GPU impossible to watch, now and for later
// calls of Watch; an empty why makes it possible again.
func (s *Source) Unwatch(id gpu.UUID, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if why == "" {
		delete(s.unwatched, id)
		return
	}
	s.unwatched[id] = why
	s.emit(Event(gpu.EventUnwatched, id, why))
}

// Event makes an event that concerns a whole GPU.
func Event(kind gpu.EventKind, id gpu.UUID, message string) gpu.Event {
	return gpu.Event{Kind: kind, UUID: id, GPUInstance: -1, ComputeInstance: -1, Message: message}
}

// XID makes the event of an XID that concerns a whole GPU.
func XID(id gpu.UUID, xid uint64) gpu.Event {
	e := Event(gpu.EventXID, id, "")
	e.XID = xid
	return e
}

// emit queues an event; s.mu is held.
func (s *Source) emit(e gpu.Event) {
	if !s.watching {
		return
	}
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	s.queue = append(s.queue, e)
	s.signal()
}

func (s *Source) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}
