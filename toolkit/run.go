package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/inotify"
	"github.com/gpuready/gpuready/internal/metricsserver"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/toolkit/apply"
	"github.com/gpuready/gpuready/toolkit/daemon"
	"github.com/gpuready/gpuready/toolkit/setup"
)

// These are longer than NVML's defaults (nvml.Options), so that an idle toolkit rarely wakes up.
// A long slice only delays the reopening of a driver that failed. A long probe interval only delays
// noticing a GPU that stopped answering, which containers get all the same. All other changes are
// noticed earlier, by device nodes or events.
const (
	slice         = 10 * time.Second
	probeInterval = time.Minute
)

// driver implements setup.Driver: it finds and opens NVML below the host's root.
type driver struct {
	hostRoot string
	log      *slog.Logger
}

func (d driver) Find(root string) (string, error) { return nvml.FindLibrary(d.hostRoot, root) }

func (d driver) Open(root string) (gpu.Source, error) {
	source, err := nvml.Open(nvml.Options{
		HostRoot: d.hostRoot, DriverRoot: root, Log: d.log, ReadOutside: nvml.NewOutsideReader(d.hostRoot, root),
		WatchDevices: host.WatchDevices, Slice: slice, ProbeInterval: probeInterval,
	})
	if errors.Is(err, nvml.ErrOtherLibrary) {
		err = fmt.Errorf("%w: %w", daemon.ErrReplaced, err)
	}
	if err != nil {
		return nil, err // an explicit nil: a nil *nvml.Source in the interface would not be nil
	}
	return source, nil
}

// run executes the command that the options name.
func run(ctx context.Context, o *options, stdout, stderr io.Writer) (err error) {
	log, err := program.NewLog(stderr, "toolkit", o.logFormat, "")
	if err != nil {
		return err
	}
	for _, u := range o.config.Unserved {
		log.Warn("setting has no effect", "setting", u.Name, "message", u.Message)
	}
	t, err := setup.New(o.config, driver{o.config.HostRoot, log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	c := command{o: o, t: t, log: log, stdout: stdout, stderr: stderr}
	return map[string]func(context.Context) error{
		"plan": c.plan, "apply": c.withLock(c.apply), "verify": c.verify, "restore": c.withLock(c.restore),
		"status": c.status, "audit": c.audit, "run": c.serve,
	}[o.command](ctx)
}

// withLock runs do while no other instance changes the host. The command run waits for the
// other instance, the others return an error that names it.
func (c command) withLock(do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) (err error) {
		if c.o.dryRun {
			return do(ctx)
		}
		held, err := c.lock(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, held.Unlock()) }()
		if err := do(ctx); err != nil || c.o.command != "restore" {
			return err
		}
		return c.t.RemoveLock(held)
	}
}

// lockRetry is the retry interval while the disk has no room for the lock's file. No event reports
// when there is room again.
const lockRetry = 5 * time.Second

// lock locks the host. The command run waits for the holder, and for room for the file.
func (c command) lock(ctx context.Context) (*apply.Held, error) {
	var waiting func(error)
	if c.o.command == "run" {
		waiting = func(err error) { c.log.Info("waiting", "message", err.Error()) }
	}
	for logged := false; ; {
		held, err := c.t.Lock(ctx, waiting)
		if err == nil || waiting == nil || !inotify.Exhausted(err) {
			return held, err
		}
		if !logged {
			logged = true
			c.log.Error("waiting for room for the lock", "message", err.Error())
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(lockRetry):
		}
	}
}

// serve runs the daemon, its metrics server and the sealing of new mounts until ctx ends or one fails.
func (c command) serve(ctx context.Context) error {
	keepSealed := c.seal() // makes the host's mounts read-only before anything is written
	reg := metricsserver.NewRegistry()
	d := daemon.New(c.t, c.log, daemon.NewMetrics(reg))
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return metricsserver.Serve(ctx, c.o.listen, reg, d.Ready) })
	group.Go(func() error { return c.withLock(d.Run)(ctx) })
	group.Go(func() error { return keepSealed(ctx) })
	return group.Wait()
}
