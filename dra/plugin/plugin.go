// Package plugin joins the parts of the DRA driver: it watches the device plugin's state (watch.go),
// publishes the inventory as ResourceSlices, answers the kubelet's requests to prepare claims, and
// reports the devices' health to it (serve.go).
package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/gpuready/gpuready/dra/claim"
	"github.com/gpuready/gpuready/dra/inventory"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/metricsserver"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/partition"
)

// Config holds the inputs of the DRA driver, which this package calls the driver. Paths are host paths, found below HostRoot, except for those of
// the kubelet, which are the same for the kubelet and this process.
type Config struct {
	NodeName     string
	PodUID       string // of this process's pod; "": only one instance runs at a time
	Client       kubernetes.Interface
	KubeletDir   string // the kubelet's folder, with plugins and plugins_registry
	PodResources string // the kubelet's PodResources socket
	HostRoot     string
	StateDir     string
	CDIDir       string
	CDIKind      string              // of the devices that containers get
	DevDir       string              // folder of the device nodes, as this process sees it; "": it does not see them
	Listen       string              // address of the metrics
	Silence      time.Duration       // how long the device plugin may be silent; see DefaultSilence
	Evict        inventory.Evictions // faults for which pods lose their devices
	PCIeRoot     inventory.PCIeRoots
	Log          *slog.Logger
}

// Plugin is a running DRA driver. It implements kubeletplugin.DRAPlugin.
type Plugin struct {
	cfg      Config
	boot     string // ID of the host's boot
	preparer claim.Preparer
	metrics  *Metrics
	helper   publisher
	started  chan struct{} // closed when helper is set
	// registration holds the result of the last registration; nil: there was none yet.
	registration atomic.Pointer[registerapi.RegistrationStatus]
	noCounters   atomic.Bool     // the API server drops shared counters: no partition can be published
	listed       atomic.Bool     // the API server has listed the node's slices, which are kept up to date since
	stateDue     chan struct{}   // capacity 1: this driver's own state may have changed
	hold         io.Closer       // a lock, held while this process runs, by which readers of its state see that it does
	written      nodestate.State // this driver's own state as it was written last; for writeState
	own          []gpu.Placement // of this driver's partitions, by the record when it was read last; for watchState

	mu      sync.Mutex
	current inventory.Inventory
	known   bool          // current is set
	changed chan struct{} // closed when the inventory must be published again
}

// publisher is the part of kubeletplugin.Helper that publishes slices.
type publisher interface {
	PublishResources(context.Context, resourceslice.DriverResources) error
}

// DataDir returns the folder of the driver's socket and its checkpoint, the record of prepared claims.
func (c Config) DataDir() string {
	return filepath.Join(c.KubeletDir, "plugins", inventory.Driver)
}

// requestTimeout bounds one call of the kubelet, which itself waits 45 s for the answer
// (pkg/kubelet/cm/dra/plugin of k8s.io/kubernetes).
const requestTimeout = 40 * time.Second

// Run runs the driver until ctx ends, and then returns nil. ResourceSlices stay: a new instance takes
// them over, and pods keep what they have.
func Run(ctx context.Context, cfg Config) error {
	root, err := host.Open(cfg.HostRoot)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	boot, err := nodestate.BootIDAt(cfg.HostRoot)
	if err != nil {
		return err
	}
	reg := metricsserver.NewRegistry()
	p := newPlugin(cfg, boot, root)
	p.metrics.Register(reg)
	if err := os.MkdirAll(cfg.DataDir(), 0o750); err != nil {
		return fmt.Errorf("make the driver's folder: %w; next: see that the kubelet's folder plugins is mounted", err)
	}

	// Before any claim is prepared, so that the device plugin knows that claims may hold devices.
	if err := p.markAlive(ctx); err != nil {
		return err
	}
	defer func() { _ = p.hold.Close() }()

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return metricsserver.Serve(ctx, cfg.Listen, reg, p.Ready) })
	group.Go(func() error { return p.watchState(ctx) })
	group.Go(func() error { return p.followSwitch(ctx) })
	group.Go(func() error { return p.serve(ctx) })
	group.Go(func() error { return p.removeLeftovers(ctx) })
	if err := group.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func newPlugin(cfg Config, boot string, root *host.Root) *Plugin {
	p := &Plugin{cfg: cfg, boot: boot, metrics: NewMetrics(), changed: make(chan struct{}), stateDue: make(chan struct{}, 1), started: make(chan struct{})}
	specs := claim.Specs{
		Root: root, Dir: cfg.CDIDir, Kind: cfg.CDIKind, DevDir: cfg.DevDir,
		Toolkit:   func() (nodestate.State, error) { return nodestate.ReadBoot(p.stateDir(nodestate.Toolkit), boot) },
		StatePath: filepath.Join(p.stateDir(nodestate.Toolkit), nodestate.FileName),
	}
	p.preparer = claim.Preparer{
		Store:     claim.Store{Path: filepath.Join(cfg.DataDir(), "checkpoint.json"), BootID: boot},
		Pool:      cfg.NodeName,
		Inventory: p.inventory,
		CDIName:   specs.Name, AwaitCDIName: specs.Await, MPSName: specs.MPSName,
		Partitions: partition.Client{Socket: filepath.Join(p.stateDir(nodestate.DevicePlugin), partition.SocketName)},
		Allocations: func(ctx context.Context) ([]claim.Allocation, error) {
			return claim.ReadAllocations(ctx, cfg.PodResources)
		},
		Claim: func(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
			return cfg.Client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		Log: cfg.Log, OnResult: func(operation string, err error) {
			p.metrics.countClaim(operation, err)
			p.wakeState()
		},
	}
	return p
}

// stateDir returns the folder of a component's state, as this process sees it.
func (p *Plugin) stateDir(of nodestate.Component) string {
	return filepath.Join("/", p.cfg.HostRoot, p.cfg.StateDir, string(of))
}

// serve registers with the kubelet and serves it until ctx ends.
func (p *Plugin) serve(ctx context.Context) error {
	// The first slices must not be published before the first state is read: an empty inventory
	// would replace those of the previous instance.
	if _, err := p.waitForInventory(ctx); err != nil {
		return err
	}
	p.removeStaleSockets(ctx)
	options := []kubeletplugin.Option{
		kubeletplugin.DriverName(inventory.Driver), kubeletplugin.NodeName(p.cfg.NodeName), kubeletplugin.KubeClient(p.cfg.Client),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(p.cfg.KubeletDir, "plugins_registry")),
		kubeletplugin.PluginDataDirectoryPath(p.cfg.DataDir()),
		kubeletplugin.GRPCInterceptor(p.intercept),
		kubeletplugin.Serialize(false), // the checkpoint has a lock of its own, with a deadline
	}
	if p.cfg.PodUID != "" {
		options = append(options, kubeletplugin.RollingUpdate(types.UID(p.cfg.PodUID)))
	}
	helper, err := kubeletplugin.Start(klog.NewContext(ctx, klog.Background()), p, options...)
	if err != nil {
		return fmt.Errorf("register with the kubelet: %w; next: see that the kubelet's folders plugins and plugins_registry are mounted", err)
	}
	defer helper.Stop()
	p.mu.Lock()
	p.helper = helper
	p.mu.Unlock()
	close(p.started)
	p.cfg.Log.Info("serving the kubelet", "driver", inventory.Driver, "path", p.cfg.DataDir())
	for {
		changed, err := p.publish(ctx) // the first call waits for the API server
		if err != nil {
			return err
		}
		p.listed.Store(true)
		p.wakeState()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// removeLeftovers destroys, until ctx ends, what is left of partitions: at the start those of an earlier
// process, and later those of a GPU that nothing reached when their claims ended, once it has returned. Each
// call that prepares a claim tries it, too.
func (p *Plugin) removeLeftovers(ctx context.Context) error {
	for started := false; ; {
		p.mu.Lock()
		inv, known, changed := p.current, p.known, p.changed
		p.mu.Unlock()
		if known && (!started || p.preparer.HasLeftovers(inv)) {
			started = true
			if err := p.recoverPartitions(ctx); err != nil && ctx.Err() == nil {
				p.cfg.Log.Error("what is left of partitions is removed with the next claim", "message", err.Error())
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

func (p *Plugin) recoverPartitions(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return p.preparer.Recover(ctx)
}

// publish publishes the inventory. changed is closed when it must be published again.
func (p *Plugin) publish(ctx context.Context) (changed <-chan struct{}, err error) {
	p.mu.Lock()
	inv, changed, helper := p.current, p.changed, p.helper
	p.mu.Unlock()
	if p.noCounters.Load() {
		inv = inv.WithoutPartitions()
	}
	return changed, helper.PublishResources(ctx, resourceslice.DriverResources{
		Pools: map[string]resourceslice.Pool{p.cfg.NodeName: {Slices: inv.Slices()}},
	})
}

// waitForInventory waits for the first reading of the device plugin's state.
func (p *Plugin) waitForInventory(ctx context.Context) (inventory.Inventory, error) {
	for {
		p.mu.Lock()
		inv, known, changed := p.current, p.known, p.changed
		p.mu.Unlock()
		if known {
			return inv, nil
		}
		select {
		case <-ctx.Done():
			return inventory.Inventory{}, ctx.Err()
		case <-changed:
		}
	}
}

// inventory returns what the node offers now.
func (p *Plugin) inventory() inventory.Inventory {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

// republish has the inventory published again.
func (p *Plugin) republish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

// setInventory replaces the inventory. It logs new devices, taints and the number of devices.
func (p *Plugin) setInventory(inv inventory.Inventory) {
	p.mu.Lock()
	before, known := p.current, p.known
	p.current, p.known = inv, true
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
	p.metrics.setInventory(inv)
	p.wakeState()
	if inv.Why.Reason != before.Why.Reason && inv.Why.Reason == inventory.ReasonServedByPlugin {
		p.cfg.Log.Info("the device plugin offers the GPUs: they are withdrawn from the slices", "switch", inv.SwitchID)
	} else if inv.Why.Reason != before.Why.Reason && inv.Why.Reason != "" {
		p.cfg.Log.Warn("the inventory cannot be relied on", "reason", string(inv.Why.Reason), "message", inv.Why.String())
	}
	for _, d := range inv.Devices {
		was, found := before.Find(d.Name)
		switch {
		case !found && known && before.Serve == inv.Serve: // not if all appear because this driver has begun to offer them
			p.cfg.Log.Info("device is offered", "device", d.Name, "uuid", string(d.UUID))
		case found && was.Fault.Reason == d.Fault.Reason:
		case d.Fault.Reason != "":
			p.cfg.Log.Warn("device gets a taint", "device", d.Name, "uuid", string(d.UUID), "reason", string(d.Fault.Reason), "message", d.Fault.Message)
		case found:
			p.cfg.Log.Info("device loses its taint", "device", d.Name, "uuid", string(d.UUID))
		}
	}
	if !known || len(inv.Devices) != len(before.Devices) {
		p.cfg.Log.Info("inventory", "devices", len(inv.Devices))
	}
}

// Ready returns nil if the driver can prepare claims for the kubelet, and otherwise what is missing. A node
// without a GPU is ready. Whether each slice is published is not known here: the metrics count errors.
func (p *Plugin) Ready() error {
	select {
	case <-p.started:
	default:
		return errors.New("waiting for the state of gpu-device-plugin, or for the kubelet's folders")
	}
	if !p.listed.Load() {
		return errors.New("waiting for the API server to list this node's ResourceSlices; next: see that it can be reached, and that the ClusterRole gpuready-dra-driver is bound")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if why := p.current.Why.Reason; why != "" && why != inventory.ReasonServedByPlugin {
		return errors.New(p.current.Why.String())
	}
	switch status := p.registration.Load(); {
	case status == nil:
		return errors.New("waiting for the kubelet to register this driver")
	case !status.GetPluginRegistered():
		return fmt.Errorf("the kubelet has refused to register this driver: %s", status.GetError())
	}
	return nil
}
