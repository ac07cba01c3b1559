// Package serve brings a driver onto a node and keeps it there: one pass of a state
// machine, Lock, Survey, Adopt or Unload, Verify, Load, Mount, Ready, and its end.
//
// Modules outlive the container that loaded them. What was loaded, and with what, is
// written down before it is loaded: a container that is started again adopts the modules
// that are as it wants them and loads the missing ones, wherever the last one was killed.
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
	"github.com/gpuready/gpuready/internal/metrics"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// Reasons in the driver's state, besides those of package kernel.
const (
	ReasonStarting   gpu.Reason = "DriverStarting"   // it is being loaded
	ReasonFailed     gpu.Reason = "DriverFailed"     // something on the node failed, as a full disk
	ReasonStopped    gpu.Reason = "DriverStopped"    // it was unloaded
	ReasonUnattended gpu.Reason = "DriverUnattended" // it is loaded, its container is not there
	ReasonTaken      gpu.Reason = "DriverTaken"      // modules or root were taken away by somebody else
)

// Config names what to bring onto the node, and where.
type Config struct {
	Survey
	Sources   Sources
	Root      string // where the driver root is shown: /run/nvidia/driver
	StateDir  string // of all components
	OutputDir string // of the ecosystem's readiness files
	Listen    string // of health and metrics; "": nowhere
	Log       *slog.Logger
}

// Driver is one run.
type Driver struct {
	Config
	boot    string
	daemons *runningDaemons // nil while none run; of the goroutine that holds the lock
	made    *order          // what this node has built; nil: nothing

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

// Run brings the driver onto the node and holds it there until ctx ends; then it unloads
// it, or leaves it where somebody uses it, and returns nil.
func (d *Driver) Run(ctx context.Context) error {
	registry := metrics.NewRegistry()
	d.register(registry)
	group, inner := errgroup.WithContext(ctx)
	group.Go(func() error { return metrics.Serve(inner, d.Listen, registry, d.Ready) })
	group.Go(func() error { return d.holdLock(inner, d.hold) })
	if err := group.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Load brings the driver onto the node, once, and returns.
func (d *Driver) Load(ctx context.Context) error {
	return d.holdLock(ctx, func(ctx context.Context) error {
		_, err := d.bring(ctx, false)
		return d.fail(err)
	})
}

// Unload takes the driver off the node.
func (d *Driver) Unload(ctx context.Context) error {
	return d.holdLock(ctx, func(ctx context.Context) error {
		if err := d.System.Busy(); err != nil {
			return err // it is as ready as it was
		}
		if err := errors.Join(d.withdraw(), d.unload(ctx)); err != nil {
			return d.fail(err)
		}
		return d.publish(nodestate.Waiting, ReasonStopped, "the driver was unloaded by gpu-driver unload")
	})
}

// hold is Run while the lock is held.
func (d *Driver) hold(ctx context.Context) error {
	s, err := d.bringWhenFree(ctx)
	switch {
	case errors.Is(err, ErrNoGPU):
		if err = errors.Join(d.withdraw(), d.publish(nodestate.Waiting, kernel.ReasonNoDevice, err.Error())); err == nil {
			d.Log.Info("no driver is loaded", "reason", kernel.ReasonNoDevice, "why", ErrNoGPU)
			<-ctx.Done()
			return ctx.Err()
		}
	case err == nil:
		stop := d.pushBeside(ctx)
		err = d.watch(ctx, s)
		stop()
	}
	if ctx.Err() != nil {
		err = errors.Join(err, d.withdraw()) // before the daemons end, which takes its time
	}
	err = errors.Join(err, d.stopDaemons())
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, context.Canceled) && (err == nil || errors.Is(err, context.Canceled)):
		// SIGTERM: what is done from here on has the kubelet's grace period.
		return d.end(context.WithoutCancel(ctx))
	case cause != nil && errors.Is(err, context.Canceled):
		return d.fail(cause) // the other goroutine of Run has failed
	}
	return d.fail(err)
}

// bringWhenFree is bring; while processes hold a driver that has to go, it waits for
// them to end.
func (d *Driver) bringWhenFree(ctx context.Context) (Snapshot, error) {
	for {
		s, err := d.bring(ctx, true)
		e, is := errors.AsType[*kernel.Error](err)
		if !is || e.Reason != kernel.ReasonInUse {
			return s, err
		}
		users := d.System.Users()
		if len(users) == 0 {
			return s, err
		}
		if d.changed(e) {
			if err := errors.Join(d.withdraw(), d.publish(nodestate.Waiting, e.Reason, e.Message)); err != nil {
				return s, err
			}
			d.Log.Warn("waiting for processes that use the driver to end", "reason", e.Reason, "err", e)
		}
		if err := waitForExit(ctx, users); err != nil {
			return s, err
		}
	}
}

// bring makes sure that the driver is loaded as it is wanted and shown, and that its
// daemons run, if they are to.
func (d *Driver) bring(ctx context.Context, withDaemons bool) (Snapshot, error) {
	begun := time.Now()
	if err := d.CheckGPU(); err != nil {
		return Snapshot{}, err
	}
	s, err := d.find(ctx)
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
	// Also of modules that are adopted: a container before this one may have failed at it.
	// They are held open until the daemons keep them initialised.
	devices, err := d.System.OpenDevices(ctx, "/dev")
	if err != nil {
		return s, err
	}
	defer func() { _ = devices.Close() }()
	for _, err := range devices.Errors() {
		d.Log.Warn("a GPU does not work", "err", err)
	}
	if withDaemons {
		if d.daemons, err = d.startDaemons(ctx); err != nil {
			return s, err
		}
	}
	if err := d.show(s); err != nil {
		return s, err
	}
	if err := errors.Join(d.publishReady(s), d.announce()); err != nil {
		return s, err
	}
	d.Log.Info("ready", "version", s.Version, "kind", s.Kind, "why", s.Why, "kernel", s.Release, "root", d.Root,
		"adopted", adopted, "loaded", loaded, "took", time.Since(begun).Round(time.Millisecond))
	return s, nil
}

// replace takes away what was loaded before, once everything about the new driver that
// can be checked is checked.
func (d *Driver) replace(ctx context.Context, s Snapshot) error {
	steps, err := s.Plan(nil)
	if err != nil {
		return err
	}
	if err := errors.Join(d.verify(steps), d.System.Busy()); err != nil {
		return err
	}
	if err := errors.Join(d.withdraw(), d.publish(nodestate.Waiting, ReasonStarting, "the driver "+s.Version+" is being loaded")); err != nil {
		return err
	}
	return d.unload(ctx)
}

// load loads the modules that are missing and returns how many they were.
func (d *Driver) load(ctx context.Context, s Snapshot) (int, error) {
	steps, err := s.Plan(s.Loaded)
	if err != nil || len(steps) == 0 {
		return 0, err
	}
	if err := errors.Join(d.copyFirmware(steps), d.remember(s)); err != nil {
		return 0, err
	}
	if err := d.System.Apply(ctx, steps, d.Log); err != nil {
		return 0, err
	}
	return len(steps), d.check(s)
}

// verify refuses modules that the kernel is certain to refuse.
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

// check fails unless each wanted module is in the kernel as the image has it.
func (d *Driver) check(s Snapshot) error {
	loaded, err := d.System.Loaded()
	if err != nil {
		return err
	}
	for _, name := range s.Wanted {
		l, is := loaded[name]
		switch {
		case !is:
			return fmt.Errorf("module %s is not loaded any more: somebody unloaded it", name)
		case !d.System.Describe(l).Same(s.Files[name].Info):
			return fmt.Errorf("module %s in the kernel is not that of the image: somebody loaded another one", name)
		}
	}
	return nil
}

// show mounts the driver root.
func (d *Driver) show(s Snapshot) error {
	propagates, err := root.Show(s.Image.Dir(), d.Root)
	if err != nil {
		return err
	}
	if !propagates {
		d.Log.Warn("the driver root is seen in this mount namespace alone: mount the folder above it with mountPropagation: Bidirectional", "root", d.Root)
	}
	return nil
}

// watch returns when the driver root was taken away, or ctx ends. Meanwhile it publishes
// how the driver's daemons are.
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
	again := time.NewTicker(recheck) // of modules that are removed the kernel tells no container
	defer again.Stop()
	err = d.checkRoot() // before it was watched
	for err == nil {
		select {
		case <-mounted:
			err = d.checkRoot()
		case <-again.C:
			if err = d.check(s); err != nil {
				err = &kernel.Error{Reason: ReasonTaken, Message: err.Error(), Err: err}
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

// checkRoot fails if the driver root is not shown any more.
func (d *Driver) checkRoot() error {
	there, err := root.Mounted(d.Root)
	if err == nil && !there {
		err = &kernel.Error{Reason: ReasonTaken, Message: d.Root + ": the driver root was taken away; started again, gpu-driver shows it again"}
	}
	return err
}

// publishDaemons publishes that a daemon without which GPUs cannot be used has ended, or is
// ready again. Of the others it publishes which run: one that fails again and again has
// other last lines each time, and the state stays as it is.
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

// unload removes root and modules, unless somebody uses them.
func (d *Driver) unload(ctx context.Context) error {
	if err := d.System.Busy(); err != nil {
		return err
	}
	// The modules first: where somebody has begun to use them meanwhile, the rest stays.
	if err := d.System.UnloadAll(ctx, d.Log); err != nil {
		return err
	}
	return errors.Join(root.Remove(d.Root), d.forget(), d.removeFirmware())
}

// end unloads the driver after SIGTERM, or leaves it to those who use it.
func (d *Driver) end(ctx context.Context) error {
	if err := d.withdraw(); err != nil {
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
	return errors.Join(err, d.withdraw(), d.publish(nodestate.Failed, ReasonOf(err), strings.ReplaceAll(err.Error(), "\n", "; ")))
}

// ReasonOf returns the reason of an error, ReasonFailed where it has none of its own.
func ReasonOf(err error) gpu.Reason {
	if e, is := errors.AsType[*kernel.Error](err); is {
		return e.Reason
	}
	return ReasonFailed
}
