package daemon

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/toolkit/setup"
)

// source is an open driver and the goroutine that watches it.
type source struct {
	gpu.Source
	snapshot gpu.Snapshot
	end      func() error // ends the goroutine, then closes the driver
}

// closeResettable closes the GPUs that need a reset, since a driver does not reset one
// that a process has open. Their last known devices stay specified.
func (s *source) closeResettable() {
	source, can := s.Source.(interface{ Release(ids []gpu.UUID) })
	if !can {
		return
	}
	var ids []gpu.UUID
	for _, d := range s.snapshot.Devices {
		if d.Fault.Reason == gpu.ReasonResetNeeded {
			ids = append(ids, d.UUID)
		}
	}
	source.Release(ids)
}

func (d *Daemon) open(ctx context.Context, driverRoot, library string) error {
	if library != "" {
		d.opened = library // even if Open fails: the process may have loaded it by then
	}
	opened, err := d.Driver.Open(driverRoot)
	if d.opened == "" { // it appeared just now
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
				d.trigger(nvmlEvent)
			}
		})
		if ctx.Err() == nil {
			// The specifications stay valid. Changes of MIG and hot-plugged devices are
			// then only noticed by their device nodes.
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

// close closes the driver, or leaves that to the end of the process when ctx ends. NVML's
// wait for events cannot be interrupted, so closing blocks until that times out.
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

// changed reports whether NVML fails or differs from the specified snapshot.
func (d *Daemon) changed(ctx context.Context) bool {
	now, err := d.source.Snapshot(ctx)
	if ctx.Err() != nil {
		return false // the daemon ends
	}
	return err != nil || !now.Equal(d.source.snapshot)
}

// pauses are the pauses between queries of NVML after device nodes have changed. The
// driver creates those of a MIG device before NVML lists it, and not every driver sends
// an event then. No pause exceeds the 300 ms within which a new layout has to be
// specified. A driver that lists it after more than two seconds sends an event or is
// probed.
var pauses = []time.Duration{
	20 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond,
	250 * time.Millisecond, 250 * time.Millisecond, 250 * time.Millisecond, 250 * time.Millisecond, 250 * time.Millisecond, 250 * time.Millisecond,
}

// again schedules further queries of NVML. The zero value schedules none.
type again struct {
	due  <-chan time.Time
	left []time.Duration
}

// begin starts the first pause.
func (a *again) begin() {
	a.left = pauses
	a.next()
}

// next starts the next pause, if there is one.
func (a *again) next() {
	a.due = nil
	if len(a.left) > 0 {
		a.due, a.left = time.After(a.left[0]), a.left[1:]
	}
}

// over reports whether no further query is scheduled.
func (a *again) over() bool { return a.due == nil }

func (a *again) end() { *a = again{} }
