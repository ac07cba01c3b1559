// Package controller connects the operator to the cluster.
//
// Watches put their events into an inbox, and one goroutine applies them to its model of the
// cluster. When something has changed, it makes a pass. Pure packages compute from the whole model
// what the cluster should be: each pool's driver, the objects to apply, the upgrade plan, the
// labels of each node. The pass starts the requests that bring the cluster there. A report of
// status, Events and metrics follows it. The goroutine never waits for the API server: the
// responses arrive in the inbox, too.
//
// Passes are triggered by changes, by the back-off of failed requests and by deadlines, never by
// a resync period. All state is in the cluster, so that a restarted process continues where the
// last one stopped.
package controller

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/operator/apply"
	"github.com/gpuready/gpuready/operator/evict"
	"github.com/gpuready/gpuready/operator/metrics"
	"github.com/gpuready/gpuready/operator/serving"
	"github.com/gpuready/gpuready/operator/state"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// eventAction is the action of all Events.
const eventAction = "Reconcile"

// Config holds the dependencies of a Controller.
type Config struct {
	Client    client.Client
	Informers cache.Informers // of Caches
	Others    cache.Informers // of OtherCaches
	// Streams opens a cache of ImageStreams (see Streams). It fails while the cluster has no
	// ImageStreams. The cache calls failed when it may not list or watch them.
	Streams func(failed func(error)) (cache.Cache, error)
	// Monitors opens a cache of ServiceMonitors (see Monitors) in the same way.
	Monitors func(failed func(error)) (cache.Cache, error)
	// Slices opens a cache of DeviceClasses and ResourceSlices (see Slices) in the same way.
	Slices func(failed func(error)) (cache.Cache, error)
	// Drivers opens a cache of NVIDIADrivers (see Drivers) in the same way.
	Drivers func(failed func(error)) (cache.Cache, error)
	Events  events.EventRecorder
	Metrics *metrics.Metrics
	// Operator is this operator's Deployment.
	Operator types.NamespacedName
	// Elected means that a leader election chose this operator. It then yields to another operator
	// that is ready and whose operands serve the policy.
	Elected bool
	Cluster state.Cluster // without OpenShift, HandOver, ServiceMonitors and DRA, which are detected
	// Evictor returns the Evictor. It calls changed when the watched pods have changed, and
	// recordEvent to record an Event of a Node.
	Evictor func(changed func(), recordEvent func(*corev1.Node, upgrade.Event)) Evictor
	// Registry returns the Registry. It calls changed when it has learned something new
	// about an image. It receives pull secrets by name only.
	Registry func(changed func(image string)) Registry
	// Sized is called when the number of Nodes or of operands' pods has changed. It may be nil.
	Sized func(nodes, pods int)
	Now   func() time.Time
	Log   *slog.Logger
}

// Evictor evicts, deletes and watches pods as plans of driver upgrades require; evict.Evictor
// implements it.
type Evictor interface {
	// Pods returns the pods of the nodes that the last plan watches.
	Pods() map[string][]*upgrade.Pod
	// Remove starts evicting and deleting the pods that the plan names, and watches the pods of the
	// nodes in Plan.Watch. It returns at once. It removes nothing from a node for which writing
	// reports true: a node is cordoned before its pods are removed.
	Remove(plan *upgrade.Plan, writing func(node string) bool) evict.Outcome
	// Start runs until ctx ends.
	Start(ctx context.Context) error
}

// Controller reconciles ClusterPolicies and NVIDIADrivers with the cluster.
type Controller struct {
	Config
	inbox    *inbox
	model    *model
	writer   *writer
	reviewer *reviewer
	registry Registry
	evictor  Evictor
	toolkit  *toolkit
	monitors *monitors
	slices   *draObjects
	drivers  *nvidiaDrivers
	planner  *apply.Planner

	leading, synced atomic.Bool

	// Of the last pass:
	desired *desired
	survey  survey                     // of the nodes
	plan    *upgrade.Plan              // nil if it made none
	planOf  map[string]*upgrade.Plan   // its part about the nodes of an NVIDIADriver, by name
	serving *serving.Plan              // nil: no node has or gets label.Serve
	blocked map[string]string          // why pods were not removed, by node
	stuck   map[string]upgrade.Refusal // driver pods that cannot be deleted, by UID
	passErr error                      // failures, which are retried

	restUntil  time.Time // no pass starts before
	nextPass   time.Time // deadline of a pass without a change; zero: never
	nodes      int       // the number of Nodes that Sized was called with
	pods       int       // the same of pods
	unreported time.Time // start of the first pass since the last report; zero: there was none
	lastReport reportState

	requests map[string]*request // by name
	backoff  workqueue.TypedRateLimiter[string]
	inFlight int            // requests that have been sent
	spawn    func(func())   // runs a request beside the control goroutine
	running  sync.WaitGroup // of the requests
	rendered rendering      // cache
}

// New returns a Controller.
func New(config Config) *Controller {
	c := &Controller{Config: config, inbox: newInbox(), model: newModel(config.Cluster.Namespace), restUntil: config.Now(), requests: map[string]*request{},
		backoff: workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry)}
	c.writer = newWriter(config.Client, c.inbox, c.recordNodeEvent, config.Now, config.Log)
	c.reviewer = newReviewer(config.Client, c.inbox, config.Operator, config.Log)
	c.spawn = c.running.Go
	// changed has the next pass use what the registry or the evictor has learned.
	changed := func() { c.inbox.enqueue(func(m *model) { m.changed = true }) }
	c.registry = config.Registry(func(string) { changed() })
	c.evictor = config.Evictor(changed, c.recordNodeEvent)
	c.toolkit = newToolkit(config.Streams, c.inbox, config.Log)
	c.monitors = newMonitors(config.Monitors, c.inbox, config.Log)
	c.slices = newDRAObjects(config.Slices, c.inbox, config.Log)
	c.drivers = newDrivers(config.Drivers, c.inbox, config.Log)
	c.planner = apply.NewPlanner(config.Client.Scheme())
	return c
}

// Ready returns an error while this operator leads but has not synced its caches.
func (c *Controller) Ready() error {
	if c.leading.Load() && !c.synced.Load() {
		return errors.New("the caches have not synced yet; the log names what the operator may not list or watch")
	}
	return nil
}

// Start runs until ctx ends. Where several operators run, only the leader calls it.
func (c *Controller) Start(ctx context.Context) error {
	c.leading.Store(true)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.writer.run(ctx) })
	group.Go(func() error { return c.registry.Run(ctx) })
	group.Go(func() error { return c.toolkit.run(ctx) })
	group.Go(func() error { return c.monitors.run(ctx) })
	group.Go(func() error { return c.slices.classes.run(ctx) })
	group.Go(func() error { return c.slices.slices.run(ctx) })
	group.Go(func() error { return c.drivers.run(ctx) })
	group.Go(func() error { return c.reviewer.run(ctx) })
	group.Go(func() error { return c.evictor.Start(ctx) })
	group.Go(func() error {
		if err := c.watch(ctx); err != nil {
			return err
		}
		c.synced.Store(true)
		c.Log.Info("working")
		return c.run(ctx)
	})
	err := group.Wait()
	c.running.Wait()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// recordNodeEvent records an upgrade's step as an Event of the Node.
func (c *Controller) recordNodeEvent(node *corev1.Node, e upgrade.Event) {
	kind := corev1.EventTypeNormal
	if e.Warning {
		kind = corev1.EventTypeWarning
	}
	c.Events.Eventf(node, nil, kind, e.Reason, eventAction, "%s", record.Clean(e.Message, maxNote))
}

// maxNote is the API server's limit for an Event's message, in bytes.
const maxNote = 1024
