// Package serve installs a driver on a node and keeps it there. It is one pass of a state
// machine: Lock, Survey, Adopt or Unload, Verify, Load, Mount, Ready, and the shutdown.
//
// Modules outlive the container that loaded them. They are recorded, with their parameters,
// before they are loaded. A restarted container adopts the modules that match and loads the
// missing ones, at whatever point the last one was killed.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/driver/root"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/metricsserver"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// Reasons in the driver's state, besides those of package kernel.
const (
	ReasonStarting   gpu.Reason = "DriverStarting"   // it is being loaded
	ReasonFailed     gpu.Reason = "DriverFailed"     // something on the node failed, such as a full disk
	ReasonStopped    gpu.Reason = "DriverStopped"    // it was unloaded
	ReasonUnattended gpu.Reason = "DriverUnattended" // it is loaded, but its container has ended
	ReasonRemoved    gpu.Reason = "DriverTaken"      // somebody else removed modules or the driver root
)

// Config configures the driver to install, and its places on the node.
type Config struct {
	Survey
	Sources   Sources
	Root      string // where the driver root is shown: /run/nvidia/driver
	StateDir  string // of all components
	OutputDir string // of the ecosystem's readiness files
	Listen    string // of health and metrics; "": nowhere
	Log       *slog.Logger
}

// Driver is one run of the driver container.
type Driver struct {
	Config
	boot    string
	daemons *runningDaemons // nil while none run; used only by the goroutine that holds the lock
	built   *order          // the order that this node has built; nil: none

	mu        sync.Mutex
	published nodestate.State
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
		return d.fail(err)
	})
}

// Unload removes the driver from the node.
func (d *Driver) Unload(ctx context.Context) error {
	return d.withLock(ctx, func(ctx context.Context) error {
		if err := d.System.Busy(); err != nil {
			return err // its readiness is unchanged
		}
		if err := errors.Join(d.removeReadyFiles(), d.unload(ctx)); err != nil {
			return d.fail(err)
		}
		return d.publish(nodestate.Waiting, ReasonStopped, "the driver was unloaded by gpu-driver unload")
	})
}

// runLocked is the part of Run that holds the lock.
func (d *Driver) runLocked(ctx context.Context) error {
	s, err := d.installWhenFree(ctx)
	switch {
	case errors.Is(err, ErrNoGPU):
		if err = errors.Join(d.removeReadyFiles(), d.publish(nodestate.Waiting, kernel.ReasonNoDevice, err.Error())); err == nil {
			d.Log.Info("no driver is loaded", "reason", kernel.ReasonNoDevice, "why", ErrNoGPU)
			<-ctx.Done()
			return ctx.Err()
		}
	case err == nil:
		stop := d.pushInBackground(ctx)
		err = d.watch(ctx, s)
		stop()
	}
	if ctx.Err() != nil {
		err = errors.Join(err, d.removeReadyFiles()) // before the daemons are stopped, which takes time
	}
	err = errors.Join(err, d.stopDaemons())
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, context.Canceled) && (err == nil || errors.Is(err, context.Canceled)):
		// SIGTERM: the kubelet's grace period bounds the rest.
		return d.shutDown(context.WithoutCancel(ctx))
	case cause != nil && errors.Is(err, context.Canceled):
		return d.fail(cause) // the other goroutine of Run has failed
	}
	return d.fail(err)
}

// installWhenFree is install, but waits while processes use a driver that has to be replaced.
func (d *Driver) installWhenFree(ctx context.Context) (Snapshot, error) {
	for {
		s, err := d.install(ctx, true)
		e, is := errors.AsType[*kernel.Error](err)
		if !is || e.Reason != kernel.ReasonInUse {
			return s, err
		}
		users := d.System.Users()
		if len(users) == 0 {
			return s, err
		}
		if d.changed(e) {
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
	adopted := d.adopts(s)
	if !adopted {
		if err := d.replace(ctx, s); err != nil {
			return s, err
		}
		if s.Loaded, err = d.System.Loaded(); err != nil {
			return s, err
		}
	}
	loaded, err := d.load(ctx, s)
	if err != nil {
		return s, err
	}
	// Adopted modules need it, too: an earlier container may have failed here. The devices stay
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

// replace unloads the old driver, after all possible checks of the new one.
func (d *Driver) replace(ctx context.Context, s Snapshot) error {
	steps, err := s.Plan(nil)
	if err != nil {
		return err
	}
	if err := errors.Join(d.verify(steps), d.System.Busy()); err != nil {
		return err
	}
	if err := errors.Join(d.removeReadyFiles(), d.publish(nodestate.Waiting, ReasonStarting, "the driver "+s.Version+" is being loaded")); err != nil {
		return err
	}
	return d.unload(ctx)
}

// load loads the missing modules and returns their number.
func (d *Driver) load(ctx context.Context, s Snapshot) (int, error) {
	steps, err := s.Plan(s.Loaded)
	if err != nil || len(steps) == 0 {
		return 0, err
	}
	if err := errors.Join(d.copyFirmware(steps), d.saveLoaded(s)); err != nil {
		return 0, err
	}
	if err := d.System.Apply(ctx, steps, d.Log); err != nil {
		return 0, err
	}
	return len(steps), d.check(s)
}

// verify rejects modules that the kernel is certain to reject.
func (d *Driver) verify(steps []kernel.Step) error {
	trust := d.System.Trust()
	for _, step := range steps {
		if !step.Ours {
			continue
		}
		if err := trust.Check(step.Module); err != nil {
			return err
		}
		if doubt := trust.Doubt(step.Module); doubt != "" {
			d.Log.Warn("the kernel may refuse a module", "doubt", doubt)
		}
	}
	return nil
}

// check fails unless the kernel has the image's build of each wanted module.
func (d *Driver) check(s Snapshot) error {
	loaded, err := d.System.Loaded()
	if err != nil {
		return err
	}
	for _, name := range s.Wanted {
		l, is := loaded[name]
		switch {
		case !is:
			return fmt.Errorf("module %s is no longer loaded: somebody unloaded it", name)
		case !d.System.Describe(l).Same(s.Files[name].Info):
			return fmt.Errorf("module %s in the kernel is not the one of the image: somebody loaded another one", name)
		}
	}
	return nil
}

// mountRoot mounts the driver root.
func (d *Driver) mountRoot(s Snapshot) error {
	propagates, err := root.Show(s.Image.Dir(), d.Root)
	if err != nil {
		return err
	}
	if !propagates {
		d.Log.Warn("the driver root is visible only in this mount namespace: mount the folder above it with mountPropagation: Bidirectional", "root", d.Root)
	}
	return nil
}

// watch returns when the driver root or modules were removed, or ctx ends. Meanwhile it
// publishes the state of the driver's daemons.
func (d *Driver) watch(ctx context.Context, s Snapshot) error {
	mounts, err := host.WatchMounts([]string{d.Root})
	if err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	mounted, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- mounts.Run(watching, func() {
			select {
			case mounted <- struct{}{}:
			default:
			}
		})
	}()
	again := time.NewTicker(recheck) // the kernel does not notify of removed modules
	defer again.Stop()
	err = d.checkRoot() // for changes before the watch began
	for err == nil {
		select {
		case <-mounted:
			err = d.checkRoot()
		case <-again.C:
			if err = d.check(s); err != nil {
				err = &kernel.Error{Reason: ReasonRemoved, Message: err.Error(), Err: err}
			}
		case <-d.daemons.changes():
			err = d.publishDaemons(s)
		case err = <-ended:
			stop()
			return err
		}
	}
	stop()
	if watched := <-ended; !errors.Is(watched, context.Canceled) {
		err = errors.Join(err, watched)
	}
	return err
}

// checkRoot fails if the driver root is no longer mounted.
func (d *Driver) checkRoot() error {
	there, err := root.Mounted(d.Root)
	if err == nil && !there {
		err = &kernel.Error{Reason: ReasonRemoved, Message: d.Root + ": the driver root was unmounted; restart gpu-driver to mount it again"}
	}
	return err
}

// publishDaemons publishes that a required daemon has ended, or is ready again. For optional
// daemons it publishes only changes of which ones run: one that fails repeatedly has other
// last lines each time, and must not change the state.
func (d *Driver) publishDaemons(s Snapshot) error {
	failed := d.daemons.failed()
	lacking, _ := d.daemons.findLacking()
	switch {
	case failed == nil && d.daemons.Ready() == nil && (d.Ready() != nil || !slices.Equal(lacking, d.daemons.lacking)):
		return d.publishReady(s)
	case failed != nil:
		return d.publish(nodestate.Degraded, kernel.ReasonDeviceInitFailed, failed.Error())
	}
	return nil
}

// unload removes root and modules, unless they are in use.
func (d *Driver) unload(ctx context.Context) error {
	if err := d.System.Busy(); err != nil {
		return err
	}
	// The modules first: if they are in use by now, the rest stays.
	if err := d.System.UnloadAll(ctx, d.Log); err != nil {
		return err
	}
	return errors.Join(root.Remove(d.Root), d.removeLoaded(), d.removeFirmware())
}

// shutDown unloads the driver after SIGTERM, or leaves it if it is in use.
func (d *Driver) shutDown(ctx context.Context) error {
	if err := d.removeReadyFiles(); err != nil {
		return err
	}
	err := d.unload(ctx)
	if e, is := errors.AsType[*kernel.Error](err); is && e.Reason == kernel.ReasonInUse {
		d.Log.Info("the driver stays, for it is in use; the next container adopts it", "by", e.Message)
		return d.publish(nodestate.Degraded, ReasonUnattended, "the driver's container has ended; the driver stays: "+e.Message)
	}
	if err != nil {
		return d.fail(err)
	}
	return d.publish(nodestate.Waiting, ReasonStopped, "the driver's container has ended and nobody used the driver: it was unloaded")
}

// fail publishes why the driver is not ready and returns err.
func (d *Driver) fail(err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(err, d.removeReadyFiles(), d.publish(nodestate.Failed, ReasonOf(err), strings.ReplaceAll(err.Error(), "\n", "; ")))
}

// ReasonOf returns the reason of an error, ReasonFailed where it has none of its own.
func ReasonOf(err error) gpu.Reason {
	if e, is := errors.AsType[*kernel.Error](err); is {
		return e.Reason
	}
	return ReasonFailed
}
