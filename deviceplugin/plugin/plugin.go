// Package plugin joins the parts of the device plugin: GPUs are watched
// (gpus.go), each change makes a new state of health, from that follows the list
// of devices (package plan), and that is published (publish.go) to the kubelet,
// the state file, the log and the metrics.
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

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/deviceplugin/driver"
	"github.com/gpuready/gpuready/deviceplugin/handover"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/kubelet"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/deviceplugin/prefer"
	"github.com/gpuready/gpuready/deviceplugin/server"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/metrics"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// What the plugin is called.
const (
	Resource = "nvidia.com/gpu"
	Endpoint = "gpuready-nvidia-gpu.sock" // beside the kubelet's socket
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
	HostRoot        string
	StateDir        string
	KubeletSocket   string
	KubeletTimeout  time.Duration // 0: wait for ever
	Listen          string
	FailOnInitError bool          // end, rather than wait, when the driver is there and does not work
	Health          health.Policy // what XIDs do to a GPU; the zero Policy is the default
	Driver          driver.Place
	Open            func(driver.Place) (Opened, error)
	Given           string // value of injection.Variable; "": not in a container that is given the GPUs that way
	Log             *slog.Logger
	Started         time.Time         // of the process
	Socket          *net.UnixListener // handed over by the program before; nil: none
}

// ErrReplaced means that the driver's library was replaced: the process must be
// replaced too, since it can load no other.
var ErrReplaced = errors.New("the driver's library was replaced")

// Plugin is a running device plugin.
type Plugin struct {
	cfg     Config
	server  *server.Server
	metrics *meters
	boot    string
	ready   chan struct{} // closed when there are devices
	kept    *os.File      // the socket for the next program
	replace atomic.Bool   // there is a next program

	view atomic.Pointer[view] // what Allocate and Prefer answer from

	mu       sync.Mutex
	health   health.State
	snapshot gpu.Snapshot
	root     string // of the driver
	absent   *absence
	kubelet  kubelet.Status
	ended    *ending
	toolkit  string               // why containers may not get what is allocated; "": nothing is known
	unread   string               // GPUs that cannot even be named
	stored   nodestate.State      // what the state file is to say
	logged   map[string]gpu.Fault // by device, as last logged

	dirty    chan struct{} // something is stored
	written  nodestate.State
	writeErr string
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

// view is what the kubelet's questions are answered from: never changed, only
// replaced.
type view struct {
	devices []plan.Device
	byID    map[string]plan.Device
	chooser *prefer.Chooser
}

// Run runs the plugin until ctx ends and returns nil then, or when this
// container has to be created anew. With an error that is
// ErrReplaced it also returns the plugin's socket, for handover.Exec.
func Run(ctx context.Context, cfg Config) (*os.File, error) {
	p, err := newPlugin(cfg)
	if err != nil {
		return nil, err
	}
	reg := prometheus.NewRegistry()
	p.metrics.register(reg)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return metrics.Serve(ctx, cfg.Listen, reg, p.Ready) })
	group.Go(func() error { return p.watchGPUs(ctx) })
	group.Go(func() error { return p.watchToolkit(ctx) })
	group.Go(func() error { return p.watchInjection(ctx) })
	group.Go(func() error { return p.writeStates(ctx) })
	group.Go(func() error {
		defer p.server.Stop()
		return kubelet.Run(ctx, kubelet.Config{
			Socket:     filepath.Join("/", cfg.HostRoot, cfg.KubeletSocket),
			Endpoint:   Endpoint,
			Resource:   Resource,
			Options:    server.Options(),
			Log:        cfg.Log,
			Timeout:    cfg.KubeletTimeout,
			Ready:      p.ready,
			Report:     p.kubeletChanged,
			Registered: p.metrics.registered,
		}, p.server, cfg.Socket, p.keep)
	})
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

func newPlugin(cfg Config) (*Plugin, error) {
	boot, err := nodestate.BootIDAt(cfg.HostRoot)
	if err != nil {
		return nil, err
	}
	p := &Plugin{
		cfg: cfg, boot: boot, metrics: newMeters(), ready: make(chan struct{}), dirty: make(chan struct{}, 1),
		logged:  map[string]gpu.Fault{},
		kubelet: kubelet.Status{Waiting: "the kubelet"},
	}
	if cfg.Given != "" {
		p.cfg.Driver.Also = []string{filepath.Join(p.stateDir(nodestate.Toolkit), nodestate.FileName)}
	}
	p.server = server.New(p, sync.OnceFunc(func() { p.metrics.firstList.Set(time.Since(cfg.Started).Seconds()) }))
	p.recall()
	p.health = p.health.WithPolicy(cfg.Health)
	// What is remembered stays in the state file, and is not given away before it
	// has been seen.
	p.health = p.health.Blind(gpu.Fault{Reason: gpu.ReasonUnwatched, Message: "the driver has not been read yet"}, false, cfg.Started)
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

// keep saves the socket when there is a next program.
func (p *Plugin) keep(ln *net.UnixListener) bool {
	if !p.replace.Load() {
		return false
	}
	file, err := handover.Keep(ln)
	if err != nil {
		p.cfg.Log.Error("the next program will make a socket of its own", "message", err.Error())
		return false
	}
	p.kept = file
	return true
}

// Ready says why the plugin does not do its work, nil when it does. A node
// without GPUs has no work for it.
func (p *Plugin) Ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.absent != nil && p.absent.idle:
		return nil
	case p.absent != nil:
		return fmt.Errorf("%s: %s", p.absent.reason, p.absent.message)
	case len(p.view.Load().devices) == 0 && p.snapshot.Driver.Version != "":
		return nil
	case !p.kubelet.Registered:
		return errors.New("waiting for " + p.kubelet.Waiting)
	}
	return nil
}
