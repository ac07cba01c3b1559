package nvml

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/internal/gpu"
)

// Watch delivers what NVML's event set tells, and what the probes find to be
// other than before, or than the last Snapshot showed.
//
// An event may come twice: when a GPU is lost, a second event set without it is
// made before the first one ends, so that nothing of its neighbours is missed.
// The one gap in watching is when NVML is shut down and initialised again,
// which is the only way to let go of a GPU that was lost or is to be reset
// (letgo.go, cycle.go). It is told of, and all GPUs are read anew when they are
// watched again.
func (s *Source) Watch(ctx context.Context, ready func(), deliver func(gpu.Event)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.open(); err != nil {
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
		unwatched: map[gpu.UUID]bool{}, lastEvent: time.Now(),
		glances: make(chan glance, 1), glanced: map[gpu.UUID]time.Time{}, unseen: map[gpu.UUID]string{},
	}
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
	waits   chan wait     // what the event sets say
	over    chan struct{} // closed when Watch returns
	sets    []*eventSet   // that were made and have not ended, the one in force last

	seen      []gpu.Device // as of the last probe
	silent    bool         // the driver did not answer the last probe
	unwatched map[gpu.UUID]bool
	strikes   int         // waits that failed for no GPU's fault, in a row
	pending   []gpu.Event // to be delivered
	again     bool        // look when that is done
	letGo     bool        // NVML still holds a GPU that was lost
	lastEvent time.Time
	off       putOff

	looking  sync.WaitGroup // the one who looks from outside
	glancing bool           // there is one
	glances  chan glance
	glanced  map[gpu.UUID]time.Time
	unseen   map[gpu.UUID]string // why nothing was seen, as it was logged
}

const maxStrikes = 3

func (w *watch) begin() error {
	_, all, err := w.read(w.ctx)
	if err != nil {
		return err
	}
	w.seen = devices(all)
	return w.renew()
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
			if err := w.look(); err != nil {
				return err
			}
			continue
		}
		var err error
		select {
		case <-w.ctx.Done():
		case <-w.hurry:
		case got := <-w.waits:
			err = w.take(got)
		case got := <-w.glances:
			err = w.saw(got)
			w.glanceAtOne() // the next: a node may have lost all its GPUs at once
		case <-tick.C:
			if err = w.look(); err == nil && w.mayCycle() {
				err = w.cycle()
			}
			w.glanceAtOne()
		}
		if w.ctx.Err() != nil {
			return w.ctx.Err()
		}
		if err != nil {
			return err
		}
	}
}

// interval is how long until the next probe. A GPU that is to be let go of is waited
// for by who resets it.
func (w *watch) interval() time.Duration {
	waited, out := w.letsGo()
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
	defer w.looking.Wait()
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

// current is the event set in force, or nil.
func (w *watch) current() *eventSet {
	w.sets = slices.DeleteFunc(w.sets, (*eventSet).hasEnded)
	if len(w.sets) == 0 || w.sets[len(w.sets)-1].stopping {
		return nil
	}
	return w.sets[len(w.sets)-1]
}

// renew makes a new event set of all GPUs that can be watched, then ends the one
// that was in force.
func (w *watch) renew() error {
	before := w.current()
	set, err := w.newEventSet()
	if err != nil {
		return fmt.Errorf("no GPU can be watched: %w", err)
	}
	w.sets = append(w.sets, set)
	w.register(set)
	set.start(w.waits, w.over)
	if before != nil {
		before.stop()
	}
	return nil
}

// register adds the GPUs that can be watched and are not in the set yet.
func (w *watch) register(set *eventSet) {
	for _, d := range w.seen {
		if !watchable(d) || set.holds(d.UUID) || w.isOut(d.UUID) {
			continue
		}
		err := w.registerOne(set, d)
		switch {
		case err == nil && w.unwatched[d.UUID]:
			delete(w.unwatched, d.UUID)
			w.tell(gpu.EventChanged, d.UUID, "its health is watched again")
		case err == nil:
		case w.ctx.Err() != nil:
			return
		case returned(err) == nvml.ERROR_GPU_IS_LOST:
			w.tell(gpu.EventLost, d.UUID, err.Error())
		case !w.unwatched[d.UUID]:
			w.unwatched[d.UUID] = true
			w.tell(gpu.EventUnwatched, d.UUID, "its health cannot be watched: "+err.Error())
		}
	}
}

// take deals with what an event set said.
func (w *watch) take(got wait) error {
	if got.ret == nvml.SUCCESS {
		w.strikes, w.lastEvent = 0, time.Now()
		if event, ok := got.event(); ok {
			w.pending = append(w.pending, event)
			w.again = w.again || event.Kind == gpu.EventLost // see whether it is, and others with it
		}
		return nil
	}
	got.set.stop() // it has ended by itself; this says so to current

	// NVML does not say which GPU made waiting fail: ask each.
	if got.set.worked.Load() {
		w.strikes = 0
	}
	before := len(w.pending)
	if err := w.look(); err != nil {
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

// look probes all GPUs and tells what differs from the last time.
func (w *watch) look() error {
	_, all, err := w.read(w.ctx)
	_, hung := errors.AsType[*hungError](err)
	switch {
	case hung:
		if !w.silent {
			w.silent = true
			w.tell(gpu.EventUnwatched, "", err.Error())
		}
		return nil
	case err != nil:
		return err
	case w.silent:
		w.silent = false
		w.tell(gpu.EventChanged, "", "the driver answers again")
	}
	before := w.seen
	w.seen = devices(all)
	told := map[gpu.UUID]bool{}
	for _, old := range [][]gpu.Device{before, w.shown()} {
		for _, event := range changes(old, w.seen) {
			if old != nil && !told[event.UUID] {
				told[event.UUID] = true
				w.tell(event.Kind, event.UUID, event.Message)
			}
		}
	}
	w.letGo = w.letGo || slices.ContainsFunc(before, func(d gpu.Device) bool {
		return watchable(d) && !watchable(find(w.seen, d.UUID))
	})
	set := w.current()
	if set == nil {
		return nil // the caller makes a new one
	}
	if set.holdsAny(func(id gpu.UUID) bool { return !watchable(find(w.seen, id)) }) {
		return w.renew()
	}
	w.register(set)
	return nil
}

func (w *watch) tell(kind gpu.EventKind, id gpu.UUID, message string) {
	w.pending = append(w.pending, gpu.Event{
		Kind: kind, UUID: id, GPUInstance: -1, ComputeInstance: -1, Message: message, Time: time.Now(),
		Seen: kind == gpu.EventLost,
	})
}

// watchable reports whether it makes sense to watch a GPU: it answers. The zero
// Device, which is there no more, is not.
func watchable(d gpu.Device) bool {
	return d.UUID != "" && d.Fault.Reason != gpu.ReasonLost && d.Fault.Reason != gpu.ReasonUnreadable
}

func devices(all []reading) []gpu.Device {
	list := make([]gpu.Device, 0, len(all))
	for _, r := range all {
		list = append(list, r.Device)
	}
	return list
}

func find(list []gpu.Device, id gpu.UUID) gpu.Device {
	d, _ := gpu.Snapshot{Devices: list}.Device(id)
	return d
}

// changes says what became of each GPU between two probes.
func changes(before, after []gpu.Device) []gpu.Event {
	var events []gpu.Event
	add := func(kind gpu.EventKind, id gpu.UUID, message string) {
		events = append(events, gpu.Event{Kind: kind, UUID: id, Message: message})
	}
	old := map[gpu.UUID]gpu.Device{}
	for _, d := range before {
		old[d.UUID] = d
	}
	for _, d := range after {
		was, known := old[d.UUID]
		delete(old, d.UUID)
		was.Index = d.Index // indexes move when another GPU goes: nothing happened to this one
		switch {
		case !known:
			add(gpu.EventChanged, d.UUID, "the GPU is new")
		case d.Fault != was.Fault && d.Fault.Reason == gpu.ReasonLost:
			add(gpu.EventLost, d.UUID, d.Fault.Message)
		case d.Fault != was.Fault && d.Fault == gpu.Fault{}:
			add(gpu.EventChanged, d.UUID, "the GPU answers again")
		case d.Fault != was.Fault:
			add(gpu.EventChanged, d.UUID, d.Fault.Message)
		case !d.Equal(was):
			add(gpu.EventChanged, d.UUID, "the GPU or its MIG layout changed")
		}
	}
	for _, id := range slices.Sorted(maps.Keys(old)) {
		add(gpu.EventChanged, id, "the driver does not count the GPU any more")
	}
	return events
}
