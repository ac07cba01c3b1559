package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/deviceplugin/compare"
	"github.com/gpuready/gpuready/deviceplugin/plugin"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/metricsserver"
)

// reasonNoGPU is the reason on a node without a GPU, which has nothing to compare.
const reasonNoGPU gpu.Reason = "NoGPU"

// runShadow runs beside another device plugin without registering anything, creating a
// socket or writing a state.
func (o *options) runShadow(ctx context.Context, started time.Time, stdout, stderr io.Writer) int {
	if o.once {
		o, err := o.resolve()
		if err != nil {
			return fail(stderr, exitUsage, err)
		}
		same, err := o.compareOnce(ctx, stdout)
		switch {
		case err != nil:
			return fail(stderr, exitFailed, err)
		case !same:
			return exitDiffers
		}
		return 0
	}
	err := o.watchShadow(ctx, started, stderr)
	if errors.Is(err, plugin.ErrReplaced) && ctx.Err() == nil {
		err = o.reexec(nil)
	}
	if err != nil {
		return fail(stderr, exitFailed, err)
	}
	return 0
}

// kubelet returns how to query the kubelet.
func (o *options) kubelet() compare.Kubelet {
	return compare.Kubelet{
		PodResources: filepath.Join("/", o.hostRoot, o.podResources),
		Plugins:      filepath.Join("/", o.hostRoot, filepath.Dir(o.kubeletSocket)),
	}
}

// compareOnce compares what the driver reports now, without what only events report. It
// reports whether there are no differences.
func (o *options) compareOnce(ctx context.Context, w io.Writer) (same bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, dryRunTimeout)
	defer cancel()
	would, snap, err := o.computePlan(ctx)
	if err != nil {
		return false, err
	}
	theirs, err := o.kubelet().Query(ctx)
	if err != nil {
		return false, err
	}
	ours, now := compare.Ours{Plan: would, Snapshot: snap}, time.Now()
	report := compare.NewReport(ours, theirs, new(compare.History).Compare(ours, theirs, now), now)
	same = len(report.Differences) == 0
	if o.output == "json" {
		return same, report.JSON(w)
	}
	return same, report.Table(w)
}

// watchShadow compares until ctx ends.
func (o *options) watchShadow(ctx context.Context, started time.Time, stderr io.Writer) error {
	cfg := o.plugin(started, stderr)
	cfg.Log.Info("shadow mode: nothing is registered, and no state written", "path", o.podResources, "every", o.shadowInterval.String())
	reg := metricsserver.NewRegistry()
	s := compare.New(compare.Config{Ask: o.kubelet().Query, Every: o.shadowInterval, Log: cfg.Log}, reg)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return metricsserver.Serve(ctx, o.listen, reg, s.Ready) })
	group.Go(func() error { return s.Watch(ctx) })
	group.Go(func() error {
		err := plugin.Watch(ctx, cfg, func(v plugin.View) {
			switch {
			case v.Read():
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
