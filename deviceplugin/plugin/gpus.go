package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/driver"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// Delays before a failed driver is opened again.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 10 * time.Second
	steady     = time.Minute // a watch that lasted this long resets the delay
)

// watchGPUs uses the driver until ctx ends: it waits for one, watches its GPUs, and
// starts over when the watch fails.
func (p *Plugin) watchGPUs(ctx context.Context) error {
	place, err := p.driverPlace(ctx)
	if err != nil {
		return err
	}
	// From here on only this goroutine uses it.
	p.cfg.Driver = place
	used := false
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		opened, err := driver.Wait(ctx, p.cfg.Driver, p.open, func(err error) bool { return p.retryable(err, used) }, p.reportAbsence)
		if err != nil {
			return p.openFailed(ctx, err)
		}
		used = true
		start := time.Now()
		err = p.watchDriver(ctx, opened)
		if ctx.Err() != nil {
			// The process ends or becomes another program. The driver stays open: NVML
			// may still wait for an event and cannot be interrupted.
			return ctx.Err()
		}
		if closeErr := opened.Source.Close(); closeErr != nil {
			p.cfg.Log.Warn("closing the driver", "message", closeErr.Error())
		}
		if errors.Is(err, ErrReplaced) {
			return p.announceReplacement(err)
		}
		p.setUnwatchable(err)
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

// retryable reports whether waiting can help after an error of opening the driver. A
// device cgroup does not change during a container's life, so without permission it is
// better to end and be restarted. A driver that is absent or being upgraded will
// appear.
func (p *Plugin) retryable(err error, used bool) bool {
	missing, notInjected := errors.AsType[*notInjectedError](err)
	switch {
	case errors.Is(err, nvml.ErrOtherLibrary):
		return false
	case errors.Is(err, gpu.ErrNoDriver), errors.Is(err, gpu.ErrVersionMismatch):
		return true
	case notInjected && !missing.excluded, !notInjected && p.toolkitOutdated():
		return true
	}
	return used || !p.failOnInitError()
}

func (p *Plugin) openFailed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, nvml.ErrOtherLibrary) {
		return p.announceReplacement(fmt.Errorf("%w: %w", ErrReplaced, err))
	}
	if _, notInjected := errors.AsType[*notInjectedError](err); !notInjected {
		err = fmt.Errorf("use the driver: %w", err)
	}
	p.record(pluginEnds(ending{nodestate.Failed, reason(err), err.Error()}))
	return err
}

// reason returns the reason why there is no usable driver.
func reason(err error) gpu.Reason {
	if _, notInjected := errors.AsType[*notInjectedError](err); notInjected {
		return reasonMissing
	}
	return driver.Reason(err)
}

func (p *Plugin) announceReplacement(err error) error {
	p.cfg.Log.Info("the driver was replaced; executing this program again with the same sockets", "message", err.Error())
	p.replace.Store(true)
	return err
}

// watchDriver watches one source until it fails, ctx ends, or its library is replaced.
// It waits for the watch to end unless ctx has ended: then the process is about to end,
// too.
func (p *Plugin) watchDriver(process context.Context, o Opened) error {
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
			p.afterStart(ctx)
			place := p.cfg.Driver
			if o.Root == driver.Containerised {
				place.Root = o.Root // a library elsewhere belongs to another driver or is a copy
			}
			switch err := driver.Replaced(ctx, place, o.Library); {
			case err == nil:
				cancel(fmt.Errorf("%w: %s", ErrReplaced, o.Library.Path))
			case ctx.Err() == nil:
				cancel(fmt.Errorf("watch the driver's library: %w", err))
			}
		})
	}
	// The watch begins with the GPUs of the first snapshot. Nothing is published before
	// both are ready.
	snap, err := o.Source.Snapshot(ctx)
	if err != nil {
		return preferCause(ctx, err)
	}
	q := newQueue()
	ready := make(chan struct{})
	running.Go(func() {
		err := o.Source.Watch(ctx, func() { close(ready) }, q.push)
		if ctx.Err() == nil {
			cancel(fmt.Errorf("watch the GPUs: %w", err))
		}
	})
	select {
	case <-ready:
	case <-ctx.Done():
		p.applyFirstSnapshot(o, snap, false)
		return context.Cause(ctx)
	}
	p.applyFirstSnapshot(o, snap, true)
	for {
		events, err := q.wait(ctx, p.nextProbe(), p.resync)
		if err != nil {
			return context.Cause(ctx)
		}
		p.applyEvents(events)
		// An event may have changed the GPU, and only a snapshot confirms a loss.
		began := time.Now()
		snap, err := o.Source.Snapshot(ctx)
		if err != nil {
			return preferCause(ctx, err)
		}
		p.update(snapshotRead(snap, o.Root, events, q.pending(), began))
	}
}

// nextProbe returns a channel that fires when a quiet GPU is due for a probe, or nil if
// none waits for that.
func (p *Plugin) nextProbe() <-chan time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, waits := p.state.health.NextProbe(time.Now())
	if !waits {
		return nil
	}
	return time.After(time.Until(at))
}

// preferCause returns the cause of ctx's end, if it ended, rather than err, which
// followed from it.
func preferCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// applyFirstSnapshot applies a source's first snapshot.
func (p *Plugin) applyFirstSnapshot(o Opened, snap gpu.Snapshot, watched bool) {
	p.setSource(o.Source)
	p.update(driverFound(snap, o.Root, watched))
	p.meters.SetWatching(watched)
	p.cfg.Log.Info("using the driver", "driver", snap.Driver.Version, "path", o.Root, "gpus", len(snap.Devices), "simulated", snap.Driver.Simulated)
}

func (p *Plugin) setSource(source gpu.Source) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.source = source
}

// applyEvents applies events before anything slow is done.
func (p *Plugin) applyEvents(events []gpu.Event) {
	p.update(eventsSeen(events))
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range events {
		p.meters.CountEvent(e)
		if e.Kind == gpu.EventXID && p.state.health.Policy().Rule(e.XID).Action == gpu.ActionIgnore {
			p.journal.Ignored(e, time.Now())
		}
	}
}

// releaseGPUs passes the GPUs that wait for a reset, and so must not be held open, to a
// source that can release single GPUs. p.mu is held.
func (p *Plugin) releaseGPUs() {
	source, can := p.source.(interface{ Release(ids []gpu.UUID) })
	if !can {
		return
	}
	var ids []gpu.UUID
	for _, g := range p.state.health.GPUs() {
		if g.Present && p.state.health.AwaitsReset(g.Device.UUID) {
			ids = append(ids, g.Device.UUID)
		}
	}
	source.Release(ids)
}

// setUnwatchable records that the GPUs cannot be watched any more.
func (p *Plugin) setUnwatchable(err error) {
	p.meters.SetWatching(false)
	p.cfg.Log.Error("the GPUs cannot be watched; none is allocated until they can be", "reason", string(gpu.ReasonUnwatched), "message", err.Error())
	p.update(watchFailed(err, p.unloaded(err)))
}

// unloaded reports whether the kernel module is gone, and not only access to it.
func (p *Plugin) unloaded(err error) bool {
	return errors.Is(err, gpu.ErrNoDriver) && !driver.Loaded(p.cfg.HostRoot)
}

// reportAbsence reports why there is no driver, once for each reason.
func (p *Plugin) reportAbsence(err error) {
	p.endStart()
	now := &absence{reason: reason(err), message: "waiting for a driver: " + err.Error()}
	if missing, notInjected := errors.AsType[*notInjectedError](err); notInjected {
		if missing.ending {
			return
		}
		now.message = missing.why
	}
	if errors.Is(err, gpu.ErrNoDriver) && !driver.HasGPU(p.cfg.HostRoot) {
		now = &absence{reason: reasonNoGPU, message: "no NVIDIA GPU on this node; idle until a driver shows one: " + err.Error(), idle: true}
	}
	p.mu.Lock()
	same := p.state.absent != nil && *p.state.absent == *now
	p.mu.Unlock()
	if same {
		return
	}
	p.cfg.Log.Info(now.message, "reason", string(now.reason))
	p.update(driverAbsent(*now, err, p.unloaded(err)))
}

// queue buffers events between a source, which must not wait, and the plugin.
type queue struct {
	mu     sync.Mutex
	events []gpu.Event
	some   chan struct{}
}

func newQueue() *queue { return &queue{some: make(chan struct{}, 1)} }

func (q *queue) push(e gpu.Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.events = append(q.events, e)
	select {
	case q.some <- struct{}{}:
	default:
	}
}

// pending returns the buffered events without removing them.
func (q *queue) pending() []gpu.Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.events)
}

// wait waits for events, for probe, or for resync, and removes and returns all
// events.
func (q *queue) wait(ctx context.Context, probe <-chan time.Time, resync <-chan struct{}) ([]gpu.Event, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-probe:
	case <-resync:
	case <-q.some:
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	events := q.events
	q.events = nil
	return events, nil
}
