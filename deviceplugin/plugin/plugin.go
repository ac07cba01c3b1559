// Package plugin joins the parts of the device plugin. Its knowledge of the node is one
// immutable value (state.go). A fact changes it: facts come from the GPUs (gpus.go), the
// settings (settings.go), the toolkit and the MPS daemons (toolkit.go), and the kubelet. Each
// fact yields the next state, with the plan of the devices to advertise. publish.go publishes
// the differences to the kubelet, by one service for each resource (service.go), and to the
// state file, the log and the metrics.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	"github.com/gpuready/gpuready/deviceplugin/telemetry"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host/mount"
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
	PodResources   string         // socket of the kubelet's PodResources API, for the metrics of pods; "": none
	DCGMMetrics    telemetry.DCGM // serve the GPUs' metrics under the names of this release of dcgm-exporter, too
	Settings       Settings       // in force from the start
	// Follow calls deliver with each new configuration, or with the error of a refused one,
	// until ctx ends, from one goroutine. nil: the settings never change.
	Follow   func(ctx context.Context, deliver func(Settings, error)) error
	Driver   driver.Place // the settings' driver root, if set, replaces its Root
	Open     func(driver.Place) (Opened, error)
	Injected string // value of injection.Variable in this container; "": the container does not get its GPUs by injection
	Log      *slog.Logger
	Metrics  *Metrics // nil: its own
	Serve    string   // who offers the GPUs to pods while the node's label does not say it: nodestate.ServePlugin ("") or ServeDRA
	// Partitions has partitions of GPUs in MIG mode created and destroyed as gpu-dra-driver asks. Open
	// must then return a source that is a partition.Maker.
	Partitions bool
	NodeName   string                       // dcgm-exporter's label hostname; "": the host's name
	NFDDir     string                       // Node Feature Discovery's folder of feature files; "": the labels go into the state
	Started    time.Time                    // of the process
	Sockets    map[string]*net.UnixListener // handed over by the previous program, by Endpoint
}

// ErrReplaced means that another library of the driver must be used. The process must
// be replaced too, since it cannot load a second one.
var ErrReplaced = errors.New("the driver's library was replaced")

// Plugin is a running device plugin.
type Plugin struct {
	cfg          Config
	boot         string // ID of the host's boot
	metrics      *Metrics
	telemetry    *telemetry.Collector
	onListSent   func()         // called after each device list that the kubelet got
	onRegistered func()         // called after each registration that the kubelet accepted
	startDone    chan struct{}  // closed after the first device list and registration, or when there will be none soon
	endStart     func()         // closes startDone
	willReplace  atomic.Bool    // this process is about to execute the program again, which takes over the sockets
	kubeletSeen  atomic.Bool    // a kubelet has registered one of the resources
	startService func(*service) // runs a service
	configuredCh chan struct{}  // closed when settings are in force
	resync       chan struct{}  // capacity 1: the toolkit names other devices than before, so read the GPUs
	serveDue     chan struct{}  // capacity 1: the change of who offers the GPUs has a next step
	accountDue   atomic.Bool    // pods may hold devices that gpu-dra-driver is to offer
	allocations  allocations
	reportOnly   func(View) // shadow mode: gets each View, and nothing is published; nil: publish

	mu           sync.Mutex
	state        state
	services     map[string]*service // by resource
	keptSockets  map[string]*os.File // sockets for the next program
	source       gpu.Source          // the opened driver; nil before the first one
	journal      *journal
	missingNodes string          // configured device nodes that do not exist
	pendingState nodestate.State // the next content of the state file

	// Used only by writeStates and writePendingState.
	stateChanged chan struct{} // capacity 1: signals a new pendingState
	writtenState nodestate.State
	writeFault   nodestate.WriteFault
	stateHold    io.Closer      // shows readers of the state that this process lives; nil before the first write
	labels       labelPublisher // used by writePendingState
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
	p.metrics.Register(reg)

	group, ctx := errgroup.WithContext(ctx)
	// applyAndPublish starts services; only members of the group call it.
	p.startService = func(s *service) { group.Go(func() error { return s.run(ctx) }) }
	p.adoptSockets(cfg.Sockets)
	group.Go(func() error { return metricsserver.Serve(ctx, cfg.Listen, reg, p.Ready) })
	group.Go(func() error {
		p.waitForStart(ctx) // so that describing the metrics does not delay the first device list
		return reg.Register(p.telemetry)
	})
	group.Go(func() error { return p.watchSettings(ctx) })
	group.Go(func() error { return p.watchGPUs(ctx) })
	group.Go(func() error { return p.watchToolkit(ctx) })
	group.Go(func() error { return p.watchMPS(ctx) })
	group.Go(func() error { return p.watchInjection(ctx) })
	group.Go(func() error { return p.watchServeLabel(ctx) })
	group.Go(func() error { return p.watchDRADriver(ctx) })
	group.Go(func() error { return p.switchServe(ctx) })
	group.Go(func() error { return p.watchFolders(ctx) })
	group.Go(func() error { return p.writeStates(ctx) })
	if cfg.Partitions {
		group.Go(func() error { return p.servePartitions(ctx) })
	}
	err = group.Wait()
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, injection.ErrOutdated), errors.Is(err, mount.ErrReplaced):
		err = nil
		p.applyAndStore(pluginEnds(ending{nodestate.Waiting, reasonStopped, "the device plugin was stopped: pods keep their GPUs, and no new pod gets one until it runs again"}))
	case err != nil && !errors.Is(err, ErrReplaced) && !errors.Is(err, kubelet.ErrTakenOver): // the other plugin reports its own state
		p.applyAndStore(pluginEnds(ending{nodestate.Failed, failureReason(err), err.Error()}))
	}
	p.writePendingState()
	if p.stateHold != nil {
		_ = p.stateHold.Close()
	}
	return p.keptSockets, err
}

// adoptSockets starts services on the sockets of the previous program at once, so that the
// kubelet does not wait. A service whose resource is not advertised any more is removed later.
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
		if !p.state.serve.Advertises() {
			s.setDevices(nil)
		}
		for _, r := range p.state.advertised() {
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
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics()
	}
	p := &Plugin{
		cfg: cfg, boot: boot, metrics: cfg.Metrics, journal: newJournal(cfg.Log), stateChanged: make(chan struct{}, 1), resync: make(chan struct{}, 1), serveDue: make(chan struct{}, 1), services: map[string]*service{}, configuredCh: make(chan struct{}),
	}
	telemetryConfig := telemetry.Config{Node: p.readTelemetryNode, AdminAccess: p.readAdminAccess, DCGM: cfg.DCGMMetrics, Hostname: cfg.NodeName}
	if cfg.PodResources != "" {
		telemetryConfig.PodResources = p.podResources()
	}
	p.telemetry = telemetry.NewCollector(telemetryConfig)
	p.labels = labelPublisher{HostRoot: cfg.HostRoot, NFDDir: cfg.NFDDir, Started: cfg.Started, Log: cfg.Log}
	p.startDone = make(chan struct{})
	p.endStart = sync.OnceFunc(func() { close(p.startDone) })
	var awaited atomic.Int32
	awaited.Store(2) // the order of the two is the kubelet's
	arrived := func() {
		if awaited.Add(-1) == 0 {
			p.endStart()
		}
	}
	p.onRegistered = sync.OnceFunc(arrived)
	p.onListSent = sync.OnceFunc(func() {
		p.metrics.SetFirstListTime(time.Since(cfg.Started))
		arrived()
	})
	if cfg.Injected != "" {
		p.cfg.Driver.MoreFiles = []string{filepath.Join(p.stateDir(nodestate.Toolkit), nodestate.FileName)}
	}
	p.state = state{kubeletSocket: cfg.KubeletSocket, partitions: cfg.Partitions, settings: &config.Config{}, topology: prefer.NewTopology(gpu.Snapshot{})}
	p.restoreState()
	p.readToolkit()
	p.state.health = p.state.health.WithPolicy(cfg.Settings.Health)
	// No GPU is healthy before the driver has been read.
	p.state.health = p.state.health.SetUnwatchable(gpu.Fault{Reason: gpu.ReasonUnwatched, Message: "the driver has not been read yet"}, false, cfg.Started)
	p.applyFact(p.firstSettings(cfg.Settings))
	return p, nil
}

// startLimit bounds how long waitForStart delays work after the start of the process: there
// may be no kubelet, and a driver may take seconds to initialise its GPUs.
const startLimit = 250 * time.Millisecond

// waitForStart waits until the kubelet has the first list and has answered the registration, or will
// not have done so soon. Work that these do not need begins after that. For example, the watches of the
// driver's files take hundreds of system calls, and each state that is written makes the validator
// check the node: the first one shows the registration.
func (p *Plugin) waitForStart(ctx context.Context) {
	select {
	case <-p.startDone:
	case <-ctx.Done():
	case <-time.After(time.Until(p.cfg.Started.Add(startLimit))):
	}
}

// stateDir returns the folder of a component's state, as this process sees it.
func (p *Plugin) stateDir(of nodestate.Component) string {
	return filepath.Join("/", p.cfg.HostRoot, p.cfg.StateDir, string(of))
}

// restoreState restores the faults and names that an earlier process of this boot wrote to the
// state file. If the file cannot be read, every GPU counts as unhealthy: any of them may be the
// broken one.
func (p *Plugin) restoreState() {
	dir := p.stateDir(nodestate.DevicePlugin)
	path := filepath.Join(dir, nodestate.FileName)
	file, err := nodestate.ReadBoot(dir, p.boot)
	p.restoreServe(file, err)
	switch {
	case err == nil:
		p.state.health = health.Restore(file)
		p.state.unallocatable, p.state.toolkitNaming = allocate.RestoreUnallocatable(file.DevicePlugin)
		if file.DevicePlugin != nil {
			p.labels.Labels, p.state.layoutRead = file.DevicePlugin.Labels, file.DevicePlugin.LayoutRead
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

// telemetryReader is implemented by a gpu.Source that can read what GPUs measure.
type telemetryReader interface {
	ReadTelemetry(ctx context.Context, devices []gpu.Device) []gpu.Telemetry
}

// readTelemetryNode returns the devices, the plan and the reader of their measurements.
func (p *Plugin) readTelemetryNode() telemetry.Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := telemetry.Node{Devices: p.state.snapshot.Devices, Plan: p.state.plan}
	if source, can := p.source.(telemetryReader); can {
		n.Read = source.ReadTelemetry
	}
	return n
}

// readAdminAccess returns the devices of claims with administrative access, as gpu-dra-driver tells, whether it runs
// now or not.
func (p *Plugin) readAdminAccess() []nodestate.ClaimedDevice {
	s, err := nodestate.ReadBoot(p.stateDir(nodestate.DRADriver), p.boot)
	if err != nil || s.DRADriver == nil {
		return nil
	}
	return s.DRADriver.AdminAccess
}

// Ready returns nil if every resource is registered with the kubelet, and otherwise what is
// missing. A node without GPUs is ready.
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
	case p.state.serve.Refused != "":
		return errors.New(p.state.serve.Refused)
	case len(p.state.advertised()) == 0 && p.state.snapshot.Driver.Version != "":
		return nil
	}
	if all, waiting := p.state.registered(); !all {
		return errors.New("waiting for " + waiting)
	}
	return nil
}
