package serve

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/driver/root"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// watchDriver returns an error when another program has removed the driver root or modules, or ctx
// ends. Meanwhile it publishes the state of the driver's daemons.
func (d *Driver) watchDriver(ctx context.Context, s Snapshot) error {
	watching, stop := context.WithCancel(ctx)
	mounted, ended := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(ended)
		d.watchMounts(watching, mounted)
	}()
	defer func() { stop(); <-ended }()
	tick := time.NewTicker(recheck) // the kernel does not notify of removed modules
	defer tick.Stop()
	return d.checkOnEvents(ctx, s, mounted, tick.C)
}

// watchMounts sends to changed when mounts at the driver root may have changed, until ctx ends. A watch that
// fails is begun again: meanwhile checkOnEvents checks the root at each tick.
func (d *Driver) watchMounts(ctx context.Context, changed chan<- struct{}) {
	notify := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	for {
		watch, err := host.WatchMounts([]string{d.Root})
		if err == nil {
			notify() // for changes before the watch began
			err = watch.Run(ctx, notify)
		}
		if ctx.Err() != nil {
			return
		}
		d.Log.Warn("the driver root cannot be watched, and is checked from time to time", "again", recheck, "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(recheck):
		}
	}
}

// checkOnEvents checks the driver at each change of mounts and at each tick, until it finds that another program
// has taken the driver away, or ctx ends. A check that cannot read something proves nothing, and is repeated at
// the next tick. It publishes the state of the driver's daemons when that changes.
func (d *Driver) checkOnEvents(ctx context.Context, s Snapshot, mounted <-chan struct{}, ticks <-chan time.Time) error {
	unread := ""
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.daemons.changes():
			if err := d.publishDaemons(s); err != nil {
				return err
			}
			continue
		case <-mounted:
		case <-ticks:
		}
		err := d.checkRoot()
		if err == nil {
			err = d.checkLoadedModules(s)
		}
		switch {
		case err == nil:
			unread = ""
		case ReasonOf(err) == ReasonTaken:
			return err
		case err.Error() != unread:
			unread = err.Error()
			d.Log.Warn("it cannot be read whether the driver is complete", "again", recheck, "err", err)
		}
	}
}

// checkRoot returns an error with ReasonTaken if the driver root is no longer mounted.
func (d *Driver) checkRoot() error {
	isMounted, err := root.IsMounted(d.Root)
	if err == nil && !isMounted {
		err = takenError("%s: the driver root was unmounted; restart gpu-driver to mount it again", d.Root)
	}
	return err
}

// publishDaemons publishes that a required daemon has ended, or is ready again. For optional
// daemons it publishes only changes of which ones run: one that fails repeatedly has other
// last lines each time, and must not change the state.
func (d *Driver) publishDaemons(s Snapshot) error {
	failed := d.daemons.requiredFailure()
	failedOptional, _ := d.daemons.findFailedOptional()
	switch {
	case failed == nil && d.daemons.Ready() == nil && (d.Ready() != nil || !slices.Equal(failedOptional, d.daemons.failedOptional)):
		return d.publishReady(s)
	case failed != nil:
		return d.publish(nodestate.Degraded, kernel.ReasonDeviceInitFailed, failed.Error())
	}
	return nil
}

// checkLoadedModules returns an error with ReasonTaken unless the kernel has the image's build of each
// wanted module, and one without a reason if that cannot be read.
func (d *Driver) checkLoadedModules(s Snapshot) error {
	loaded, err := d.System.ReadLoaded()
	if err != nil {
		return err
	}
	for _, name := range s.Wanted {
		l, isLoaded := loaded[name]
		l = d.System.Describe(l)
		want := s.Files[name].Info
		switch {
		case !isLoaded:
			return takenError("module %s is no longer loaded: somebody unloaded it", name)
		case l.SrcVersion == "" && l.BuildID == "" && (want.SrcVersion != "" || want.BuildID != ""):
			return fmt.Errorf("the build of module %s in the kernel cannot be read from %s/module", name, d.System.Sys)
		case !l.IsSameBuild(want):
			return takenError("module %s in the kernel is not the one of the image: somebody loaded another one", name)
		}
	}
	return nil
}

// takenError returns an error with ReasonTaken.
func takenError(format string, args ...any) error {
	return &kernel.Error{Reason: ReasonTaken, Message: fmt.Sprintf(format, args...)}
}
