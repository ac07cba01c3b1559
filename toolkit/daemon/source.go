package daemon

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/toolkit/setup"
)

// source is an open driver and the goroutine that listens to it.
type source struct {
	gpu.Source
	snapshot gpu.Snapshot
	end      func() error // ends the goroutine, then closes the driver
}

// letGo closes the GPUs that wait for a reset, which no driver does to one that a
// process has open. What they were last seen as stays specified.
func (s *source) letGo() {
	source, can := s.Source.(interface{ LetGo(ids []gpu.UUID) })
	if !can {
		return
	}
	var ids []gpu.UUID
	for _, d := range s.snapshot.Devices {
		if d.Fault.Reason == gpu.ReasonResetNeeded {
			ids = append(ids, d.UUID)
		}
	}
	source.LetGo(ids)
}

func (d *Daemon) open(ctx context.Context, driverRoot, library string) error {
	if library != "" {
		d.opened = library // also if it fails: it may be in the process by then
	}
	opened, err := d.Driver.Open(driverRoot)
	if d.opened == "" { // it came just now
		d.opened = d.library(driverRoot)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var group errgroup.Group
	group.Go(func() error {
		err := opened.Watch(ctx, nil, func(e gpu.Event) {
			if e.Kind == gpu.EventChanged {
				d.poke(nvmlSpoke)
			}
		})
		if ctx.Err() == nil {
			// The specifications hold without it; only news of MIG and hot-plugged
			// devices then comes from the device nodes alone.
			d.log.Warn("NVML's events cannot be watched", "reason", setup.ReasonNVML, "message", err)
		}
		return nil
	})
	d.source = &source{Source: opened, end: func() error {
		cancel()
		return errors.Join(group.Wait(), opened.Close())
	}}
	return nil
}

// close closes the driver, or leaves that to the end of the process when ctx ends: NVML
// cannot be woken, and closing waits until it has waited for events for long enough.
func (d *Daemon) close(ctx context.Context) error {
	if d.source == nil {
		return nil
	}
	closed := make(chan error, 1)
	end := d.source.end
	d.source = nil
	go func() { closed <- end() }()
	select {
	case err := <-closed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// moved says that NVML shows something else than was specified for, or fails.
func (d *Daemon) moved(ctx context.Context) bool {
	now, err := d.source.Snapshot(ctx)
	if ctx.Err() != nil {
		return false // nobody wants to know any more
	}
	return err != nil || !now.Equal(d.source.snapshot)
}

// pauses are between the looks at NVML after device nodes have changed. The driver
// makes those of a MIG device before NVML lists it, and not every driver tells when it
// does. No pause is longer than what a new layout may take to be specified, 300 ms; and
// a driver that has not listed it in two seconds tells by an event or is probed.
var pauses = []time.Duration{
	20 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond,
	250 * time.Millisecond, 250 * time.Millisecond, 250 * time.Millisecond, 250 * time.Millisecond, 250 * time.Millisecond, 250 * time.Millisecond,
}

// again is when to look again; the zero value is never.
type again struct {
	due  <-chan time.Time
	left []time.Duration
}

// begin begins with the first pause.
func (a *again) begin() {
	a.left = pauses
	a.next()
}

// next begins the next pause, if there is one.
func (a *again) next() {
	a.due = nil
	if len(a.left) > 0 {
		a.due, a.left = time.After(a.left[0]), a.left[1:]
	}
}

// over says that there is no look any more.
func (a *again) over() bool { return a.due == nil }

func (a *again) end() { *a = again{} }
