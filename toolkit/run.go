package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/gpu/nvml/reading"
	"github.com/gpuready/gpuready/internal/inotify"
	"github.com/gpuready/gpuready/internal/metrics"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/toolkit/daemon"
	"github.com/gpuready/gpuready/toolkit/install"
	"github.com/gpuready/gpuready/toolkit/setup"
)

// The process sleeps while nothing happens. Nothing waits for the end of a slice but
// who opens a driver that has failed again; and what a probe finds, the device nodes
// or an event have told before, but for a GPU that fell silent: containers are given
// that one as before.
const (
	slice      = 10 * time.Second
	probeEvery = time.Minute
)

// driver is NVML below the host's root.
type driver struct {
	hostRoot string
	log      *slog.Logger
}

func (d driver) Find(root string) (string, error) { return nvml.FindLibrary(d.hostRoot, root) }

func (d driver) Open(root string) (gpu.Source, error) {
	source, err := nvml.Open(nvml.Options{
		HostRoot: d.hostRoot, DriverRoot: root, Log: d.log, Outside: reading.Outside(d.hostRoot, root),
		Slice: slice, ProbeInterval: probeEvery,
	})
	if errors.Is(err, nvml.ErrOtherLibrary) {
		err = fmt.Errorf("%w: %w", daemon.ErrReplaced, err)
	}
	if err != nil {
		return nil, err // not a nil pointer in an interface
	}
	return source, nil
}

func run(ctx context.Context, o *options, stdout, stderr io.Writer) (err error) {
	log, err := program.Log(stderr, "toolkit", o.logFormat, "")
	if err != nil {
		return err
	}
	if variables := unread(os.Environ()); len(variables) > 0 {
		log.Warn("variables of NVIDIA's toolkit that have no effect here", "variables", strings.Join(variables, "; "))
	}
	t, err := setup.New(o.config, driver{o.config.HostRoot, log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	c := command{o: o, t: t, log: log, stdout: stdout, stderr: stderr}
	return map[string]func(context.Context) error{
		"plan": c.plan, "apply": c.alone(c.apply), "verify": c.verify, "restore": c.alone(c.restore),
		"status": c.status, "audit": c.audit, "run": c.serve,
	}[o.command](ctx)
}

// alone does something while no other instance changes the host: run waits for that,
// the others say who is at work.
func (c command) alone(do func(context.Context) error) func(context.Context) error {
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
		return c.t.Leave(held)
	}
}

// lockAgain is how long run waits for room for the lock's file, which no event tells of.
const lockAgain = 5 * time.Second

// lock takes the lock on the host. run waits for who has it, and for room for its file.
func (c command) lock(ctx context.Context) (*install.Held, error) {
	waits, said := c.o.command == "run", false
	for {
		held, err := c.t.Lock(ctx, waits, func(message string) { c.log.Info("waiting", "message", message) })
		if err == nil || !waits || !inotify.Exhausted(err) {
			return held, err
		}
		if !said {
			said = true
			c.log.Error("waiting for room for the lock", "message", err.Error())
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(lockAgain):
		}
	}
}

func (c command) serve(ctx context.Context) error {
	seal := c.seal() // before anything is written
	reg := metrics.NewRegistry()
	d := daemon.New(c.t, c.log, daemon.NewMetrics(reg))
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return metrics.Serve(ctx, c.o.listen, reg, d.Ready) })
	group.Go(func() error { return c.alone(d.Run)(ctx) })
	group.Go(func() error { return seal(ctx) })
	return group.Wait()
}
