package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/gpu/nvml/reading"
	"github.com/gpuready/gpuready/internal/metrics"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/change"
	"github.com/gpuready/gpuready/toolkit/daemon"
	"github.com/gpuready/gpuready/toolkit/setup"
)

// driver is NVML below the host's root.
type driver struct {
	hostRoot string
	log      *slog.Logger
}

func (d driver) Find(root string) (string, error) { return nvml.FindLibrary(d.hostRoot, root) }

func (d driver) Open(root string) (gpu.Source, error) {
	source, err := nvml.Open(nvml.Options{HostRoot: d.hostRoot, DriverRoot: root, Log: d.log, Outside: reading.Outside(d.hostRoot, root)})
	if errors.Is(err, nvml.ErrOtherLibrary) {
		err = fmt.Errorf("%w: %w", daemon.ErrReplaced, err)
	}
	if err != nil {
		return nil, err // not a nil pointer in an interface
	}
	return source, nil
}

func run(ctx context.Context, o *options, stdout, stderr io.Writer) (err error) {
	var handler slog.Handler = slog.NewTextHandler(stderr, nil)
	if o.logFormat == "json" {
		handler = slog.NewJSONHandler(stderr, nil)
	}
	log := slog.New(handler).With("component", "toolkit")
	t, err := setup.New(o.config, driver{o.config.HostRoot, log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	switch o.command {
	case "plan":
		changes, w, err := t.Once(ctx, true)
		return errors.Join(err, change.Print(stdout, changes), warn(stderr, t.WithRuntime(ctx, o.config.State(w, err))))
	case "apply":
		changes, w, err := t.Once(ctx, false)
		for _, c := range changes {
			fmt.Fprintln(stdout, c.Verb+"d", c.Path)
		}
		state := t.WithRuntime(ctx, o.config.State(w, err))
		return errors.Join(err, warn(stderr, state), t.Publish(state))
	case "uninstall":
		return uninstall(t, o.dryRun, stdout, stderr)
	default:
		return serve(ctx, o, t, log)
	}
}

// warn says what a result lacks. Why there is none is said at the end.
func warn(stderr io.Writer, s nodestate.State) error {
	message := s.Message
	if s.Phase == nodestate.Failed || s.Phase == nodestate.Waiting {
		message = ""
		if s.Toolkit != nil && s.Toolkit.Runtime != nil {
			message = s.Toolkit.Runtime.Message
		}
	}
	if message == "" {
		return nil
	}
	_, err := fmt.Fprintln(stderr, "gpu-toolkit:", message)
	return err
}

func uninstall(t *setup.Toolkit, dry bool, stdout, stderr io.Writer) error {
	changes, left, err := t.Uninstall(dry)
	for _, l := range left {
		fmt.Fprintln(stderr, "gpu-toolkit: left:", l)
	}
	if dry && err == nil {
		return change.Print(stdout, changes)
	}
	for _, c := range changes {
		fmt.Fprintln(stdout, c.Verb+"d", c.Path)
	}
	return err
}

func serve(ctx context.Context, o *options, t *setup.Toolkit, log *slog.Logger) error {
	reg := metrics.NewRegistry()
	d := daemon.New(t, log, daemon.NewMetrics(reg))
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return metrics.Serve(ctx, o.listen, reg, d.Ready) })
	group.Go(func() error { return d.Run(ctx) })
	return group.Wait()
}
