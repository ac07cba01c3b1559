// Package daemon keeps a host as package setup brought it: it waits for what
// changes on it, looks again, and repairs.
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
	"github.com/gpuready/gpuready/internal/inotify"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/change"
	"github.com/gpuready/gpuready/toolkit/nri"
	"github.com/gpuready/gpuready/toolkit/setup"
	"github.com/gpuready/gpuready/toolkit/spec"
	"github.com/gpuready/gpuready/toolkit/watch"
)

// ErrReplaced is returned by Run when the driver's library is another than the
// one that this process has loaded and cannot let go of: start the program anew.
// A setup.Driver may return it, wrapped, as well.
var ErrReplaced = errors.New("the driver's library was replaced")

// retryAfter is how long to wait for the end of what no event tells the end of: NVML
// that fails, a disk that is full, descriptors that have run out. Everything else is
// waited for by its event.
const retryAfter = 10 * time.Second

// What may have changed. Triggers that wait are merged.
const (
	filesChanged   watch.Meaning = 1 << iota // the driver's libraries, or which driver it is
	devicesChanged                           // device nodes
	specsChanged                             // CDI directories, the hook
	mountsChanged                            // perhaps the driver is another now
	configChanged                            // the container runtime's configuration
	nvmlSpoke                                // NVML tells that something about a GPU changed; perhaps it is known
	gpusChanged                              // NVML shows other GPUs or MIG devices
)

const everything = filesChanged | devicesChanged | specsChanged

// Daemon keeps the host as it should be.
type Daemon struct {
	*setup.Toolkit
	log     *slog.Logger
	metrics *Metrics

	watch    *watch.Watcher
	triggers chan watch.Meaning // capacity 1; see poke
	answered chan struct{}      // capacity 1: the runtime has answered, or its configuration is another
	rewrite  chan struct{}      // capacity 1: a state could not be written
	source   *source            // nil: no driver yet
	opened   string             // identity of the library that was loaded, if any
	again    again              // looks after device nodes changed
	short    bool               // of disk, descriptors or memory, at the last look
	owner    string             // who else defines nvidia.com/gpu, as last logged

	offer   atomic.Pointer[nri.Offer] // what agents are given; nil: nothing
	noOffer string                    // why, as last logged
	table   atomic.Pointer[nri.Table] // what workloads may ask for; nil: not known yet
	missed  map[string]bool           // as logged

	writing   sync.Mutex            // held while a state is put together and written
	unwritten string                // why the last state is not written; "": it is
	told      nodestate.ToolkitInfo // as logged
	mu        sync.Mutex
	own       nodestate.State // what the loop reached; without a phase: nothing yet
	outside   outside         // what is known of the container runtime
	last      nodestate.State // as published
}

// New makes a daemon of a toolkit.
func New(t *setup.Toolkit, log *slog.Logger, metrics *Metrics) *Daemon {
	return &Daemon{Toolkit: t, log: log, metrics: metrics, triggers: make(chan watch.Meaning, 1), answered: make(chan struct{}, 1), rewrite: make(chan struct{}, 1)}
}

// Ready says why the host is not as it should be; nil if it is. A machine
// without a GPU is as it should be. It may be called at any time.
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

// Run keeps the host as it should be until ctx ends; then it returns nil and
// leaves everything as it is: pods need it. Only its state says that agents are no
// longer given the GPUs, where they were. Any other return is an error, of
// which ErrReplaced asks for a new process.
func (d *Daemon) Run(ctx context.Context) error {
	watcher, err := watch.New(d.Root)
	if err != nil {
		return err
	}
	d.watch = watcher
	defer watcher.Close()
	mounts, err := host.WatchMounts(d.mountable())
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return mounts.Run(ctx, func() { d.poke(mountsChanged) }) })
	group.Go(func() error {
		for {
			t, err := watcher.Next(ctx)
			if err != nil {
				return err
			}
			d.poke(t)
		}
	})
	group.Go(func() error { return d.loop(ctx) })
	group.Go(func() error { return d.rewriteState(ctx) })
	group.Go(func() error { return d.askRuntime(ctx) })
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
	d.leave()
	return err
}

// poke wakes the loop. Triggers that it has not seen yet are merged.
func (d *Daemon) poke(t watch.Meaning) {
	for {
		select {
		case d.triggers <- t:
			return
		case waiting := <-d.triggers:
			t |= waiting
		}
	}
}

// loop leaves the driver open: when it returns, the process ends or is started anew.
func (d *Daemon) loop(ctx context.Context) error {
	for what := everything; ; {
		if err := d.step(ctx, what); err != nil {
			return err
		}
		// What came into being between watching and looking was not told.
		more, err := d.setWatches()
		switch {
		case inotify.Exhausted(err):
			d.short = true
		case err != nil:
			return err
		}
		if more {
			d.look() // the runtime's files may be among what was not told
			what = everything
			continue
		}
		if what, err = d.await(ctx, what); err != nil {
			return err
		}
	}
}

// await waits for a reason to look at the host, after it was looked at for another.
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
				d.look()
			}
			if what&nvmlSpoke != 0 && d.source != nil {
				d.again.begin()
				if d.moved(ctx) {
					what |= gpusChanged
				}
			}
			if what &^= nvmlSpoke; what != 0 {
				return what, nil
			}
		case <-retry:
			return everything, nil
		case <-d.again.due:
			d.again.next()
			if d.moved(ctx) {
				return gpusChanged, nil
			}
			if d.again.over() {
				debug.FreeOSMemory() // what was needed to look; nothing happens for a long while, as a rule
			}
		}
	}
}

// step does what a trigger asks for. Its error ends the daemon; what can get
// better is published as state instead.
func (d *Daemon) step(ctx context.Context, what watch.Meaning) error {
	start := time.Now()
	driverRoot, _ := d.Roots()
	library := d.library(driverRoot)
	if d.replaced(library) {
		return ErrReplaced
	}
	if somebodyElses := d.source != nil || library == ""; what == mountsChanged && somebodyElses {
		return nil
	}
	if what&filesChanged != 0 {
		d.Forget()
	}
	changes, w, err := d.refresh(ctx, driverRoot, library, what)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil && (errors.Is(err, ErrReplaced) || d.replaced(d.library(driverRoot))) {
		return ErrReplaced // in the middle of the look: no failure that anybody should hear of
	}
	d.metrics.observe(what, changes, w, err, time.Since(start))
	d.tell(changes, w, time.Since(start))
	state := d.Config.State(w, err)
	if state.Reason == setup.ReasonNoDriver && library == "" && !d.Root.HasGPU() {
		state.Reason, state.Message = setup.ReasonNoGPU, "no NVIDIA GPU and no driver on this node: nothing to do; "+state.Message
	}
	d.prepareOffer(state.Phase)
	d.prepareTable(state)
	d.publish(func() { d.own = state })
	d.short = inotify.Exhausted(err)
	if err != nil && d.source != nil && !isHostProblem(err) {
		if err := d.close(ctx); err != nil { // NVML is asked afresh after the next trigger
			d.log.Warn("NVML could not be closed", "reason", setup.ReasonNVML, "message", err)
		}
	}
	return nil
}

func (d *Daemon) refresh(ctx context.Context, driverRoot, library string, what watch.Meaning) (changes []change.Change, w setup.Wanted, err error) {
	if d.source == nil {
		if library != "" { // without a driver there is nothing to make
			control, err := d.Control()
			if err != nil {
				return nil, w, err
			}
			if changes, err = d.Do(control); err != nil {
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
		d.source.letGo()
	}
	if w, err = d.Want(d.source.snapshot); err != nil {
		return changes, w, err
	}
	rest, err := d.Do(w.Items)
	return append(changes, rest...), w, err
}

// isHostProblem says that it is not the driver that failed.
func isHostProblem(err error) bool {
	return errors.Is(err, spec.ErrNoCUDA) || errors.Is(err, setup.ErrHook) || isPathError(err) && !errors.Is(err, gpu.ErrNoDriver)
}

func isPathError(err error) bool {
	_, ok := errors.AsType[*fs.PathError](err)
	return ok
}

// mountable are the driver roots that may come as a mount: not the host's own
// root, below which pods mount all the time.
func (d *Daemon) mountable() []string {
	root := cmp.Or(d.Config.DriverRoot, setup.ContainerRoot)
	if path.Clean(root) == "/" {
		return nil
	}
	return []string{d.Root.Path(root)}
}

// library tells one library file from another, also at the same path; "": none.
func (d *Daemon) library(driverRoot string) string {
	found, err := d.Driver.Find(driverRoot)
	if err != nil {
		return ""
	}
	return identity(found)
}

// replaced says that the library is another than the one in this process.
func (d *Daemon) replaced(library string) bool {
	if library == "" || d.opened == "" || library == d.opened {
		return false
	}
	d.log.Info("the driver was replaced; starting anew", "path", library)
	return true
}

// tell logs what was changed: one line per thing.
func (d *Daemon) tell(changes []change.Change, w setup.Wanted, took time.Duration) {
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
