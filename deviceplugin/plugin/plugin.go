// Package plugin joins the parts of the device plugin. All that it knows is one pure state
// (state.go): each fact, from the GPUs (gpus.go), the settings (settings.go), the toolkit and the
// MPS daemons (toolkit.go) or the kubelet, produces the next one, with the plan that follows
// from it. publish.go publishes the differences to the kubelet, with one service for each
// resource (service.go), and to the state file, the log and the metrics.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/deviceplugin/allocate"
	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/driver"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/kubelet"
	"github.com/gpuready/gpuready/deviceplugin/prefer"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/metricsserver"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// Opened is an open driver.
type Opened struct {
	Source  gpu.Source
	Root    string         // host path of the driver root
	Library driver.Library // the loaded libnvidia-ml; the zero Library cannot be replaced
}

// Config holds the plugin's inputs. Paths are host paths, found below HostRoot.
type Config struct {
	HostRoot       string
	StateDir       string
	KubeletSocket  string
	KubeletTimeout time.Duration // 0: no limit
	Listen         string
	Settings       Settings // in force from the start
	// Follow calls deliver with each new configuration, or with the error of a refused one,
	// until ctx ends, from one goroutine. nil: the settings never change.
	Follow  func(ctx context.Context, deliver func(Settings, error)) error
	Driver  driver.Place // the settings' driver root, if set, replaces its Root
	Open    func(driver.Place) (Opened, error)
	Given   string // value of injection.Variable; "": the container does not get its GPUs by injection
	Log     *slog.Logger
	Meters  *Metrics                     // nil: its own
	NFDDir  string                       // Node Feature Discovery's folder of feature files; "": the labels go into the state
	Started time.Time                    // of the process
	Sockets map[string]*net.UnixListener // handed over by the previous program, by Endpoint
}

// ErrReplaced means that another library of the driver must be used. The process must
// be replaced too, since it cannot load a second one.
var ErrReplaced = errors.New("the driver's library was replaced")

// Plugin is a running device plugin.
type Plugin struct {
	cfg          Config
	boot         string // ID of the host's boot
	meters       *Metrics
	firstList    func()         // called after each list sent
	listed       chan struct{}  // closed after the first list, or when there will be none soon
	endStart     func()         // closes listed
	replace      atomic.Bool    // another program will follow in this process
	kubeletFound atomic.Bool    // a kubelet has registered one of the resources
	startService func(*service) // runs a service
	configuredCh chan struct{}  // closed when settings are in force
	resync       chan struct{}  // capacity 1: the toolkit names other devices than before, so read the GPUs
	onView       func(View)     // replaces all publishing; nil: publish

	mu          sync.Mutex
	state       state
	services    map[string]*service // by resource
	keptSockets map[string]*os.File // sockets for the next program
	source      gpu.Source          // of the snapshot; nil before there was one
	journal     *journal
	missing     string          // configured device nodes that do not exist
	pending     nodestate.State // to be written to the state file

	// Used only by writeStates and flush.
	dirty    chan struct{} // signals a new pending
	written  nodestate.State
	writeErr string
	labels   labelPublisher // used by flush
}

// Run runs the plugin until ctx ends or this container must be created again, and then
// returns nil. With an ErrReplaced error it also returns the plugin's sockets, for
// the program that takes over.
func Run(ctx context.Context, cfg Config) (map[string]*os.File, error) {
	p, err := newPlugin(cfg)
	if err != nil {
		return nil, err
	}
	reg := metricsserver.NewRegistry()
	p.meters.Register(reg)

	group, ctx := errgroup.WithContext(ctx)
	// update starts services; only members of the group call it.
	p.startService = func(s *service) { group.Go(func() error { return s.run(ctx) }) }
	p.adoptSockets(cfg.Sockets)
	group.Go(func() error { return metricsserver.Serve(ctx, cfg.Listen, reg, p.Ready) })
	group.Go(func() error { return p.watchSettings(ctx) })
	group.Go(func() error { return p.watchGPUs(ctx) })
	group.Go(func() error { return p.watchToolkit(ctx) })
	group.Go(func() error { return p.watchMPS(ctx) })
	group.Go(func() error { return p.watchInjection(ctx) })
	group.Go(func() error { return p.writeStates(ctx) })
	err = group.Wait()
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, injection.ErrOutdated):
		err = nil
	case err != nil && !errors.Is(err, ErrReplaced) && !errors.Is(err, kubelet.ErrTakenOver): // the other plugin reports its own state
		p.record(pluginEnds(ending{nodestate.Failed, failureReason(err), err.Error()}))
	}
	p.flush()
	return p.keptSockets, err
}

// adoptSockets serves the sockets of the previous program from the start, so that no
// client waits. A socket whose resource turns out to be gone is removed then.
func (p *Plugin) adoptSockets(sockets map[string]*net.UnixListener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for endpoint, ln := range sockets {
		resource := kubelet.ResourceOf(endpoint)
		if resource == "" {
			p.cfg.Log.Warn("closed a handed-over socket that belongs to no resource", "path", endpoint)
			_ = ln.Close()
			continue
		}
		s := p.newService(resource, ln)
		p.services[resource] = s
		for _, r := range p.state.plan.Resources {
			if r.Name == resource {
				s.setView(r)
			}
		}
		p.startService(s)
	}
}

func newPlugin(cfg Config) (*Plugin, error) {
	boot, err := nodestate.BootIDAt(cfg.HostRoot)
	if err != nil {
		return nil, err
	}
	if cfg.Meters == nil {
		cfg.Meters = NewMetrics()
	}
	p := &Plugin{
		cfg: cfg, boot: boot, meters: cfg.Meters, journal: newJournal(cfg.Log), dirty: make(chan struct{}, 1), resync: make(chan struct{}, 1), services: map[string]*service{}, configuredCh: make(chan struct{}),
	}
	p.labels = labelPublisher{HostRoot: cfg.HostRoot, NFDDir: cfg.NFDDir, Started: cfg.Started, Log: cfg.Log}
	p.listed = make(chan struct{})
	p.endStart = sync.OnceFunc(func() { close(p.listed) })
	p.firstList = sync.OnceFunc(func() {
		p.meters.SetFirstListTime(time.Since(cfg.Started))
		p.endStart()
	})
	if cfg.Given != "" {
		p.cfg.Driver.Also = []string{filepath.Join(p.stateDir(nodestate.Toolkit), nodestate.FileName)}
	}
	p.state = state{socket: cfg.KubeletSocket, settings: &config.Config{}, topology: prefer.NewTopology(gpu.Snapshot{})}
	p.restore()
	p.readToolkit()
	p.state.health = p.state.health.WithPolicy(cfg.Settings.Health)
	// No GPU is healthy before the driver has been read.
	p.state.health = p.state.health.SetUnwatchable(gpu.Fault{Reason: gpu.ReasonUnwatched, Message: "the driver has not been read yet"}, false, cfg.Started)
	p.applyNext(p.firstSettings(cfg.Settings))
	return p, nil
}

// startLimit bounds how long the start delays work: there may be no kubelet, and a driver may
// take seconds to initialise its GPUs.
const startLimit = 250 * time.Millisecond

// afterStart waits until the kubelet has the first list, or will not have it soon. What the
// list does not need begins after that: to set up the watches of a node's driver takes
// hundreds of system calls.
func (p *Plugin) afterStart(ctx context.Context) {
	select {
	case <-p.listed:
	case <-ctx.Done():
	case <-time.After(time.Until(p.cfg.Started.Add(startLimit))):
	}
}

// stateDir is the folder of a component's state.
func (p *Plugin) stateDir(of nodestate.Component) string {
	return filepath.Join("/", p.cfg.HostRoot, p.cfg.StateDir, string(of))
}

// restore reads what an earlier process of this boot knew. If that cannot be read,
// every GPU counts as unhealthy: any of them may be the broken one.
func (p *Plugin) restore() {
	dir := p.stateDir(nodestate.DevicePlugin)
	path := filepath.Join(dir, nodestate.FileName)
	file, err := nodestate.ReadBoot(dir, p.boot)
	switch {
	case err == nil:
		p.state.health = health.Restore(file)
		p.state.unallocatable, p.state.toolkitNaming = allocate.RestoreKnown(file.DevicePlugin)
		if file.DevicePlugin != nil {
			p.labels.Labels = file.DevicePlugin.Labels
		}
		if file.Driver != nil {
			p.state.root = file.Driver.Root
		}
	case nodestate.IsAbsent(err):
		p.state.health = health.New(gpu.Fault{})
	default:
		p.state.health = health.New(gpu.Fault{
			Reason: health.ReasonForgotten,
			Message: fmt.Sprintf("the record of its health in this boot is lost; check the GPUs, remove %s and restart the plugin",
				filepath.Join("/", p.cfg.StateDir, string(nodestate.DevicePlugin), nodestate.FileName)),
		})
		p.cfg.Log.Error("the state of this boot cannot be read; every GPU counts as unhealthy until it is reset, or until the file is removed and the plugin restarted",
			"path", path, "reason", string(health.ReasonForgotten), "message", err.Error())
	}
}

// Ready returns why the plugin is not serving, or nil if it is. A node without GPUs is
// ready.
func (p *Plugin) Ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.state.configured && p.state.refused != nil:
		why, message := p.state.refusal()
		return fmt.Errorf("%s: %s", why, message)
	case p.state.absent != nil && p.state.absent.idle:
		return nil
	case p.state.absent != nil:
		return fmt.Errorf("%s: %s", p.state.absent.reason, p.state.absent.message)
	case len(p.state.plan.Resources) == 0 && p.state.snapshot.Driver.Version != "":
		return nil
	}
	if all, waiting := p.state.registered(); !all {
		return errors.New("waiting for " + waiting)
	}
	return nil
}
