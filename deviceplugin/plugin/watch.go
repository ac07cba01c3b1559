package plugin

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/deviceplugin/serve"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/injection"
)

// View holds what a plugin would advertise at one moment. It is never changed.
type View struct {
	Plan     plan.Plan // including health and unallocatable devices
	Snapshot gpu.Snapshot
	Absent   gpu.Fault // why there is no driver, or why it is not used; zero: there is one
}

// HasSnapshot reports whether this process has read the GPUs. Before that the plan holds the
// devices that an earlier process recorded, which may be gone.
func (v View) HasSnapshot() bool { return v.Snapshot.Driver.Version != "" }

// Watch is Run without side effects, for shadow mode. It watches the same GPUs and derives the
// same health and plan, but passes each View to report instead of the kubelet and the state
// file. It does read the state file. report is called by one goroutine at a time and must not
// block.
func Watch(ctx context.Context, cfg Config, report func(View)) error {
	p, err := newPlugin(cfg)
	if err != nil {
		return err
	}
	p.reportOnly, p.state.otherPluginServes = report, true
	p.state.serve = serve.State{}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.watchSettings(ctx) })
	group.Go(func() error { return p.watchGPUs(ctx) })
	group.Go(func() error { return p.watchToolkit(ctx) })
	group.Go(func() error { return p.watchInjection(ctx) })
	err = group.Wait()
	if errors.Is(err, context.Canceled) || errors.Is(err, injection.ErrOutdated) {
		return nil
	}
	return err
}

// reportView passes the current View to reportOnly. p.mu is held.
func (p *Plugin) reportView() {
	v := View{Plan: p.state.plan, Snapshot: p.state.snapshot}
	switch {
	case p.state.refused != nil && !p.state.configured:
		v.Absent.Reason, v.Absent.Message = p.state.refusal()
	case p.state.absent != nil:
		v.Absent = gpu.Fault{Reason: p.state.absent.reason, Message: p.state.absent.message}
	}
	p.reportOnly(v)
}
