package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/deviceplugin/plugin"
	"github.com/gpuready/gpuready/deviceplugin/shadow"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/metrics"
)

// reasonNoGPU is of a node without a GPU, on which there is nothing to compare.
const reasonNoGPU gpu.Reason = "NoGPU"

// runShadow runs beside another device plugin: nothing is registered, no socket
// made, no state written.
func (o *options) runShadow(ctx context.Context, started time.Time, stdout, stderr io.Writer) int {
	if o.once {
		o, err := o.resolved()
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
		err = o.again(nil)
	}
	if err != nil {
		return fail(stderr, exitFailed, err)
	}
	return 0
}

// kubelet is where the kubelet is asked.
func (o *options) kubelet() shadow.Kubelet {
	return shadow.Kubelet{
		PodResources: filepath.Join("/", o.hostRoot, o.podResources),
		Plugins:      filepath.Join("/", o.hostRoot, filepath.Dir(o.kubeletSocket)),
	}
}

// compareOnce compares what the driver shows now, without what is only heard of by
// events, and says whether nothing differs.
func (o *options) compareOnce(ctx context.Context, w io.Writer) (same bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, dryRunTimeout)
	defer cancel()
	would, snap, err := o.wouldBe(ctx)
	if err != nil {
		return false, err
	}
	theirs, err := o.kubelet().Ask(ctx)
	if err != nil {
		return false, err
	}
	ours, now := shadow.Ours{Plan: would, Snapshot: snap}, time.Now()
	report := shadow.NewReport(ours, theirs, new(shadow.History).Look(ours, theirs, now), now)
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
	reg := metrics.NewRegistry()
	s := shadow.New(shadow.Config{Ask: o.kubelet().Ask, Every: o.shadowInterval, Log: cfg.Log}, reg)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return metrics.Serve(ctx, o.listen, reg, s.Ready) })
	group.Go(func() error { return s.Watch(ctx) })
	group.Go(func() error {
		err := plugin.Watch(ctx, cfg, func(v plugin.View) {
			switch {
			case v.Read():
				s.See(shadow.Ours{Plan: v.Plan, Snapshot: v.Snapshot})
			case v.Absent.Reason != "":
				s.Absent(fmt.Errorf("%s: %s", v.Absent.Reason, v.Absent.Message), v.Absent.Reason == reasonNoGPU)
			}
		})
		if err == nil {
			err = context.Canceled // the others are to end with it
		}
		return err
	})
	if err := group.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
