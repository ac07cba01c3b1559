// Package serve installs a driver on a node and keeps it installed. Driver.Run takes the node's
// lock (withLock), and surveys the node and the image (findModules). It adopts the loaded modules
// if they match the image's, or else unloads the old driver (replaceDriver). Then it loads the
// missing modules (loadModules), starts the daemons, mounts the driver root (mountRoot) and reports
// that the driver is ready. It watches the driver (watchDriver) until ctx ends, and shuts down.
//
// Modules outlive the container that loaded them. They are recorded, with their parameters, before
// they are loaded. Wherever a container was killed, the next one adopts the modules that match the
// record and loads the missing ones.
package serve

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/driver/root"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/metricsserver"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// Reasons in the driver's state, besides those of package kernel.
const (
	ReasonStarting   gpu.Reason = "DriverStarting"   // it is being loaded
	ReasonFailed     gpu.Reason = "DriverFailed"     // something on the node failed, such as a full disk
	ReasonStopped    gpu.Reason = "DriverStopped"    // it was unloaded
	ReasonUnattended gpu.Reason = "DriverUnattended" // it is loaded, but its container has ended
	ReasonTaken      gpu.Reason = "DriverTaken"      // another program removed modules or the driver root
)

// Config configures the driver to install, and its places on the node.
type Config struct {
	Survey
	Sources   Sources
	Root      string // where the driver root is mounted: /run/nvidia/driver
	StateDir  string // of all components
	OutputDir string // folder of the readiness files by NVIDIA's names, such as .driver-ctr-ready, which other operands wait for
	Listen    string // of health and metrics; "": nowhere
	Log       *slog.Logger
}

// Driver is one run of the driver container.
type Driver struct {
	Config
	boot         string          // ID of the node's boot
	daemons      *runningDaemons // nil while none run; used only by the goroutine that holds the lock
	notes        []string        // about the node, for the state of the ready driver
	builtRequest *buildRequest   // the modules that this node has built and not pushed to a registry; nil: none

	mu        sync.Mutex
	published nodestate.State // the state last written
}

// New returns a Driver that has not started.
func New(c Config) (*Driver, error) {
	boot, err := nodestate.BootID()
	if err != nil {
		return nil, err
	}
	return &Driver{Config: c, boot: boot}, nil
}

// Run installs the driver and keeps it until ctx ends. It then unloads the driver, or leaves
// it if it is in use, and returns nil.
func (d *Driver) Run(ctx context.Context) error {
	registry := metricsserver.NewRegistry()
	d.register(registry)
	group, inner := errgroup.WithContext(ctx)
	group.Go(func() error { return metricsserver.Serve(inner, d.Listen, registry, d.Ready) })
	group.Go(func() error { return d.withLock(inner, d.runLocked) })
	if err := group.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Load installs the driver, without daemons, and returns.
func (d *Driver) Load(ctx context.Context) error {
	return d.withLock(ctx, func(ctx context.Context) error {
		_, err := d.install(ctx, false)
		return d.publishFailure(err)
	})
}

// Unload removes the driver from the node.
func (d *Driver) Unload(ctx context.Context) error {
	return d.withLock(ctx, func(ctx context.Context) error {
		if err := d.System.CheckUnused(); err != nil {
			return err // the driver stays as ready as it was
		}
		if err := errors.Join(d.removeReadyFiles(), d.unloadDriver(ctx)); err != nil {
			return d.publishFailure(err)
		}
		return d.publish(nodestate.Waiting, ReasonStopped, "the driver was unloaded by gpu-driver unload")
	})
}

// runLocked installs the driver, watches it until ctx ends, and shuts down. The lock is held.
func (d *Driver) runLocked(ctx context.Context) error {
	s, err := d.installWhenFree(ctx)
	switch {
	case errors.Is(err, ErrNoGPU):
		why := err.Error()
		if err = errors.Join(d.removeReadyFiles(), d.publish(nodestate.Waiting, kernel.ReasonNoDevice, why)); err == nil {
			d.Log.Info("no driver is loaded", "reason", kernel.ReasonNoDevice, "why", why)
			<-ctx.Done()
			return ctx.Err()
		}
	case err == nil:
		stop := d.pushModulesInBackground(ctx)
		err = d.watchDriver(ctx, s)
		stop()
	}
	if ctx.Err() != nil {
		err = errors.Join(err, d.removeReadyFiles()) // before the daemons are stopped, which takes time
	}
	busy, stopErr := d.stopUnusedDaemons()
	err = errors.Join(err, stopErr)
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, context.Canceled) && (err == nil || errors.Is(err, context.Canceled)):
		// SIGTERM: the kubelet's grace period bounds the rest.
		return d.shutDown(context.WithoutCancel(ctx), busy)
	case cause != nil && errors.Is(err, context.Canceled):
		return d.publishFailure(cause) // the other goroutine of Run has failed
	}
	return d.publishFailure(err)
}

// installWhenFree calls install. While processes use a driver that has to be replaced, it waits for
// them to end and tries again.
func (d *Driver) installWhenFree(ctx context.Context) (Snapshot, error) {
	for {
		s, err := d.install(ctx, true)
		e, ok := errors.AsType[*kernel.Error](err)
		if !ok || e.Reason != kernel.ReasonInUse {
			return s, err
		}
		users := d.System.FindUsers()
		if len(users) == 0 {
			return s, err
		}
		if d.isNewWait(e) {
			if err := errors.Join(d.removeReadyFiles(), d.publish(nodestate.Waiting, e.Reason, e.Message)); err != nil {
				return s, err
			}
			d.Log.Warn("waiting for processes that use the driver to end", "reason", e.Reason, "err", e)
		}
		if err := waitForExit(ctx, users); err != nil {
			return s, err
		}
	}
}

// install ensures that the wanted driver is loaded, its root is mounted and, with
// withDaemons, its daemons run.
func (d *Driver) install(ctx context.Context, withDaemons bool) (Snapshot, error) {
	begun := time.Now()
	if err := d.CheckGPU(); err != nil {
		return Snapshot{}, err
	}
	s, err := d.findModules(ctx)
	if err != nil {
		return s, err
	}
	adopted := d.canAdopt(s)
	if !adopted {
		if err := d.replaceDriver(ctx, s); err != nil {
			return s, err
		}
		if s.Loaded, err = d.System.ReadLoaded(); err != nil {
			return s, err
		}
	}
	if s.Passed != "" {
		d.Log.Info("GPUs are left to virtual machines", "held", s.Passed)
	}
	freed, err := d.takeGPUs(ctx, s)
	if err != nil {
		return s, err
	}
	loaded, err := d.loadModules(ctx, s)
	if err != nil {
		return s, err
	}
	for _, address := range freed { // modules that were loaded before do not look for them
		if err := d.System.Probe(ctx, address); err != nil {
			d.Log.Warn("a GPU is not offered to the driver", "gpu", address, "err", err)
		}
	}
	// Open the devices of adopted modules, too: an earlier container may have failed to. They stay
	// open until the daemons keep the GPUs initialised.
	devices, err := d.System.OpenDevices(ctx, "/dev")
	if err != nil {
		return s, err
	}
	defer func() { _ = devices.Close() }()
	for _, err := range devices.Failures() {
		d.Log.Warn("a GPU does not work", "err", err)
	}
	if withDaemons {
		if d.daemons, err = d.startDaemons(ctx); err != nil {
			return s, err
		}
	}
	if note := d.System.DescribeGPUMemory(ctx); note != "" {
		d.Log.Warn("GPU memory is memory of the node", "note", note)
		d.notes = append(d.notes, note)
	}
	if err := d.mountRoot(s); err != nil {
		return s, err
	}
	if err := errors.Join(d.publishReady(s), d.writeReadyFiles()); err != nil {
		return s, err
	}
	d.Log.Info("ready", "version", s.Version, "kind", s.Kind, "why", s.Why, "kernel", s.Release, "root", d.Root,
		"adopted", adopted, "loaded", loaded, "took", time.Since(begun).Round(time.Millisecond))
	return s, nil
}

// replaceDriver unloads the old driver, after it has checked what it can of the new one.
func (d *Driver) replaceDriver(ctx context.Context, s Snapshot) error {
	steps, err := s.Plan(nil)
	if err != nil {
		return err
	}
	if err := errors.Join(d.verifySignatures(steps), d.System.CheckUnused()); err != nil {
		return err
	}
	if err := errors.Join(d.removeReadyFiles(), d.publish(nodestate.Waiting, ReasonStarting, "the driver "+s.Version+" is being loaded")); err != nil {
		return err
	}
	return d.unloadDriver(ctx)
}

// loadModules loads the modules that are missing and returns their number.
func (d *Driver) loadModules(ctx context.Context, s Snapshot) (int, error) {
	steps, err := s.Plan(s.Loaded)
	if err != nil || len(steps) == 0 {
		return 0, err
	}
	if err := errors.Join(d.copyFirmware(steps), d.saveLoaded(s)); err != nil {
		return 0, err
	}
	if err := d.System.LoadSteps(ctx, steps, d.Log); err != nil {
		return 0, err
	}
	return len(steps), d.checkLoadedModules(s)
}

// verifySignatures returns an error for a module whose signature the kernel is certain to reject,
// and logs those that it may reject.
func (d *Driver) verifySignatures(steps []kernel.Step) error {
	trust := d.System.ReadTrust()
	for _, step := range steps {
		if !step.Ours {
			continue
		}
		if err := trust.Check(step.Module); err != nil {
			return err
		}
		if reason := trust.MayRejectReason(step.Module); reason != "" {
			d.Log.Warn("the kernel may refuse a module", "doubt", reason)
		}
	}
	return nil
}

// mountRoot mounts the driver root.
func (d *Driver) mountRoot(s Snapshot) error {
	propagates, err := root.Mount(s.Image.Dir(), d.Root)
	if err != nil {
		return err
	}
	if !propagates {
		d.Log.Warn("the driver root is visible only in this mount namespace: mount the folder above it with mountPropagation: Bidirectional", "root", d.Root)
	}
	return nil
}

// unloadDriver unloads the modules and removes the driver root, unless the driver is in use.
func (d *Driver) unloadDriver(ctx context.Context) error {
	if err := d.System.CheckUnused(); err != nil {
		return err
	}
	// The modules first: if they are in use by now, the rest stays.
	if err := d.System.UnloadAll(ctx, d.Log); err != nil {
		return err
	}
	return errors.Join(root.Remove(d.Root), d.removeLoaded(), d.removeFirmware())
}

// shutDown unloads the driver after SIGTERM, or leaves it if it is in use. busy is why the daemons were left;
// nil: they were stopped.
func (d *Driver) shutDown(ctx context.Context, busy error) error {
	err := d.removeReadyFiles()
	if err != nil {
		return err
	}
	if err = busy; err == nil {
		if err = d.unloadDriver(ctx); err != nil && ReasonOf(err) != kernel.ReasonInUse {
			return d.publishFailure(err)
		}
	}
	if err != nil {
		d.Log.Info("the driver stays, for it is in use; the next container adopts it", "by", err)
		return d.publish(nodestate.Degraded, ReasonUnattended, "the driver's container has ended; the driver stays: "+err.Error())
	}
	return d.publish(nodestate.Waiting, ReasonStopped, "the driver's container has ended and nobody used the driver: it was unloaded")
}

// publishFailure removes the readiness files, publishes the error as the state, and returns it. It
// does nothing if err is nil.
func (d *Driver) publishFailure(err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(err, d.removeReadyFiles(), d.publish(nodestate.Failed, ReasonOf(err), strings.ReplaceAll(err.Error(), "\n", "; ")))
}

// ReasonOf returns the reason of an error, ReasonFailed where it has none of its own.
func ReasonOf(err error) gpu.Reason {
	if e, ok := errors.AsType[*kernel.Error](err); ok {
		return e.Reason
	}
	return ReasonFailed
}
