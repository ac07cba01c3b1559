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
	firstPause  = 100 * time.Millisecond
	lastPause   = 10 * time.Second
	steadyAfter = time.Minute // a watch that lasted this long resets the delay
)

// watchGPUs uses the driver until ctx ends: it waits for one, watches its GPUs, and
// starts over when the watch fails.
func (p *Plugin) watchGPUs(ctx context.Context) error {
	place, err := p.driverPlace(ctx)
	if err != nil {
		return err
	}
	// From here on only this goroutine uses cfg.Driver.
	p.cfg.Driver = place
	wasUsed := false
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		opened, err := driver.WaitOpen(ctx, p.cfg.Driver, p.openDriver, func(err error) bool { return p.isRetryable(err, wasUsed) }, p.reportAbsence)
		if err != nil {
			return p.recordOpenError(ctx, err)
		}
		wasUsed = true
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
		if time.Since(start) > steadyAfter {
			pause = firstPause
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// isRetryable reports whether waiting can help after an error of opening the driver. wasUsed
// means that this process has opened the driver before. A device cgroup does not change during
// a container's life, so without permission it is better to end and be restarted. A driver that
// is absent or being upgraded will appear.
func (p *Plugin) isRetryable(err error, wasUsed bool) bool {
	missing, notInjected := errors.AsType[*notInjectedError](err)
	switch {
	case errors.Is(err, nvml.ErrOtherLibrary):
		return false
	case errors.Is(err, gpu.ErrNoDriver), errors.Is(err, gpu.ErrVersionMismatch):
		return true
	case notInjected && !missing.excluded, !notInjected && p.isInjectionOutdated():
		return true
	}
	return wasUsed || !p.failsOnInitError()
}

// recordOpenError records that the plugin ends because the driver cannot be opened, and returns
// the error for Run.
func (p *Plugin) recordOpenError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, nvml.ErrOtherLibrary) {
		return p.announceReplacement(fmt.Errorf("%w: %w", ErrReplaced, err))
	}
	if _, notInjected := errors.AsType[*notInjectedError](err); !notInjected {
		err = fmt.Errorf("use the driver: %w", err)
	}
	p.applyAndStore(pluginEnds(ending{nodestate.Failed, absenceReason(err), err.Error()}))
	return err
}

// absenceReason returns the reason for the state file when the driver cannot be opened.
func absenceReason(err error) gpu.Reason {
	if _, notInjected := errors.AsType[*notInjectedError](err); notInjected {
		return reasonMissing
	}
	return driver.Reason(err)
}

// announceReplacement makes the services keep their sockets for the next program.
func (p *Plugin) announceReplacement(err error) error {
	p.cfg.Log.Info("the driver was replaced; executing this program again with the same sockets", "message", err.Error())
	p.willReplace.Store(true)
	return err
}

// watchDriver watches the GPUs of one opened driver until the watch fails, process ends, or the
// driver's library is replaced. It waits for its goroutines to end, unless process has ended:
// then this process is about to end, too.
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
			p.waitForStart(ctx)
			place := p.cfg.Driver
			if o.Root == driver.Containerised {
				place.Root = o.Root // a library elsewhere belongs to another driver or is a copy
			}
			switch err := driver.WaitReplaced(ctx, place, o.Library); {
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
		events, err := q.waitAndTake(ctx, p.nextProbe(), p.resync)
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
		p.applyAndPublish(snapshotRead(snap, o.Root, events, q.pending(), began))
	}
}

// nextProbe returns a channel that fires when a quiet GPU is due for a probe, or nil if
// none waits for that.
func (p *Plugin) nextProbe() <-chan time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, isWaiting := p.state.health.NextProbe(time.Now())
	if !isWaiting {
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
	p.applyAndPublish(driverFound(snap, o.Root, watched))
	p.metrics.SetWatching(watched)
	p.cfg.Log.Info("using the driver", "driver", snap.Driver.Version, "path", o.Root, "gpus", len(snap.Devices), "simulated", snap.Driver.Simulated)
}

func (p *Plugin) setSource(source gpu.Source) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.source = source
}

// applyEvents applies events before anything slow is done.
func (p *Plugin) applyEvents(events []gpu.Event) {
	p.applyAndPublish(eventsSeen(events))
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range events {
		p.metrics.CountEvent(e)
		if e.Kind == gpu.EventXID {
			p.telemetry.CountXID(e.UUID, e.XID)
		}
		if e.Kind == gpu.EventXID && (p.state.health.Ignores(e) || p.state.hitsNeighbours(e)) {
			p.journal.LogIgnored(e, time.Now())
		}
	}
}

// releaseGPUs closes the GPUs that wait for a reset: a GPU that a process holds open cannot be
// reset. A source that cannot close single GPUs keeps them. p.mu is held.
func (p *Plugin) releaseGPUs() {
	source, canRelease := p.source.(interface{ Release(ids []gpu.UUID) })
	if !canRelease {
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

// setUnwatchable records that the plugin gets no events of the GPUs any more, so that none of
// them counts as healthy.
func (p *Plugin) setUnwatchable(err error) {
	p.metrics.SetWatching(false)
	p.cfg.Log.Error("the GPUs cannot be watched; none is allocated until they can be", "reason", string(gpu.ReasonUnwatched), "message", err.Error())
	p.applyAndPublish(watchFailed(err, p.isUnloaded(err)))
}

// isUnloaded reports whether an error means that the driver's kernel module is gone. Without
// access to its device nodes the driver's library returns the same error.
func (p *Plugin) isUnloaded(err error) bool {
	return errors.Is(err, gpu.ErrNoDriver) && !driver.IsModuleLoaded(p.cfg.HostRoot)
}

// reportAbsence records and logs why there is no driver, once for each reason.
func (p *Plugin) reportAbsence(err error) {
	p.endStart()
	current := &absence{reason: absenceReason(err), message: "waiting for a driver: " + err.Error()}
	if missing, notInjected := errors.AsType[*notInjectedError](err); notInjected {
		if missing.ending {
			return
		}
		current.message = missing.why
	}
	if fault := driver.PlatformFault(p.cfg.HostRoot); fault != (gpu.Fault{}) {
		current = &absence{reason: fault.Reason, message: fault.Message}
	} else if errors.Is(err, gpu.ErrNoDriver) && !driver.HasGPU(p.cfg.HostRoot) {
		current = &absence{reason: reasonNoGPU, message: "no NVIDIA GPU on this node; idle until a driver shows one: " + err.Error(), idle: true}
	}
	p.mu.Lock()
	same := p.state.absent != nil && *p.state.absent == *current
	p.mu.Unlock()
	if same {
		return
	}
	p.cfg.Log.Info(current.message, "reason", string(current.reason))
	p.applyAndPublish(driverAbsent(*current, err, p.isUnloaded(err)))
}

// queue buffers events between a source, which must not wait, and the plugin.
type queue struct {
	mu     sync.Mutex
	events []gpu.Event
	signal chan struct{} // capacity 1: there are events
}

func newQueue() *queue { return &queue{signal: make(chan struct{}, 1)} }

func (q *queue) push(e gpu.Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.events = append(q.events, e)
	select {
	case q.signal <- struct{}{}:
	default:
	}
}

// pending returns the buffered events without removing them.
func (q *queue) pending() []gpu.Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.events)
}

// waitAndTake waits for events, for probe, or for resync. It empties the queue and returns its
// events, which may be none.
func (q *queue) waitAndTake(ctx context.Context, probe <-chan time.Time, resync <-chan struct{}) ([]gpu.Event, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-probe:
	case <-resync:
	case <-q.signal:
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	events := q.events
	q.events = nil
	return events, nil
}
