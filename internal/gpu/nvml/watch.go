package nvml

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/internal/gpu"
)

// Watch delivers the events of NVML's event set, and the changes that probes find
// since the last probe or the last Snapshot.
//
// An event may be delivered twice: when a GPU is lost, a second event set without it
// starts before the first one ends, so that no event of its neighbours is missed.
// The only gap in watching is when NVML is shut down and initialised again, the only
// way to release a GPU that was lost or is to be reset (letgo.go, cycle.go). Watch
// reports it with an EventGap and reads all GPUs again once they are watched.
func (s *Source) Watch(ctx context.Context, ready func(), deliver func(gpu.Event)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.checkOpen(); err != nil {
		return err
	}
	if !s.watching.CompareAndSwap(false, true) {
		return errWatching
	}
	defer s.watching.Store(false)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &watch{
		Source: s, ctx: ctx, cancel: cancel, deliver: deliver,
		waits: make(chan wait), over: make(chan struct{}),
		unwatched: map[gpu.UUID]bool{}, worked: map[gpu.UUID]bool{}, lastEvent: time.Now(),
		outsideReadings: make(chan outsideReading, 1), outsideReadAt: map[gpu.UUID]time.Time{}, outsideErrors: map[gpu.UUID]string{},
	}
	w.followBus()
	defer w.end()
	if err := w.begin(); err != nil {
		return err
	}
	if ready != nil {
		ready()
	}
	return w.run()
}

// watch is one call of Watch. Its methods run in the goroutine of that call.
type watch struct {
	*Source
	ctx     context.Context
	cancel  context.CancelFunc
	deliver func(gpu.Event)
	waits   chan wait     // results of the event sets
	over    chan struct{} // closed when Watch returns
	sets    []*eventSet   // the sets that have not ended, the current one last

	seen      []gpu.Device // as of the last probe
	silent    bool         // the driver did not answer the last probe
	deaf      bool         // it does not return from the wait for events
	unwatched map[gpu.UUID]bool
	worked    map[gpu.UUID]bool // the GPUs whose XIDs have been received by some event set
	strikes   int               // consecutive waits that failed through no GPU's fault
	shifts    int               // consecutive readings whose indexes had shifted when they were used
	pending   []gpu.Event       // to be delivered
	again     bool              // probe once pending is delivered
	letGo     bool              // NVML still has a GPU open that was lost
	lastEvent time.Time
	backoff   backoff

	cycled     <-chan error // its result, while NVML is initialised again; else nil
	cycleBegan time.Time    // zero: it has been reported that this takes long
	released   []gpu.UUID   // by the last cycle; not to be used while it runs

	outsideReader   sync.WaitGroup // the goroutine that reads a GPU from outside
	readingOutside  bool           // it is running
	outsideReadings chan outsideReading
	outsideReadAt   map[gpu.UUID]time.Time // start of the last read
	outsideErrors   map[gpu.UUID]string    // the last logged error

	bus bus
}

const maxStrikes = 3

// recent is the age up to which a Snapshot replaces the first probe of Watch: to read every
// GPU twice would take milliseconds of the time to the first device list. Changes since the
// Snapshot are found by the next probe, like those since the first one.
const recent = time.Second

// begin starts to watch all GPUs that can be watched.
func (w *watch) begin() error {
	if w.seen = w.takeRecentSnapshot(); w.seen == nil {
		_, all, err := w.read(w.ctx)
		if err != nil {
			return err
		}
		w.seen = devices(all)
	}
	err := w.renew()
	for err == nil && w.again { // indexes shifted meanwhile
		w.again = false
		err = w.probeAll()
	}
	return err
}

func (w *watch) run() error {
	every := w.interval()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if now := w.interval(); now != every {
			every = now
			tick.Reset(every)
		}
		for _, event := range w.pending {
			if w.ctx.Err() != nil {
				return w.ctx.Err()
			}
			w.deliver(event)
		}
		w.pending = w.pending[:0]
		if w.again {
			w.again = false
			if err := w.probeAll(); err != nil {
				return err
			}
			continue
		}
		var err error
		select {
		case <-w.ctx.Done():
		case <-w.hurry:
		case got := <-w.waits:
			err = w.handleWait(got)
		case failed := <-w.cycled:
			err = w.endCycle(failed)
		case got := <-w.outsideReadings:
			err = w.handleOutside(got)
			w.readNextOutside() // at once: a node may have lost all its GPUs together
		case address := <-w.bus.events:
			w.handleBusEvent(address)
		case <-w.bus.timer.C:
			w.lookAtBus()
		case <-tick.C:
			if w.cycled != nil {
				w.reportSlowCycle()
				w.reportGap()
				continue
			}
			w.reportDeafness()
			if err = w.probeAll(); err == nil && w.shouldCycle() {
				err = w.cycle()
			}
			w.readNextOutside()
		}
		if w.ctx.Err() != nil {
			return w.ctx.Err()
		}
		if err != nil {
			return err
		}
	}
}

// interval returns the time between two probes. It is shorter while a GPU is to be
// released, because somebody waits to reset it.
func (w *watch) interval() time.Duration {
	waited, out := w.releases()
	w.brief.Store(w.letGo || waited)
	if w.letGo || waited || out {
		return min(w.probe, w.hurried)
	}
	return w.probe
}

// end ends all event sets and waits for them, unless they hang.
func (w *watch) end() {
	close(w.over)
	w.cancel()
	defer w.outsideReader.Wait()
	defer w.leaveBus()
	patience := time.NewTimer(w.slice + w.limit)
	defer patience.Stop()
	for _, set := range w.sets {
		set.stop()
	}
	for _, set := range w.sets {
		select {
		case <-set.ended:
		case <-patience.C:
			w.log.Error("an NVML event set does not end; its thread is given up", "reason", "Hung")
			return
		}
	}
}

// current returns the current event set, or nil.
func (w *watch) current() *eventSet {
	w.sets = slices.DeleteFunc(w.sets, (*eventSet).hasEnded)
	if len(w.sets) == 0 || w.sets[len(w.sets)-1].stopping {
		return nil
	}
	return w.sets[len(w.sets)-1]
}

// renew starts a new event set of all GPUs that can be watched, then stops those before it. A driver without
// events is only polled.
func (w *watch) renew() error {
	set, err := w.newEventSet()
	if errors.Is(err, errNoEvents) && len(w.worked) == 0 {
		w.pollAll()
		return nil
	}
	if err != nil {
		return fmt.Errorf("no GPU can be watched: %w", err)
	}
	w.sets = append(w.sets, set)
	w.register(set)
	set.start(w.waits, w.over)
	return nil
}

// maxShifts bounds how often in a row the GPUs are read again because their indexes have shifted. A GPU that
// cannot be registered after that is not watched, whatever the reason.
const maxShifts = 3

// register adds the GPUs that can be watched and are not in the current set yet. Once it has them, the sets
// before are stopped: one that still has a GPU whose index has shifted delivers its events until then.
func (w *watch) register(set *eventSet) {
	shifted := false
	alike := map[gpu.UUID]int{} // GPUs with one UUID
	for _, d := range w.seen {
		if !watchable(d) || w.isReleased(d.UUID) || !w.mayRegister(d.UUID) {
			continue
		}
		if alike[d.UUID]++; set.count(d.UUID) >= alike[d.UUID] {
			continue
		}
		err := w.registerOne(set, d)
		switch {
		case err == nil:
			if w.setWatched(d.UUID) {
				w.report(gpu.EventChanged, d.UUID, "its health is watched again")
			}
		case w.ctx.Err() != nil:
			return
		case errors.Is(err, errNoEvents) && !w.worked[d.UUID]: // else it reported XIDs before: that is an error
			w.poll(d.UUID)
		case errors.Is(err, errShifted) && w.shifts < maxShifts:
			shifted = true // the reading is older than the shift, which is no fault of this GPU
		case !w.unwatched[d.UUID]:
			w.unwatched[d.UUID] = true
			w.report(gpu.EventUnwatched, d.UUID, "its health cannot be watched: "+err.Error())
			if returned(err) == nvml.ERROR_GPU_IS_LOST { // though it may be read as before
				w.report(gpu.EventLost, d.UUID, err.Error())
			}
		}
	}
	if !shifted {
		w.shifts = 0
		for _, before := range w.sets[:len(w.sets)-1] {
			before.stop()
		}
		return
	}
	w.shifts++
	w.again = true
}

// poll records that the driver reports no XIDs of a GPU, which is then only polled.
func (w *watch) poll(id gpu.UUID) {
	w.mu.Lock()
	_, known := w.memory.noXIDs[id]
	w.memory.noXIDs[id] = time.Now().Add(factsLast)
	w.mu.Unlock()
	wasUnwatched := w.unwatched[id]
	delete(w.unwatched, id)
	if !known || wasUnwatched {
		w.report(gpu.EventChanged, id, "the driver reports no XIDs of it: it is polled")
	}
}

// pollAll records that the driver reports no events at all.
func (w *watch) pollAll() {
	w.mu.Lock()
	before := w.memory.noEvents
	w.memory.noEvents = true
	w.mu.Unlock()
	if !before {
		w.report(gpu.EventChanged, "", "the driver reports no events: the GPUs are polled")
	}
}

// isPolled reports whether the driver reports no XIDs of a GPU, as found when Watch tried to receive them.
func (s *Source) isPolled(id gpu.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, polled := s.memory.noXIDs[id]
	return s.memory.noEvents || polled
}

// mayRegister reports whether to try to receive a GPU's XIDs: always, but for a while after the driver said that it
// reports none.
func (s *Source) mayRegister(id gpu.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().After(s.memory.noXIDs[id])
}

// setWatched records that the XIDs of a GPU are received. It reports whether they were not before.
func (w *watch) setWatched(id gpu.UUID) (changed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, polled := w.memory.noXIDs[id]
	delete(w.memory.noXIDs, id)
	changed = w.unwatched[id] || polled || w.memory.noEvents
	delete(w.unwatched, id)
	w.memory.noEvents = false
	w.worked[id] = true
	return changed
}

// handleWait handles a result of an event set.
func (w *watch) handleWait(got wait) error {
	if got.ret == nvml.SUCCESS {
		w.strikes, w.lastEvent = 0, time.Now()
		event, ok := got.event()
		if !isOfProgram(event) {
			w.expireFacts()
		}
		if ok {
			w.pending = append(w.pending, event)
			w.again = w.again || event.Kind == gpu.EventLost // check it, and whether others are lost too
		}
		return nil
	}
	got.set.stop() // it has ended by itself; this makes current skip it
	if isUnsupported(got.ret) && !got.set.worked.Load() {
		w.pollAll()
		return nil
	}

	// NVML does not report which GPU made the wait fail: probe each.
	if got.set.worked.Load() {
		w.strikes = 0
	}
	before := len(w.pending)
	if err := w.probeAll(); err != nil {
		return err
	}
	if w.strikes++; w.strikes > maxStrikes && len(w.pending) == before {
		return fmt.Errorf("no GPU can be watched: %w", check("nvmlEventSetWait", got.ret))
	}
	if w.current() == nil {
		return w.renew()
	}
	return nil
}

// probeAll probes all GPUs and reports the changes since the last probe.
func (w *watch) probeAll() error {
	_, all, err := w.read(w.ctx)
	_, hung := errors.AsType[*hungError](err)
	switch {
	case hung:
		if !w.silent {
			w.silent = true
			w.report(gpu.EventUnwatched, "", err.Error())
		}
		return nil
	case err != nil:
		return err
	case w.silent:
		w.silent, w.deaf = false, false
		w.report(gpu.EventChanged, "", "the driver answers again")
	}
	before := w.seen
	w.seen = devices(all)
	w.lookAtBus()
	reported := map[gpu.UUID]bool{}
	for _, old := range [][]gpu.Device{before, w.takeLastSnapshot()} {
		for _, event := range changes(old, w.seen) {
			if old != nil && !reported[event.UUID] {
				reported[event.UUID] = true
				w.report(event.Kind, event.UUID, event.Message)
				if event.Kind == gpu.EventChanged && w.unwatched[event.UUID] {
					w.report(gpu.EventUnwatched, event.UUID, "its health cannot be watched, as before")
				}
			}
		}
	}
	w.letGo = w.letGo || slices.ContainsFunc(before, func(d gpu.Device) bool {
		return watchable(d) && countWatchable(w.seen, d.UUID) < countWatchable(before, d.UUID)
	})
	set := w.current()
	if set == nil {
		return nil // the caller makes a new one
	}
	if slices.ContainsFunc(set.uuids(), func(id gpu.UUID) bool { return set.count(id) > countWatchable(w.seen, id) }) {
		return w.renew()
	}
	w.register(set)
	return nil
}

// reportDeafness reports when a wait for events does not return, and when it has returned.
func (w *watch) reportDeafness() {
	set := w.current()
	deaf := set != nil && set.isDeaf()
	switch {
	case deaf && !w.deaf:
		w.failed(codeHung)
		w.report(gpu.EventUnwatched, "", (&hungError{"its events", w.slice + w.limit}).Error())
	case w.deaf && !deaf:
		w.report(gpu.EventChanged, "", "events are received again")
	}
	w.deaf = deaf
}

// report queues an event for delivery.
func (w *watch) report(kind gpu.EventKind, id gpu.UUID, message string) {
	w.pending = append(w.pending, gpu.Event{
		Kind: kind, UUID: id, GPUInstance: -1, ComputeInstance: -1, Message: message, Time: time.Now(),
		Observed: kind == gpu.EventLost,
	})
}
