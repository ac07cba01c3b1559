package plugin

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/injection"
)

// View is what a plugin would advertise at one moment. It is never changed.
type View struct {
	Plan     plan.Plan // health, and what cannot be given to a container, included
	Snapshot gpu.Snapshot
	Absent   gpu.Fault // why there is no driver, or none is looked for; zero: there is one
}

// Read says that the driver has been read in this process: what the plan had
// before is remembered, and no list.
func (v View) Read() bool { return v.Snapshot.Driver.Version != "" }

// Watch is Run without a consequence: the same GPUs are watched, the same health
// and plan follow, and each is told to seen instead of to the kubelet and the
// state file. What the state file remembers is read. seen is called by one
// goroutine at a time, and must not wait.
func Watch(ctx context.Context, cfg Config, seen func(View)) error {
	p, err := newPlugin(cfg)
	if err != nil {
		return err
	}
	p.seenBy = seen
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

// tell hands the view to who watches. p.mu is held.
func (p *Plugin) tell() {
	v := View{Plan: p.plan, Snapshot: p.snapshot}
	switch {
	case p.refused != nil && !p.chosen():
		v.Absent.Reason, v.Absent.Message = p.refusal()
	case p.absent != nil:
		v.Absent = gpu.Fault{Reason: p.absent.reason, Message: p.absent.message}
	}
	p.seenBy(v)
}
