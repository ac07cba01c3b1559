package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/driver"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// How long to let a driver be that stopped telling of its GPUs.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 10 * time.Second
	steady     = time.Minute // a watch that lasted this long is forgiven
)

// watchGPUs uses the driver until ctx ends: it waits for one, watches, and
// begins again when it stops telling.
func (p *Plugin) watchGPUs(ctx context.Context) error {
	place, err := p.place(ctx)
	if err != nil {
		return err
	}
	// From here on it is this goroutine's alone.
	p.cfg.Driver = place
	used := false
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		opened, err := driver.Wait(ctx, p.cfg.Driver, p.open, func(err error) bool { return p.curable(err, used) }, p.waiting)
		if err != nil {
			return p.openFailed(ctx, err)
		}
		used = true
		start := time.Now()
		err = p.use(ctx, opened)
		if ctx.Err() != nil {
			// The process ends, or becomes another program. Its driver is left open: NVML
			// may still wait for an event, and cannot be woken.
			return ctx.Err()
		}
		if closeErr := opened.Source.Close(); closeErr != nil {
			p.cfg.Log.Warn("closing the driver", "message", closeErr.Error())
		}
		if errors.Is(err, ErrReplaced) {
			return p.replaced(err)
		}
		p.blind(err)
		if time.Since(start) > steady {
			pause = firstPause
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// curable says whether waiting can help against an error of opening the driver.
// A device cgroup does not change while a container lives, so without permission
// it is better to end and be started again; a driver that is absent or being
// upgraded will come.
func (p *Plugin) curable(err error, used bool) bool {
	missing, uninjected := errors.AsType[*uninjectedError](err)
	switch {
	case errors.Is(err, nvml.ErrOtherLibrary):
		return false
	case errors.Is(err, gpu.ErrNoDriver), errors.Is(err, gpu.ErrVersionMismatch):
		return true
	case uninjected && !missing.vain, !uninjected && p.toolkitBehind():
		return true
	}
	return used || !p.failOnInitError()
}

func (p *Plugin) openFailed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, nvml.ErrOtherLibrary) {
		return p.replaced(fmt.Errorf("%w: %w", ErrReplaced, err))
	}
	if _, uninjected := errors.AsType[*uninjectedError](err); !uninjected {
		err = fmt.Errorf("use the driver: %w", err)
	}
	p.end(ending{nodestate.Failed, reason(err), err.Error()})
	return err
}

// reason names in one word why there is no driver to work with.
func reason(err error) gpu.Reason {
	if _, uninjected := errors.AsType[*uninjectedError](err); uninjected {
		return reasonMissing
	}
	return driver.Reason(err)
}

func (p *Plugin) replaced(err error) error {
	p.cfg.Log.Info("the driver was replaced; going on as a new program with the same sockets", "message", err.Error())
	p.replace.Store(true)
	return err
}

// use watches one source until it fails, ctx ends, or its library is replaced. It waits
// for the watch to end unless ctx has ended: then the process is about to.
func (p *Plugin) use(process context.Context, o Opened) error {
	ctx, cancel := context.WithCancelCause(process)
	defer cancel(nil)
	var running sync.WaitGroup
	defer func() {
		cancel(nil)
		ended := make(chan struct{})
		go func() { running.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-process.Done():
		}
	}()
	if o.Library.Path != "" {
		running.Go(func() {
			place := p.cfg.Driver
			if o.Root == driver.Containerised {
				place.Root = o.Root // what is elsewhere while it is gone is another's, or a copy of it
			}
			switch err := driver.Replaced(ctx, place, o.Library); {
			case err == nil:
				cancel(fmt.Errorf("%w: %s", ErrReplaced, o.Library.Path))
			case ctx.Err() == nil:
				cancel(fmt.Errorf("watch the driver's library: %w", err))
			}
		})
	}
	// The first snapshot is read while the watch is being set up: nothing is
	// published before both are there.
	q := newQueue()
	ready := make(chan struct{})
	running.Go(func() {
		err := o.Source.Watch(ctx, func() { close(ready) }, q.put)
		if ctx.Err() == nil {
			cancel(fmt.Errorf("watch the GPUs: %w", err))
		}
	})
	snap, err := o.Source.Snapshot(ctx)
	if err != nil {
		return cause(ctx, err)
	}
	select {
	case <-ready:
	case <-ctx.Done():
		p.seen(o, snap, false) // what is there is known, and not to be given away
		return context.Cause(ctx)
	}
	p.seen(o, snap, true)
	for {
		events, err := q.take(ctx, p.nextLook(), p.others)
		if err != nil {
			return context.Cause(ctx)
		}
		p.heard(events)
		p.flushLists(ctx)
		// An event may have left a trace, and a loss must be seen to be believed.
		began := time.Now()
		snap, err := o.Source.Snapshot(ctx)
		if err != nil {
			return cause(ctx, err)
		}
		p.looked(o, snap, events, q.waiting(), began)
	}
}

// nextLook tells when to look at the GPUs though nothing is heard of them: one
// may have been quiet for long enough. It is nil when none waits for that.
func (p *Plugin) nextLook() <-chan time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, waits := p.health.NextLook(time.Now())
	if !waits {
		return nil
	}
	return time.After(time.Until(at))
}

// cause prefers the reason for which ctx ended to what that led to.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// seen begins with a source's first snapshot.
func (p *Plugin) seen(o Opened, snap gpu.Snapshot, watching bool) {
	p.update(func() {
		p.absent = nil
		p.see(o, snap)
		if watching {
			p.health = p.health.Watching(time.Now())
		}
	})
	p.meters.Watching(watching)
	p.cfg.Log.Info("using the driver", "driver", snap.Driver.Version, "path", o.Root, "gpus", len(snap.Devices), "simulated", snap.Driver.Simulated)
}

// heard takes events into account, before anything slow is done.
func (p *Plugin) heard(events []gpu.Event) {
	p.update(func() {
		for _, e := range events {
			p.health = p.health.Hear(e, time.Now())
		}
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range events {
		p.meters.Event(e)
		if e.Kind == gpu.EventXID && p.health.Policy().Rule(e.XID).Action == gpu.ActionIgnore {
			p.journal.Ignored(e, time.Now())
		}
	}
}

// looked takes a later snapshot into account. A GPU that was not watched and of
// which a change was told is watched again, unless the source said otherwise since.
// What came while it was read is not heard yet, but counts where a GPU is tried.
func (p *Plugin) looked(o Opened, snap gpu.Snapshot, events, unheard []gpu.Event, began time.Time) {
	p.update(func() {
		// The plugin may run no program on a GPU: its probe is that the GPU tells
		// everything of itself, and nothing is wrong in it.
		for _, id := range p.health.Due(began) {
			p.health = p.health.Probed(health.Probe{ID: id, Began: began, Passed: sound(snap, unheard, id)}, time.Now())
		}
		p.see(o, snap)
		told := map[gpu.UUID]bool{}
		for _, e := range events {
			switch e.Kind {
			case gpu.EventChanged:
				told[e.UUID] = true
			case gpu.EventUnwatched:
				delete(told, e.UUID)
			}
		}
		if told[""] {
			p.health = p.health.Answering(time.Now())
		}
		for _, d := range snap.Devices {
			if told[d.UUID] && d.Fault.Reason == "" {
				p.health = p.health.Watched(d.UUID, time.Now())
			}
		}
	})
}

// sound says that nothing is wrong with the GPU, or that of the MIG device.
func sound(snap gpu.Snapshot, unheard []gpu.Event, id gpu.UUID) bool {
	return slices.ContainsFunc(snap.Devices, func(d gpu.Device) bool {
		return d.Fault.Reason == "" &&
			(d.UUID == id || slices.ContainsFunc(d.MIG, func(m gpu.MIGDevice) bool { return m.UUID == id })) &&
			!slices.ContainsFunc(unheard, func(e gpu.Event) bool {
				return e.Kind != gpu.EventChanged && (e.UUID == d.UUID || e.UUID == "")
			})
	})
}

// see is for update.
func (p *Plugin) see(o Opened, snap gpu.Snapshot) {
	p.snapshot, p.source, p.root = snap, o.Source, o.Root
	p.health = p.health.See(snap, time.Now())
	p.find()
}

// letGo says which GPUs must not be held open, those that wait for a reset, to a
// source that can do without some. p.mu is held.
func (p *Plugin) letGo() {
	source, can := p.source.(interface{ LetGo(ids []gpu.UUID) })
	if !can {
		return
	}
	var ids []gpu.UUID
	for _, g := range p.health.GPUs() {
		if g.Present && p.health.LetGo(g.Device.UUID) {
			ids = append(ids, g.Device.UUID)
		}
	}
	source.LetGo(ids)
}

// blind says that nothing is heard of the GPUs any more.
func (p *Plugin) blind(err error) {
	p.meters.Watching(false)
	p.cfg.Log.Error("the GPUs cannot be watched; none is given away until they can", "reason", string(gpu.ReasonUnwatched), "message", err.Error())
	p.update(func() {
		p.health = p.health.Blind(unwatched(err), p.unloaded(err), time.Now())
	})
}

// unloaded says that the kernel module is gone, and not only the way to it.
func (p *Plugin) unloaded(err error) bool {
	return errors.Is(err, gpu.ErrNoDriver) && !driver.Loaded(p.cfg.HostRoot)
}

func unwatched(err error) gpu.Fault {
	return gpu.Fault{Reason: gpu.ReasonUnwatched, Message: "its health cannot be watched: " + err.Error()}
}

// waiting says why there is no driver, once for each reason.
func (p *Plugin) waiting(err error) {
	now := &absence{reason: reason(err), message: "waiting for a driver: " + err.Error()}
	if missing, uninjected := errors.AsType[*uninjectedError](err); uninjected {
		if missing.ending {
			return
		}
		now.message = missing.why
	}
	if errors.Is(err, gpu.ErrNoDriver) && !driver.HasGPU(p.cfg.HostRoot) {
		now = &absence{reason: reasonNoGPU, message: "no NVIDIA GPU on this node; idle until a driver shows one: " + err.Error(), idle: true}
	}
	p.mu.Lock()
	same := p.absent != nil && *p.absent == *now
	p.mu.Unlock()
	if same {
		return
	}
	p.cfg.Log.Info(now.message, "reason", string(now.reason))
	p.update(func() {
		p.absent = now
		p.health = p.health.Blind(unwatched(err), p.unloaded(err), time.Now())
	})
}

// queue keeps events in order between a source, which must not wait, and the
// plugin.
type queue struct {
	mu     sync.Mutex
	events []gpu.Event
	some   chan struct{}
}

func newQueue() *queue { return &queue{some: make(chan struct{}, 1)} }

func (q *queue) put(e gpu.Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.events = append(q.events, e)
	select {
	case q.some <- struct{}{}:
	default:
	}
}

// waiting returns the events that were not taken yet.
func (q *queue) waiting() []gpu.Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.events)
}

// take waits for events, for a moment, or until it is asked for, and returns all
// there are.
func (q *queue) take(ctx context.Context, moment <-chan time.Time, asked <-chan struct{}) ([]gpu.Event, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-moment:
	case <-asked:
	case <-q.some:
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	events := q.events
	q.events = nil
	return events, nil
}
