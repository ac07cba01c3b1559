package mps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/driver"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/metrics"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// Source is a driver that is asked for GPUs and their compute mode.
type Source interface {
	gpu.Source
	Modes
}

// Opened is a driver that is in use.
type Opened struct {
	Source  Source
	Root    string         // host path of the driver root
	Library driver.Library // the loaded libnvidia-ml
}

// Config is what Run is told. Paths are host paths; HostRoot is where they are seen.
type Config struct {
	HostRoot string
	StateDir string
	Listen   string
	Settings *config.Config // in force from the start, and complete; nil: none yet
	// Follow tells of each configuration that comes, and of each that is refused and
	// why, until ctx ends, from one goroutine. nil: none comes.
	Follow func(ctx context.Context, deliver func(*config.Config, error)) error
	Driver driver.Place // its Root is that of the settings, where they have one
	Open   func(driver.Place) (Opened, error)
	Log    *slog.Logger
}

// ErrReplaced means that the driver's library was replaced: the process must be
// replaced too, since it can load no other.
var ErrReplaced = errors.New("the driver's library was replaced")

const (
	reasonWaiting    gpu.Reason = "MPSNotReady"
	reasonNoGPU      gpu.Reason = "NoGPU"
	reasonNothing    gpu.Reason = "NothingShared"
	reasonDriverGone gpu.Reason = "DriverFailed"
	reasonRefused    gpu.Reason = "ConfigRefused"
	reasonUnchosen   gpu.Reason = "ConfigNotChosen"
)

// daemon is the process.
type daemon struct {
	cfg   Config
	boot  string
	meter *Metrics
	dirty chan struct{}
	look  chan struct{} // other settings, or GPUs
	alive io.Closer     // nodestate.Hold; nil: nothing has been written yet

	health health.State // of watchGPUs: which GPUs there were

	mu        sync.Mutex
	settings  *config.Config                   // in force; nil: none yet
	refused   error                            // why another configuration is not
	absent    gpu.Fault                        // why there is no driver; zero: there is one
	resources map[string]nodestate.MPSResource // by name
	left      []plan.Left                      // what cannot be shared by MPS
	ended     string                           // why it ends
	writeErr  string
}

// Run runs the daemons until ctx ends and returns nil then, or ErrReplaced.
func Run(ctx context.Context, cfg Config) error {
	boot, err := nodestate.BootIDAt(cfg.HostRoot)
	if err != nil {
		return err
	}
	reg := metrics.NewRegistry()
	d := &daemon{
		cfg: cfg, boot: boot, meter: NewMetrics(reg), dirty: make(chan struct{}, 1), look: make(chan struct{}, 1), settings: cfg.Settings, resources: map[string]nodestate.MPSResource{}, health: health.New(gpu.Fault{}),
		absent: gpu.Fault{Reason: reasonStarting, Message: "the driver has not been read yet"},
	}
	// The word of the process before must not stand: its daemons ended with it.
	d.write()
	defer d.letGo()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return metrics.Serve(ctx, cfg.Listen, reg, d.Ready) })
	group.Go(func() error { return d.watchSettings(ctx) })
	group.Go(func() error { return d.watchGPUs(ctx) })
	group.Go(func() error { return d.writeStates(ctx) })
	err = group.Wait()
	d.mu.Lock()
	d.ended = "gpu-device-plugin mps-daemon has ended"
	if err != nil && !errors.Is(err, context.Canceled) {
		d.ended += ": " + err.Error()
	}
	d.mu.Unlock()
	d.write()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func (d *daemon) letGo() {
	if d.alive != nil {
		_ = d.alive.Close()
	}
}

// watchSettings applies each configuration that comes. One that takes another
// driver takes another process.
func (d *daemon) watchSettings(ctx context.Context) error {
	if d.cfg.Follow == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := d.cfg.Follow(ctx, func(c *config.Config, err error) {
		d.mu.Lock()
		was := d.settings
		if d.refused = err; err == nil {
			d.settings = c
		}
		d.mu.Unlock()
		if err == nil && was != nil && driverRoot(was) != driverRoot(c) {
			cancel(fmt.Errorf("%w: flags.nvidiaDriverRoot was %q and is %q", ErrReplaced, driverRoot(was), driverRoot(c)))
		}
		poke(d.look)
		poke(d.dirty)
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func driverRoot(c *config.Config) string {
	if root := c.Flags.NvidiaDriverRoot; root != nil {
		return *root
	}
	return ""
}

// inForce are the settings; nil: none yet.
func (d *daemon) inForce() *config.Config {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.settings
}

// poke makes c ready to receive from.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// watchGPUs uses the driver until ctx ends. What goes wrong with that is no reason
// to end the control daemons, with which everybody's work would end: that is left to
// a driver that is gone, or to be replaced.
func (d *daemon) watchGPUs(ctx context.Context) error {
	controls := &controls{daemon: d, ctx: ctx, running: map[string]*running{}}
	defer controls.stop(context.Canceled)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		if err := d.needed(ctx); err != nil {
			return err
		}
		if root := driverRoot(d.inForce()); root != "" {
			d.cfg.Driver.Root = root
		}
		opened, err := driver.Wait(ctx, d.cfg.Driver, func() (Opened, error) { return d.cfg.Open(d.cfg.Driver) },
			func(err error) bool { return !errors.Is(err, nvml.ErrOtherLibrary) },
			func(err error) {
				if errors.Is(err, gpu.ErrNoDriver) || errors.Is(err, gpu.ErrVersionMismatch) {
					controls.stop(fmt.Errorf("the driver is gone: %w", err))
				}
				d.waiting(err)
			})
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, nvml.ErrOtherLibrary):
			return fmt.Errorf("%w: %w", ErrReplaced, err)
		case err != nil:
			return fmt.Errorf("wait for a driver: %w", err)
		}
		began := time.Now()
		err = d.use(ctx, opened, controls)
		switch {
		case ctx.Err() != nil:
			controls.stop(context.Cause(ctx))
		case errors.Is(err, ErrReplaced):
			controls.stop(err)
		case errors.Is(err, errNothing):
			controls.stop(err)
			d.keep(nil)
		}
		controls.modes.use(nil)
		if closeErr := opened.Source.Close(); closeErr != nil {
			d.cfg.Log.Warn("closing the driver", "message", closeErr.Error())
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, ErrReplaced) {
			return err
		}
		if errors.Is(err, errNothing) {
			continue
		}
		d.lost(gpu.Fault{Reason: reasonDriverGone, Message: err.Error()})
		if time.Since(began) > steady {
			pause = firstPause
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// errNothing says that the settings share nothing by MPS.
var errNothing = errors.New("nothing is shared by MPS")

// needed waits until the settings share something by MPS: until then the driver is
// left alone, as one that is in use keeps a GPU from being reset.
func (d *daemon) needed(ctx context.Context) error {
	for !shares(d.inForce()) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.look:
		}
	}
	return nil
}

func shares(c *config.Config) bool {
	if c == nil {
		return false
	}
	strategy, _ := c.Sharing.Active()
	return strategy == config.SharingMPS
}

// waiting says why there is no driver.
func (d *daemon) waiting(err error) {
	if errors.Is(err, gpu.ErrNoDriver) && !driver.HasGPU(d.cfg.HostRoot) {
		d.lost(gpu.Fault{Reason: reasonNoGPU, Message: "no NVIDIA GPU on this node; idle until a driver shows one: " + err.Error()})
		return
	}
	d.lost(gpu.Fault{Reason: driver.Reason(err), Message: "waiting for a driver: " + err.Error()})
}

func (d *daemon) lost(why gpu.Fault) {
	d.mu.Lock()
	same := d.absent == why
	d.absent = why
	d.mu.Unlock()
	if !same {
		d.cfg.Log.Warn(why.Message, "reason", string(why.Reason))
		poke(d.dirty)
	}
}

// use watches one source until it fails, ctx ends, or its library is replaced. The
// control daemons go on.
func (d *daemon) use(ctx context.Context, o Opened, controls *controls) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer cancel(nil)
	if o.Library.Path != "" {
		helpers.Go(func() {
			place := d.cfg.Driver
			if o.Root == driver.Containerised {
				place.Root = o.Root // what is elsewhere while it is gone is another's
			}
			switch err := driver.Replaced(ctx, place, o.Library); {
			case err == nil:
				cancel(fmt.Errorf("%w: %s", ErrReplaced, o.Library.Path))
			case ctx.Err() == nil:
				cancel(fmt.Errorf("watch the driver's library: %w", err))
			}
		})
	}
	helpers.Go(func() {
		err := o.Source.Watch(ctx, func() { poke(d.look) }, func(gpu.Event) { poke(d.look) })
		if ctx.Err() == nil {
			cancel(fmt.Errorf("watch the GPUs: %w", err))
		}
	})
	controls.modes.use(o.Source)
	for {
		settings := d.inForce()
		if !shares(settings) {
			return errNothing
		}
		snap, err := o.Source.Snapshot(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
		d.health = d.health.See(snap, time.Now())
		p := plan.Make(settings, snap, d.health)
		d.seen(p)
		controls.apply(o.Root, Root(settings), Specs(settings, p, d.health))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-d.look:
		}
	}
}
