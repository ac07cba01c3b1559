// Package daemon keeps a host in the state that package setup defines: it waits for
// changes on the host, scans it again, and repairs it.
package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/host/mount"
	"github.com/gpuready/gpuready/internal/inotify"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/apply"
	"github.com/gpuready/gpuready/toolkit/nri"
	"github.com/gpuready/gpuready/toolkit/setup"
	"github.com/gpuready/gpuready/toolkit/spec"
	"github.com/gpuready/gpuready/toolkit/watch"
)

// ErrReplaced is returned by Run when the driver's library was replaced. This process
// has loaded the old one and cannot unload it, so the program has to be restarted.
// A setup.Driver may return it, wrapped, as well.
var ErrReplaced = errors.New("the driver's library was replaced")

// retryAfter is the retry interval for conditions whose end no event reports: a failing
// NVML, a full disk, exhausted descriptors. Everything else is driven by events.
const retryAfter = 10 * time.Second

// The triggers, by the thing that may have changed. Pending triggers are merged.
const (
	filesChanged   watch.Meaning = 1 << iota // the driver's libraries, or the driver itself
	devicesChanged                           // device nodes
	specsChanged                             // CDI directories, the hook
	mountsChanged                            // the driver may be another one now
	configChanged                            // the container runtime's configuration
	nvmlEvent                                // NVML reports a change of a GPU, perhaps a known one
	gpusChanged                              // NVML shows other GPUs or MIG devices
)

const everything = filesChanged | devicesChanged | specsChanged

// Daemon keeps the host as it should be.
type Daemon struct {
	*setup.Toolkit
	log     *slog.Logger
	metrics *Metrics

	watch    *watch.Watcher
	triggers chan watch.Meaning // capacity 1; see trigger
	answered chan struct{}      // capacity 1: the runtime has responded, or its configuration changed
	rewrite  chan time.Duration // capacity 1: the state could not be written; retry after this delay
	source   *source            // nil if there is no driver yet
	opened   string             // identity of the library that was loaded, if any
	again    again              // scans after device nodes changed
	folders  mount.Folders      // of the host, as this container has them
	short    bool               // of disk, descriptors or memory, at the last scan
	owner    string             // the other file that defines nvidia.com/gpu, as last logged

	offer   atomic.Pointer[nri.Offer] // the offer for agents, nil if there is none
	noOffer string                    // the reason for that, as last logged
	table   atomic.Pointer[nri.Table] // the devices for workloads, nil if not known yet
	missed  map[string]bool           // as logged

	writing sync.Mutex            // held while a state is computed and written
	fault   nodestate.WriteFault  // of the state file
	logged  nodestate.ToolkitInfo // as last logged
	mu      sync.Mutex
	own     nodestate.State // the result of the loop, without a phase before the first scan
	runtime runtimeState
	last    nodestate.State // as published
}

// New returns a daemon for a toolkit.
func New(t *setup.Toolkit, log *slog.Logger, metrics *Metrics) *Daemon {
	return &Daemon{Toolkit: t, log: log, metrics: metrics, triggers: make(chan watch.Meaning, 1), answered: make(chan struct{}, 1), rewrite: make(chan time.Duration, 1)}
}

// Ready returns an error if the host is not as it should be. A machine without a GPU is
// as it should be. Ready may be called at any time.
func (d *Daemon) Ready() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.last.Phase == nodestate.Ready, d.last.Phase == nodestate.Degraded, d.last.Reason == setup.ReasonNoGPU:
		return nil
	case d.last.Phase == "":
		return errors.New("starting")
	}
	return fmt.Errorf("%s: %s", d.last.Reason, d.last.Message)
}

// Run keeps the host as it should be until ctx ends. Then it returns nil and leaves
// everything in place, because pods need it. Only its state reports that agents no longer
// receive the GPUs. Otherwise it returns an error; ErrReplaced requires a new process.
func (d *Daemon) Run(ctx context.Context) error {
	watcher, err := watch.New(d.Root)
	if err != nil {
		return err
	}
	d.watch = watcher
	defer watcher.Close()
	d.folders = d.recordFolders()
	mounts, err := host.WatchMounts(d.mountable())
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return mounts.Run(ctx, func() { d.trigger(mountsChanged) }) })
	group.Go(func() error {
		for {
			t, err := watcher.Next(ctx)
			if err != nil {
				return err
			}
			d.trigger(t)
		}
	})
	group.Go(func() error { return d.loop(ctx) })
	group.Go(func() error { return d.folders.Wait(ctx) })
	group.Go(func() error { return d.rewriteState(ctx) })
	group.Go(func() error { return d.queryRuntime(ctx) })
	if c := d.Configurer(d.metrics.step); c != nil {
		group.Go(func() error { return d.configureRuntime(ctx, c) })
	}
	if d.injects() {
		group.Go(func() error { return d.inject(ctx) })
	}
	err = group.Wait()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	d.publishEnd()
	return err
}

// recordFolders returns the folders of the host into which the daemon writes, as they are mounted now.
func (d *Daemon) recordFolders() mount.Folders {
	var paths []string
	for _, dir := range []string{d.Config.CDIDir, d.Config.InstallDir, path.Join(d.Config.StateDir, string(nodestate.Toolkit))} {
		if resolved, err := d.Root.Resolve(dir); err == nil {
			dir = resolved
		}
		paths = append(paths, d.Root.Path(dir))
	}
	return mount.RecordFolders(paths...)
}

// trigger wakes the loop. Pending triggers are merged.
func (d *Daemon) trigger(t watch.Meaning) {
	for {
		select {
		case d.triggers <- t:
			return
		case waiting := <-d.triggers:
			t |= waiting
		}
	}
}

// loop scans and repairs the host after each trigger. It leaves the driver open: when it
// returns, the process ends or restarts.
func (d *Daemon) loop(ctx context.Context) error {
	for what := everything; ; {
		if err := d.reconcile(ctx, what); err != nil {
			return err
		}
		// Files that appeared between the scan and the new watches caused no event.
		more, err := d.setWatches()
		switch {
		case inotify.Exhausted(err):
			d.short = true
		case err != nil:
			return err
		}
		if more {
			d.checkConfig() // the runtime's files may be among them
			what = everything
			continue
		}
		if what, err = d.await(ctx, what); err != nil {
			return err
		}
	}
}

// await waits for the next trigger, after the host was scanned for the last one.
func (d *Daemon) await(ctx context.Context, last watch.Meaning) (what watch.Meaning, err error) {
	if last&devicesChanged != 0 && d.source != nil {
		d.again.begin()
	}
	var retry <-chan time.Time
	if d.source == nil {
		d.again.end()
	}
	if d.short || d.source == nil && d.opened != "" {
		retry = time.After(retryAfter)
	}
	for {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case what = <-d.triggers:
			if what&configChanged != 0 {
				d.checkConfig()
			}
			if what&nvmlEvent != 0 && d.source != nil {
				d.again.begin()
				if d.changed(ctx) {
					what |= gpusChanged
				}
			}
			if what &^= nvmlEvent; what != 0 {
				return what, nil
			}
		case <-retry:
			return everything, nil
		case <-d.again.due:
			d.again.next()
			if d.changed(ctx) {
				return gpusChanged, nil
			}
			if d.again.over() {
				debug.FreeOSMemory() // usually nothing happens for a long time now
			}
		}
	}
}

// reconcile scans and repairs what a trigger concerns. Its error ends the daemon;
// temporary problems are published as state instead.
func (d *Daemon) reconcile(ctx context.Context, what watch.Meaning) error {
	start := time.Now()
	driverRoot, _ := d.Roots()
	library := d.library(driverRoot)
	if d.replaced(library) {
		return ErrReplaced
	}
	if unrelated := d.source != nil || library == ""; what == mountsChanged && unrelated {
		return nil
	}
	if what&filesChanged != 0 {
		d.InvalidateFiles()
	}
	changes, w, err := d.refresh(ctx, driverRoot, library, what)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	err = d.ExplainDriver(err)
	if err != nil && (errors.Is(err, ErrReplaced) || d.replaced(d.library(driverRoot))) {
		return ErrReplaced // during the scan: the failure is not worth reporting
	}
	if gone := d.folders.Check(); err != nil && gone != nil {
		err = gone // what happens in a folder that is gone says nothing of the host
	}
	d.metrics.observe(what, changes, w, err, time.Since(start))
	d.logChanges(changes, w, time.Since(start))
	state := d.Config.State(w, err)
	if state.Reason == setup.ReasonNoDriver && library == "" && !d.Root.HasGPU() {
		state.Reason, state.Message = setup.ReasonNoGPU, "no NVIDIA GPU and no driver on this node: nothing to do; "+state.Message
	}
	d.prepareOffer(state.Phase)
	d.prepareTable(state)
	d.publish(func() { d.own = state })
	d.short = inotify.Exhausted(err)
	if err != nil && d.source != nil && !isHostProblem(err) {
		if err := d.close(ctx); err != nil { // NVML is opened again after the next trigger
			d.log.Warn("NVML could not be closed", "reason", setup.ReasonNVML, "message", err)
		}
	}
	return nil
}

func (d *Daemon) refresh(ctx context.Context, driverRoot, library string, what watch.Meaning) (changes []apply.Change, w setup.Wanted, err error) {
	if d.source == nil {
		if library != "" { // without a driver there are no nodes to create
			control, err := d.Control()
			if err != nil {
				return nil, w, err
			}
			if changes, err = d.Store.Apply(control); err != nil {
				return changes, w, err
			}
		}
		if err := d.open(ctx, driverRoot, library); err != nil {
			return changes, w, err
		}
		what |= devicesChanged
	}
	if what&(filesChanged|devicesChanged|gpusChanged) != 0 {
		snapshot, err := d.source.Snapshot(ctx)
		if err != nil {
			return changes, w, err
		}
		d.source.snapshot = snapshot
		d.source.closeResettable()
	}
	if w, err = d.Want(d.source.snapshot); err != nil {
		return changes, w, err
	}
	rest, err := d.Store.Apply(w.Items)
	return append(changes, rest...), w, err
}

// isHostProblem reports whether an error is the host's and not the driver's.
func isHostProblem(err error) bool {
	return errors.Is(err, spec.ErrNoCUDA) || errors.Is(err, setup.ErrHook) || errors.Is(err, mount.ErrReplaced) || isPathError(err) && !errors.Is(err, gpu.ErrNoDriver)
}

func isPathError(err error) bool {
	_, ok := errors.AsType[*fs.PathError](err)
	return ok
}

// mountable returns the driver roots that may appear as a mount. The host's own root is
// not one of them, since pods mount below it all the time.
func (d *Daemon) mountable() []string {
	root := cmp.Or(d.Config.DriverRoot, setup.ContainerRoot)
	if path.Clean(root) == "/" {
		return nil
	}
	return []string{d.Root.Path(root)}
}

// library returns the identity of the driver's library, "" if there is none. Different
// files at the same path have different identities.
func (d *Daemon) library(driverRoot string) string {
	found, err := d.Driver.Find(driverRoot)
	if err != nil {
		return ""
	}
	return identity(found)
}

// replaced reports whether the library differs from the one loaded in this process.
func (d *Daemon) replaced(library string) bool {
	if library == "" || d.opened == "" || library == d.opened {
		return false
	}
	d.log.Info("the driver was replaced; restarting", "path", library)
	return true
}

// logChanges logs each change in one line.
func (d *Daemon) logChanges(changes []apply.Change, w setup.Wanted, took time.Duration) {
	for _, c := range changes {
		d.log.Info(c.Verb+"d", "path", c.Path, "duration", took.Round(time.Millisecond))
	}
	if w.Owner != d.owner && w.Items != nil {
		if d.owner = w.Owner; w.Owner != "" {
			d.log.Warn("nvidia.com/gpu is defined by another file; ours is not written", "path", w.Owner)
		}
	}
}

func identity(library string) string {
	info, err := os.Stat(library)
	if err != nil {
		return library
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return library
	}
	return fmt.Sprintf("%s %d:%d %d", library, st.Dev, st.Ino, info.ModTime().UnixNano())
}
