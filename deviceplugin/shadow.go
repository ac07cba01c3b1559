package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/deviceplugin/compare"
	"github.com/gpuready/gpuready/deviceplugin/plugin"
	"github.com/gpuready/gpuready/deviceplugin/settings"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/metricsserver"
	"github.com/gpuready/gpuready/internal/program"
)

// reasonNoGPU is the reason on a node without a GPU, which has nothing to compare.
const reasonNoGPU gpu.Reason = "NoGPU"

// shadowCommand runs beside another device plugin without registering anything, creating a socket
// or writing a state.
func (c *commands) shadowCommand(ctx context.Context, args []string) error {
	return c.runMode(ctx, settings.Shadow, args)
}

// runShadow compares once or until ctx ends.
func (c *commands) runShadow(ctx context.Context, o *settings.Options) error {
	if o.Once {
		o, err := o.Resolve()
		if err != nil {
			return c.fail(program.Usage, err)
		}
		same, err := c.compareOnce(ctx, o)
		switch {
		case err != nil:
			return c.fail(program.Failed, err)
		case !same:
			return program.WithExitCode(exitDiffers, program.ErrReported)
		}
		return nil
	}
	cfg, watcher := c.pluginConfig(o)
	err := watchShadow(ctx, o, cfg)
	if errors.Is(err, plugin.ErrReplaced) && ctx.Err() == nil {
		err = execSelf(watcher, nil)
	}
	if err != nil {
		return c.fail(program.Failed, err)
	}
	return nil
}

// newKubelet returns the kubelet that the settings name.
func newKubelet(o *settings.Options) compare.Kubelet {
	return compare.Kubelet{
		PodResources: filepath.Join("/", o.HostRoot, o.PodResources),
		Plugins:      filepath.Join("/", o.HostRoot, filepath.Dir(o.KubeletSocket)),
	}
}

// compareOnce compares once, prints the report, and reports whether there are no differences. It
// does not know faults that only events report.
func (c *commands) compareOnce(ctx context.Context, o *settings.Options) (same bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, devicesTimeout)
	defer cancel()
	advertised, snap, err := computePlan(ctx, o)
	if err != nil {
		return false, err
	}
	theirs, err := newKubelet(o).Query(ctx)
	if err != nil {
		return false, err
	}
	ours, now := compare.Ours{Plan: advertised, Snapshot: snap}, time.Now()
	report := compare.NewReport(ours, theirs, new(compare.History).Compare(ours, theirs, now), now)
	same = len(report.Differences) == 0
	if o.Output == "json" {
		return same, report.WriteJSON(c.stdout)
	}
	return same, report.WriteTable(c.stdout)
}

// watchShadow compares until ctx ends.
func watchShadow(ctx context.Context, o *settings.Options, cfg plugin.Config) error {
	cfg.Log.Info("shadow mode: nothing is registered, and no state written", "path", o.PodResources, "every", o.ShadowInterval.String())
	reg := metricsserver.NewRegistry()
	s := compare.New(compare.Config{Query: newKubelet(o).Query, Interval: o.ShadowInterval, Log: cfg.Log}, reg)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return metricsserver.Serve(ctx, o.Listen, reg, s.Ready) })
	group.Go(func() error { return s.Watch(ctx) })
	group.Go(func() error {
		err := plugin.Watch(ctx, cfg, func(v plugin.View) {
			switch {
			case v.HasSnapshot():
				s.SetOurs(compare.Ours{Plan: v.Plan, Snapshot: v.Snapshot})
			case v.Absent.Reason != "":
				s.SetAbsent(fmt.Errorf("%s: %s", v.Absent.Reason, v.Absent.Message), v.Absent.Reason == reasonNoGPU)
			}
		})
		if err == nil {
			err = context.Canceled // ends the others, too
		}
		return err
	})
	if err := group.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
