// Package plugin joins the parts of the device plugin: GPUs are watched
// (gpus.go), each change makes a new state of health, from that follow the lists
// of devices (package plan), and they are published (publish.go) to the kubelet,
// each resource by a service of its own (service.go), and to the state file, the
// log and the metrics.
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
	"github.com/gpuready/gpuready/deviceplugin/hindrance"
	"github.com/gpuready/gpuready/deviceplugin/journal"
	"github.com/gpuready/gpuready/deviceplugin/kubelet"
	"github.com/gpuready/gpuready/deviceplugin/labels"
	"github.com/gpuready/gpuready/deviceplugin/meter"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/deviceplugin/prefer"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/metrics"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// Opened is a driver that is in use.
type Opened struct {
	Source  gpu.Source
	Root    string         // host path of the driver root
	Library driver.Library // the loaded libnvidia-ml; the zero Library cannot be replaced
}

// Config is what the plugin is told. Paths are host paths; HostRoot is where
// they are seen.
type Config struct {
	HostRoot       string
	StateDir       string
	KubeletSocket  string
	KubeletTimeout time.Duration // 0: wait for ever
	Listen         string
	Settings       Settings // in force from the start
	// Follow tells of each configuration that comes, and of each that is refused and
	// why, until ctx ends, from one goroutine. nil: none comes.
	Follow  func(ctx context.Context, deliver func(Settings, error)) error
	Driver  driver.Place // its Root is that of the settings, where they have one
	Open    func(driver.Place) (Opened, error)
	Given   string // value of injection.Variable; "": not in a container that is given the GPUs that way
	Log     *slog.Logger
	Meters  *meter.Meters                // nil: its own
	NFDDir  string                       // Node Feature Discovery's folder of feature files; "": the state has the labels
	Started time.Time                    // of the process
	Sockets map[string]*net.UnixListener // handed over by the program before, by Endpoint
}

// ErrReplaced means that another library of the driver is to be used: the process
// must be replaced too, since it can load no other.
var ErrReplaced = errors.New("the driver's library was replaced")

// Plugin is a running device plugin.
type Plugin struct {
	cfg       Config
	meters    *meter.Meters
	firstList func()
	boot      string
	replace   atomic.Bool    // there is a next program
	known     atomic.Bool    // a kubelet has registered one of the resources
	begin     func(*service) // lets it run
	choice    chan struct{}  // closed when settings are in force
	others    chan struct{}  // capacity 1: the toolkit names other devices than before
	seenBy    func(View)     // takes the place of all that is published; nil: nobody

	mu       sync.Mutex
	settings *config.Config      // in force; replaced, never changed
	refused  error               // why others are not; nil: there are none
	ignored  []string            // keys of the settings' file that are not known
	services map[string]*service // by resource
	kept     map[string]*os.File // sockets for the next program
	health   health.State
	snapshot gpu.Snapshot
	topology *prefer.Topology // of the snapshot
	source   gpu.Source       // of the snapshot; nil before there was one
	root     string           // of the driver
	host     allocate.Host    // what there is besides GPUs
	plan     plan.Plan        // what is advertised, health included
	absent   *absence
	ended    *ending
	said     hindrance.Naming // what the toolkit says of CDI names
	cdi      hindrance.Naming // the same, where the settings need them
	mps      hindrance.Served // what the MPS control daemons serve
	hindered hindrance.Known  // devices that could not be given to a container
	journal  *journal.Journal
	lacking  string          // of what is asked for and not there
	stored   nodestate.State // what the state file is to say

	// Of who writes states.
	dirty    chan struct{} // something is stored
	written  nodestate.State
	writeErr string
	labels   labels.Publisher // of who writes states
}

// absence is why there is no driver.
type absence struct {
	reason  gpu.Reason
	message string
	idle    bool // and none is missed: the machine has no GPU
}

// ending is why the plugin ends; what happens meanwhile is no news.
type ending struct {
	phase   nodestate.Phase
	reason  gpu.Reason
	message string
}

// Run runs the plugin until ctx ends and returns nil then, or when this
// container has to be created anew. With an error that is
// ErrReplaced it also returns the plugin's sockets, for handover.Exec.
func Run(ctx context.Context, cfg Config) (map[string]*os.File, error) {
	p, err := newPlugin(cfg)
	if err != nil {
		return nil, err
	}
	reg := metrics.NewRegistry()
	p.meters.Register(reg)

	group, ctx := errgroup.WithContext(ctx)
	// Services are begun by update, which a member of the group calls.
	p.begin = func(s *service) { group.Go(func() error { return s.run(ctx) }) }
	p.takeOver(cfg.Sockets)
	group.Go(func() error { return metrics.Serve(ctx, cfg.Listen, reg, p.Ready) })
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
	case err != nil && !errors.Is(err, ErrReplaced) && !errors.Is(err, kubelet.ErrTakenOver): // whose plugin says how things are
		p.end(ending{nodestate.Failed, failure(err), err.Error()})
	}
	p.flush()
	return p.kept, err
}

// takeOver serves the sockets of the program before from the start: who connects
// is not left waiting. One whose resource turns out to be gone is removed then.
func (p *Plugin) takeOver(sockets map[string]*net.UnixListener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for endpoint, ln := range sockets {
		resource := resourceOf(endpoint)
		if resource == "" {
			p.cfg.Log.Warn("socket of no resource was handed over; closed", "path", endpoint)
			_ = ln.Close()
			continue
		}
		s := p.newService(resource, ln)
		p.services[resource] = s
		for _, r := range p.plan.Resources {
			if r.Name == resource {
				s.see(r, p.near())
			}
		}
		p.begin(s)
	}
}

func newPlugin(cfg Config) (*Plugin, error) {
	boot, err := nodestate.BootIDAt(cfg.HostRoot)
	if err != nil {
		return nil, err
	}
	if cfg.Meters == nil {
		cfg.Meters = meter.New()
	}
	p := &Plugin{
		cfg: cfg, boot: boot, meters: cfg.Meters, journal: journal.New(cfg.Log), dirty: make(chan struct{}, 1), others: make(chan struct{}, 1), services: map[string]*service{},
	}
	p.labels = labels.Publisher{HostRoot: cfg.HostRoot, NFDDir: cfg.NFDDir, Started: cfg.Started, Log: cfg.Log}
	p.firstList = sync.OnceFunc(func() { p.meters.Started(time.Since(cfg.Started)) })
	if cfg.Given != "" {
		p.cfg.Driver.Also = []string{filepath.Join(p.stateDir(nodestate.Toolkit), nodestate.FileName)}
	}
	p.recall()
	p.askToolkit()
	// What is remembered stays in the state file, and is not given away before it
	// has been seen.
	p.health = p.health.Blind(gpu.Fault{Reason: gpu.ReasonUnwatched, Message: "the driver has not been read yet"}, false, cfg.Started)
	p.begun(cfg.Settings)
	p.look()
	return p, nil
}

// stateDir is where the plugin leaves its own state.
func (p *Plugin) stateDir(of nodestate.Component) string {
	return filepath.Join("/", p.cfg.HostRoot, p.cfg.StateDir, string(of))
}

// recall reads what an earlier process of this boot knew. If that cannot be
// read, every GPU is under suspicion: it may be the one that was broken.
func (p *Plugin) recall() {
	dir := p.stateDir(nodestate.DevicePlugin)
	path := filepath.Join(dir, nodestate.FileName)
	file, err := nodestate.ReadBoot(dir, p.boot)
	switch {
	case err == nil:
		p.health = health.Recall(file)
		p.hindered, p.said = hindrance.Recall(file.DevicePlugin)
		if file.DevicePlugin != nil {
			p.labels.Labels = file.DevicePlugin.Labels
		}
		if file.Driver != nil {
			p.root = file.Driver.Root
		}
	case nodestate.IsAbsent(err):
		p.health = health.New(gpu.Fault{})
	default:
		p.health = health.New(gpu.Fault{
			Reason: health.ReasonForgotten,
			Message: fmt.Sprintf("what was known of its health in this boot is lost; check the GPUs, remove %s and start the plugin again",
				filepath.Join("/", p.cfg.StateDir, string(nodestate.DevicePlugin), nodestate.FileName)),
		})
		p.cfg.Log.Error("the state of this boot cannot be read; every GPU counts as unhealthy until it is reset, or until the file is removed and the plugin started again",
			"path", path, "reason", string(health.ReasonForgotten), "message", err.Error())
	}
}

// Ready says why the plugin does not do its work, nil when it does. A node
// without GPUs has no work for it.
func (p *Plugin) Ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.chosen() && p.refused != nil:
		why, message := p.refusal()
		return fmt.Errorf("%s: %s", why, message)
	case p.absent != nil && p.absent.idle:
		return nil
	case p.absent != nil:
		return fmt.Errorf("%s: %s", p.absent.reason, p.absent.message)
	case len(p.plan.Resources) == 0 && p.snapshot.Driver.Version != "":
		return nil
	}
	if all, waiting := p.registered(); !all {
		return errors.New("waiting for " + waiting)
	}
	return nil
}
