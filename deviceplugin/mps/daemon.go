package mps

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/driver"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/metrics"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// Source is a driver that is asked for GPUs and their compute mode.
type Source interface {
	gpu.Source
	Modes
}

// Opened is a driver that is in use.
type Opened struct {
	Source  Source
	Root    string         // host path of the driver root
	Library driver.Library // the loaded libnvidia-ml
}

// Config is what Run is told. Paths are host paths; HostRoot is where they are seen.
type Config struct {
	HostRoot string
	StateDir string
	Root     string // of the daemons' folders
	Listen   string
	Settings *config.Config
	Driver   driver.Place
	Open     func(driver.Place) (Opened, error)
	Log      *slog.Logger
}

// ErrReplaced means that the driver's library was replaced: the process must be
// replaced too, since it can load no other.
var ErrReplaced = errors.New("the driver's library was replaced")

const (
	reasonWaiting    gpu.Reason = "MPSNotReady"
	reasonNothing    gpu.Reason = "NothingShared"
	reasonDriverGone gpu.Reason = "DriverFailed"
)

// daemon is the process.
type daemon struct {
	cfg   Config
	boot  string
	up    *prometheus.GaugeVec
	ends  *prometheus.CounterVec
	dirty chan struct{}

	mu        sync.Mutex
	absent    gpu.Fault                        // why there is no driver; zero: there is one
	resources map[string]nodestate.MPSResource // by name
	left      []plan.Left                      // what cannot be shared by MPS
	ended     string                           // why it ends
	writeErr  string
}

// Run runs the daemons until ctx ends and returns nil then, or ErrReplaced.
func Run(ctx context.Context, cfg Config) error {
	boot, err := nodestate.BootIDAt(cfg.HostRoot)
	if err != nil {
		return err
	}
	d := &daemon{
		cfg: cfg, boot: boot, dirty: make(chan struct{}, 1), resources: map[string]nodestate.MPSResource{},
		absent: gpu.Fault{Reason: reasonStarting, Message: "the driver has not been read yet"},
		up: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "gpuready_mps_ready", Help: "1 where the MPS control daemon of a resource serves it, 0 where it does not.",
		}, []string{"resource"}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuready_mps_failures_total", Help: "How often a resource was found not to be served, by reason.",
		}, []string{"resource", "reason"}),
	}
	// The word of the process before must not stand: its daemons ended with it.
	d.write()
	reg := prometheus.NewRegistry()
	reg.MustRegister(d.up, d.ends)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return metrics.Serve(ctx, cfg.Listen, reg, d.Ready) })
	group.Go(func() error { return d.watchGPUs(ctx) })
	group.Go(func() error { return d.writeStates(ctx) })
	err = group.Wait()
	d.mu.Lock()
	d.ended = "gpu-device-plugin mps-daemon has ended"
	if err != nil && !errors.Is(err, context.Canceled) {
		d.ended += ": " + err.Error()
	}
	d.mu.Unlock()
	d.write()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// watchGPUs uses the driver until ctx ends.
func (d *daemon) watchGPUs(ctx context.Context) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		opened, err := driver.Wait(ctx, d.cfg.Driver, func() (Opened, error) { return d.cfg.Open(d.cfg.Driver) },
			func(err error) bool { return !errors.Is(err, nvml.ErrOtherLibrary) }, d.waiting)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, nvml.ErrOtherLibrary):
			return fmt.Errorf("%w: %w", ErrReplaced, err)
		case err != nil:
			return fmt.Errorf("wait for a driver: %w", err)
		}
		began := time.Now()
		err = d.use(ctx, opened)
		if closeErr := opened.Source.Close(); closeErr != nil {
			d.cfg.Log.Warn("closing the driver", "message", closeErr.Error())
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, ErrReplaced) {
			return err
		}
		d.lost(gpu.Fault{Reason: reasonDriverGone, Message: err.Error()})
		if time.Since(began) > steady {
			pause = firstPause
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// waiting says why there is no driver.
func (d *daemon) waiting(err error) {
	d.lost(gpu.Fault{Reason: driver.Reason(err), Message: "waiting for a driver: " + err.Error()})
}

func (d *daemon) lost(why gpu.Fault) {
	d.mu.Lock()
	same := d.absent == why
	d.absent = why
	d.mu.Unlock()
	if !same {
		d.cfg.Log.Warn(why.Message, "reason", string(why.Reason))
		d.changed()
	}
}

// use watches one source until it fails, ctx ends, or its library is replaced. The
// control daemons have ended then.
func (d *daemon) use(ctx context.Context, o Opened) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer cancel(nil)
	if o.Library.Path != "" {
		helpers.Go(func() {
			place := d.cfg.Driver
			if o.Root == driver.Containerised {
				place.Root = o.Root // what is elsewhere while it is gone is another's
			}
			switch err := driver.Replaced(ctx, place, o.Library); {
			case err == nil:
				cancel(fmt.Errorf("%w: %s", ErrReplaced, o.Library.Path))
			case ctx.Err() == nil:
				cancel(fmt.Errorf("watch the driver's library: %w", err))
			}
		})
	}
	changed := make(chan struct{}, 1)
	poke := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	helpers.Go(func() {
		err := o.Source.Watch(ctx, poke, func(gpu.Event) { poke() })
		if ctx.Err() == nil {
			cancel(fmt.Errorf("watch the GPUs: %w", err))
		}
	})
	controls := controls{daemon: d, opened: o, running: map[string]*running{}}
	defer controls.stop()
	h := health.New(gpu.Fault{})
	for {
		snap, err := o.Source.Snapshot(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
		h = h.See(snap, time.Now())
		p := plan.Make(d.cfg.Settings, snap, h)
		d.seen(p)
		controls.apply(ctx, Specs(d.cfg.Settings, p, h))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
	}
}

// seen takes a plan into account: what MPS cannot share is said.
func (d *daemon) seen(p plan.Plan) {
	var left []plan.Left
	for _, l := range p.Left {
		if l.Reason == plan.ReasonMPS {
			left = append(left, l)
		}
	}
	d.mu.Lock()
	same := d.absent == gpu.Fault{} && slices.Equal(left, d.left)
	d.absent, d.left = gpu.Fault{}, left
	d.mu.Unlock()
	if same {
		return
	}
	for _, l := range left {
		d.cfg.Log.Warn("device is not shared", "gpu", string(l.GPU), "index", l.Index, "reason", string(l.Reason), "message", l.Message)
	}
	d.changed()
}

// report is a control's word.
func (d *daemon) report(r nodestate.MPSResource) {
	d.mu.Lock()
	d.resources[r.Name] = r
	d.mu.Unlock()
	value := 0.0
	if r.Ready {
		value = 1
	} else {
		d.ends.WithLabelValues(r.Name, string(r.Reason)).Inc()
	}
	d.up.WithLabelValues(r.Name).Set(value)
	d.changed()
}

// forget takes a resource out that is shared no more.
func (d *daemon) forget(name string) {
	d.mu.Lock()
	delete(d.resources, name)
	d.mu.Unlock()
	d.up.DeleteLabelValues(name)
	d.changed()
}

// Ready says why the daemon does not do its work, nil where it does, or has none.
func (d *daemon) Ready() error {
	s := d.state()
	if s.Phase == nodestate.Ready || s.Phase == nodestate.Degraded {
		return nil
	}
	return fmt.Errorf("%s: %s", s.Reason, s.Message)
}

func (d *daemon) changed() {
	select {
	case d.dirty <- struct{}{}:
	default:
	}
}

func (d *daemon) writeStates(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.dirty:
			d.write()
		}
	}
}

// write leaves the state for the device plugin. One goroutine calls it at a time.
func (d *daemon) write() {
	dir := filepath.Join("/", d.cfg.HostRoot, d.cfg.StateDir, string(nodestate.MPS))
	err := nodestate.Write(dir, d.state())
	switch {
	case err == nil:
		d.writeErr = ""
	case d.writeErr != err.Error():
		d.writeErr = err.Error()
		d.cfg.Log.Error("the state cannot be written; the device plugin does not learn what is served", "path", dir, "message", err.Error())
	}
}

// state says how things are.
func (d *daemon) state() nodestate.State {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := nodestate.State{Component: nodestate.MPS, BootID: d.boot, Phase: nodestate.Ready, MPS: &nodestate.MPSInfo{}}
	ready := 0
	var why nodestate.MPSResource
	for _, name := range slices.Sorted(maps.Keys(d.resources)) {
		r := d.resources[name]
		if d.ended != "" {
			r = nodestate.MPSResource{Name: name, Reason: reasonEnded, Message: d.ended}
		}
		s.MPS.Resources = append(s.MPS.Resources, r)
		if r.Ready {
			ready++
		}
		if r.Message != "" && why.Message == "" {
			why = r
		}
	}
	switch {
	case d.ended != "":
		s.Phase, s.Reason, s.Message = nodestate.Waiting, reasonEnded, d.ended
	case d.absent != gpu.Fault{}:
		s.Phase, s.Reason, s.Message = nodestate.Waiting, d.absent.Reason, d.absent.Message
	case len(d.resources) == 0 && len(d.left) > 0:
		s.Phase, s.Reason, s.Message = nodestate.Failed, d.left[0].Reason, fmt.Sprintf("GPU %d: %s", d.left[0].Index, d.left[0].Message)
	case len(d.resources) == 0:
		s.Reason, s.Message = reasonNothing, "the configuration shares nothing by MPS that is on this node"
	case ready == 0:
		s.Phase, s.Reason, s.Message = nodestate.Waiting, reasonWaiting, why.Name+": "+why.Message
	case why.Message != "":
		s.Phase, s.Reason, s.Message = nodestate.Degraded, reasonWaiting, why.Name+": "+why.Message
	case len(d.left) > 0:
		s.Phase, s.Reason, s.Message = nodestate.Degraded, d.left[0].Reason, fmt.Sprintf("GPU %d: %s", d.left[0].Index, d.left[0].Message)
	}
	return s
}
