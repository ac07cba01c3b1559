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
	"github.com/gpuready/gpuready/internal/metricsserver"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// Source is a driver that lists GPUs and sets their compute mode.
type Source interface {
	gpu.Source
	Modes
}

// Opened is an open driver.
type Opened struct {
	Source  Source
	Root    string         // host path of the driver root
	Library driver.Library // the loaded libnvidia-ml
}

// Config holds the inputs of Run. Paths are host paths, found below HostRoot.
type Config struct {
	HostRoot string
	StateDir string         // of all components
	Listen   string         // address of health and metrics; "": none
	Settings *config.Config // in force from the start, and complete; nil: none yet
	// Follow calls deliver with each new configuration, or with the error of a refused one,
	// until ctx ends, from one goroutine. nil: the settings never change.
	Follow func(ctx context.Context, deliver func(*config.Config, error)) error
	Driver driver.Place // the settings' driver root, if set, replaces its Root
	Open   func(driver.Place) (Opened, error)
	Log    *slog.Logger
}

// ErrReplaced means that the driver's library was replaced. The process must be
// replaced too, since it cannot load a second one.
var ErrReplaced = errors.New("the driver's library was replaced")

const (
	reasonWaiting    gpu.Reason = "MPSNotReady"
	reasonNoGPU      gpu.Reason = "NoGPU"
	reasonNothing    gpu.Reason = "NothingShared"
	reasonDriverGone gpu.Reason = "DriverFailed"
	reasonRefused    gpu.Reason = "ConfigRefused"
	reasonUnchosen   gpu.Reason = "ConfigNotChosen"
)

// daemon is the state of a Run, that is of the command gpu-device-plugin mps-daemon. NVIDIA's
// own control daemons are its children: see control.
type daemon struct {
	cfg          Config
	boot         string
	metrics      *Metrics
	stateChanged chan struct{}
	resync       chan struct{} // signals other settings or GPUs
	stateHold    io.Closer     // shows readers of the state that this process lives (nodestate.Hold); nil before the first write

	claims  *claims
	writeMu sync.Mutex           // held while the state is written
	fault   nodestate.WriteFault // of the state file; guarded by writeMu

	health health.State // used by watchGPUs: the GPUs of this process

	mu          sync.Mutex
	settings    *config.Config                   // in force; nil: none yet
	refused     error                            // why the latest configuration was refused
	driverFault gpu.Fault                        // why there is no driver; zero: there is one
	resources   map[string]nodestate.MPSResource // by name
	leftOut     []plan.LeftOut                   // devices that MPS cannot share
	endMessage  string                           // why this process ends; "": it runs
}

// Run runs the control daemons until ctx ends and then returns nil, or returns ErrReplaced.
func Run(ctx context.Context, cfg Config) error {
	boot, err := nodestate.BootIDAt(cfg.HostRoot)
	if err != nil {
		return err
	}
	reg := metricsserver.NewRegistry()
	d := &daemon{
		cfg: cfg, boot: boot, metrics: NewMetrics(reg), stateChanged: make(chan struct{}, 1), resync: make(chan struct{}, 1), settings: cfg.Settings, resources: map[string]nodestate.MPSResource{}, health: health.New(gpu.Fault{}),
		driverFault: gpu.Fault{Reason: reasonStarting, Message: "the driver has not been read yet"},
	}
	claimed, lost := d.readClaimed()
	d.claims = newClaims(d.saveState, claimed, lost)
	// Replace the state of an earlier process: its daemons ended with it.
	d.saveState()
	defer d.releaseHold()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return metricsserver.Serve(ctx, cfg.Listen, reg, d.Ready) })
	group.Go(func() error { return d.watchSettings(ctx) })
	group.Go(func() error { return d.watchGPUs(ctx) })
	group.Go(func() error { return d.writeStates(ctx) })
	err = group.Wait()
	d.mu.Lock()
	d.endMessage = "gpu-device-plugin mps-daemon has ended"
	if err != nil && !errors.Is(err, context.Canceled) {
		d.endMessage += ": " + err.Error()
	}
	d.mu.Unlock()
	d.saveState()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func (d *daemon) releaseHold() {
	if d.stateHold != nil {
		_ = d.stateHold.Close()
	}
}

// watchSettings applies each configuration that Config.Follow delivers. Another driver
// needs a new process.
func (d *daemon) watchSettings(ctx context.Context) error {
	if d.cfg.Follow == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := d.cfg.Follow(ctx, func(c *config.Config, err error) {
		d.mu.Lock()
		previous := d.settings
		if d.refused = err; err == nil {
			d.settings = c
		}
		d.mu.Unlock()
		if err == nil && previous != nil && driverRoot(previous) != driverRoot(c) {
			cancel(fmt.Errorf("%w: flags.nvidiaDriverRoot was %q and is %q", ErrReplaced, driverRoot(previous), driverRoot(c)))
		}
		notify(d.resync)
		notify(d.stateChanged)
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

// currentSettings returns the settings in force; nil: none yet.
func (d *daemon) currentSettings() *config.Config {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.settings
}

// notify makes c ready to receive from.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// watchGPUs uses the driver until ctx ends. An error does not stop the control daemons,
// which would end all clients' work: only a driver that is gone or being replaced does.
func (d *daemon) watchGPUs(ctx context.Context) error {
	controls := &controls{daemon: d, ctx: ctx, running: map[string]*running{}}
	defer controls.stopAll(context.Canceled)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		if err := d.waitUntilNeeded(ctx); err != nil {
			return err
		}
		if root := driverRoot(d.currentSettings()); root != "" {
			d.cfg.Driver.Root = root
		}
		opened, err := driver.WaitOpen(ctx, d.cfg.Driver, func() (Opened, error) { return d.cfg.Open(d.cfg.Driver) },
			func(err error) bool { return !errors.Is(err, nvml.ErrOtherLibrary) },
			func(err error) {
				if errors.Is(err, gpu.ErrNoDriver) || errors.Is(err, gpu.ErrVersionMismatch) {
					controls.stopAll(fmt.Errorf("the driver is gone: %w", err))
				}
				d.reportNoDriver(err)
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
		err = d.watchDriver(ctx, opened, controls)
		switch {
		case ctx.Err() != nil:
			controls.stopAll(context.Cause(ctx))
		case errors.Is(err, ErrReplaced):
			controls.stopAll(err)
		}
		controls.modes.setModes(nil)
		if closeErr := opened.Source.Close(); closeErr != nil {
			d.cfg.Log.Warn("closing the driver", "message", closeErr.Error())
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, ErrReplaced) {
			return err
		}
		if errors.Is(err, errNothingShared) {
			continue
		}
		d.setDriverFault(gpu.Fault{Reason: reasonDriverGone, Message: err.Error()})
		if time.Since(began) > steadyAfter {
			pause = firstPause
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// errNothingShared means that the settings share nothing by MPS.
var errNothingShared = errors.New("nothing is shared by MPS")

// waitUntilNeeded waits until the settings share something by MPS, or a mode is to be
// restored. Until then the driver stays closed, since an open driver prevents a GPU
// from being reset.
func (d *daemon) waitUntilNeeded(ctx context.Context) error {
	if c := d.currentSettings(); c != nil && !sharesByMPS(c) {
		d.publishInjection("", nil)
	}
	for c := d.currentSettings(); !sharesByMPS(c) && (c == nil || len(d.claims.list()) == 0); c = d.currentSettings() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.resync:
		}
	}
	return nil
}

func sharesByMPS(c *config.Config) bool {
	if c == nil {
		return false
	}
	strategy, _ := c.Sharing.Active()
	return strategy == config.SharingMPS
}

// reportNoDriver records why there is no driver.
func (d *daemon) reportNoDriver(err error) {
	if fault := driver.PlatformFault(d.cfg.HostRoot); fault != (gpu.Fault{}) {
		d.setDriverFault(fault)
		return
	}
	if errors.Is(err, gpu.ErrNoDriver) && !driver.HasGPU(d.cfg.HostRoot) {
		d.setDriverFault(gpu.Fault{Reason: reasonNoGPU, Message: "no NVIDIA GPU on this node; idle until a driver shows one: " + err.Error()})
		return
	}
	d.setDriverFault(gpu.Fault{Reason: driver.Reason(err), Message: "waiting for a driver: " + err.Error()})
}

func (d *daemon) setDriverFault(why gpu.Fault) {
	d.mu.Lock()
	same := d.driverFault == why
	d.driverFault = why
	d.mu.Unlock()
	if !same {
		d.cfg.Log.Warn(why.Message, "reason", string(why.Reason))
		notify(d.stateChanged)
	}
}

// watchDriver watches one source until it fails, ctx ends, or its library is replaced.
// The control daemons keep running.
func (d *daemon) watchDriver(ctx context.Context, o Opened, controls *controls) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer cancel(nil)
	if o.Library.Path != "" {
		helpers.Go(func() {
			place := d.cfg.Driver
			if o.Root == driver.Containerised {
				place.Root = o.Root // a library elsewhere belongs to another driver
			}
			switch err := driver.WaitReplaced(ctx, place, o.Library); {
			case err == nil:
				cancel(fmt.Errorf("%w: %s", ErrReplaced, o.Library.Path))
			case ctx.Err() == nil:
				cancel(fmt.Errorf("watch the driver's library: %w", err))
			}
		})
	}
	helpers.Go(func() {
		err := o.Source.Watch(ctx, func() { notify(d.resync) }, func(gpu.Event) { notify(d.resync) })
		if ctx.Err() == nil {
			cancel(fmt.Errorf("watch the GPUs: %w", err))
		}
	})
	controls.modes.setModes(o.Source)
	for {
		settings := d.currentSettings()
		if !sharesByMPS(settings) {
			controls.stopAll(errNothingShared)
			d.removeResourcesExcept(nil)
		}
		if !sharesByMPS(settings) && len(d.claims.list()) == 0 {
			return errNothingShared
		}
		snap, err := o.Source.Snapshot(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
		d.health = d.health.ApplySnapshot(snap, time.Now())
		p := plan.Compute(settings, snap, d.health)
		d.recordPlan(p)
		specs := Specs(settings, p, d.health)
		controls.applySpecs(o.Root, Root(settings), specs)
		d.publishInjection(Root(settings), specs)
		var retry <-chan time.Time
		switch allRestored := d.restoreUnshared(ctx, o.Source, snap, specs); {
		case !allRestored:
			retry = time.After(lastPause) // no event signals when it would succeed
		case !sharesByMPS(settings):
			return errNothingShared
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-retry:
		case <-d.resync:
		}
	}
}
