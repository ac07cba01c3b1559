// Package controller is where the operator meets the cluster. Watches put what they see
// into an inbox; one goroutine owns what is known and never waits for the API server, whose
// answers come by the inbox, too. When something has changed it has
// the pure packages say what follows (which driver each pool gets, which objects there
// are to be, how far each node is) and brings the differences to the cluster. Nothing is
// looked at again because time has passed, but what has failed and what a deadline was
// set for; nothing is remembered that is not in the cluster, so that a process that is
// killed is followed by one that goes on.
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
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/operator/apply"
	"github.com/gpuready/gpuready/operator/leader"
	"github.com/gpuready/gpuready/operator/meter"
	"github.com/gpuready/gpuready/operator/roll"
	"github.com/gpuready/gpuready/operator/state"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// PassEvery is the least time between two passes while changes keep coming, and
// ReportEvery that between two summaries.
const (
	PassEvery   = 100 * time.Millisecond
	ReportEvery = time.Second
)

// action is that of Events.
const action = "Reconcile"

// Config is what a Controller works with.
type Config struct {
	Client    client.Client
	Informers cache.Informers
	// Streams opens a cache of ImageStreams (Streams); it fails while there are none. The
	// cache calls failed when it is not given any.
	Streams func(failed func(error)) (cache.Cache, error)
	Events  events.EventRecorder
	Metrics *meter.Metrics
	// Operator is this operator's Deployment.
	Operator types.NamespacedName
	// Elected operators yield to the one whose operands serve the policy, if it is there.
	Elected bool
	Cluster state.Cluster // OpenShift and HandOver are found out
	// Roll makes what evicts pods; it calls changed when the watched pods have changed, and
	// tell with what is to be told of a Node.
	Roll func(changed func(), tell func(*corev1.Node, upgrade.Event)) Roll
	// Registry makes what knows which images there are; it calls changed when it has heard
	// something new. Of pull secrets it gets the names.
	Registry func(changed func(image string)) Registry
	Now      func() time.Time
	Log      *slog.Logger
}

// Roll carries out what of plans of driver upgrades concerns pods: roll.Roller does.
type Roll interface {
	// Pods are those of the nodes that the last plan wanted watched.
	Pods() map[string][]*upgrade.Pod
	// Remove has pods evicted and deleted, and those watched that the plan wants watched. It
	// returns at once; on a node that is being written it has nothing done.
	Remove(plan *upgrade.Plan, writing func(node string) bool) roll.Outcome
	// Start works until ctx ends.
	Start(ctx context.Context) error
}

// Controller brings ClusterPolicies to the cluster.
type Controller struct {
	Config
	inbox    *inbox
	model    *model
	writer   *writer
	reviewer *reviewer
	registry Registry
	roll     Roll
	toolkit  *toolkit
	planner  *apply.Planner

	leads, synced atomic.Bool

	rendered rendering
	scene    *scene // of the last pass that looked at everything
	terms    terms  // on which nodes were last looked at
	roster   roster
	plan     *upgrade.Plan // of the last pass; nil: it made none
	said     reporting
	since    time.Time                  // of the first change that was not reported yet; zero: there is none
	requests map[string]*request        // by name
	flying   int                        // how many of them are on their way
	spawn    func(func())               // runs a request beside the control goroutine
	running  sync.WaitGroup             // requests
	blocked  map[string]string          // why pods were not removed, by node
	stuck    map[string]upgrade.Refusal // driver pods that cannot be deleted, by UID
	broken   error                      // what could not be brought to the cluster
	err      error                      // what the last pass could not do
	alarm    time.Time                  // when to look at everything although nothing changes; zero: never
	last     time.Time                  // when the last turn began
}

// New returns a Controller.
func New(config Config) *Controller {
	c := &Controller{Config: config, inbox: newInbox(), model: newModel(config.Cluster.Namespace), roster: newRoster(), requests: map[string]*request{}}
	c.writer = newWriter(config.Client, c.inbox, c.tellNode, config.Now, config.Log)
	c.reviewer = newReviewer(config.Client, c.inbox, config.Operator, config.Log)
	c.spawn = c.running.Go
	changed := func() { c.inbox.put(func(m *model) { m.common = true }) }
	c.registry = config.Registry(func(string) { changed() })
	c.roll = config.Roll(changed, c.tellNode)
	c.toolkit = newToolkit(config.Streams, c.inbox, config.Log)
	c.planner = apply.NewPlanner(config.Client.Scheme())
	return c
}

// Ready says why the operator does not do its work, nil: it does, or another one does.
func (c *Controller) Ready() error {
	if c.leads.Load() && !c.synced.Load() {
		return errors.New("not everything in the cluster has been seen yet; what the operator may not list or watch its log names")
	}
	return nil
}

// Start works until ctx ends. It is what leads, where several operators run.
func (c *Controller) Start(ctx context.Context) error {
	c.leads.Store(true)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.writer.run(ctx) })
	group.Go(func() error { return c.registry.Run(ctx) })
	group.Go(func() error { return c.toolkit.run(ctx) })
	group.Go(func() error { return c.reviewer.run(ctx) })
	group.Go(func() error { return c.roll.Start(ctx) })
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

// run has a turn whenever there is something to do.
func (c *Controller) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.inbox.wake:
		case <-timer.C:
		}
		c.hear()
		next := c.next()
		if !next.IsZero() && !next.After(c.Now()) {
			c.turn(ctx)
			if err := c.yield(); err != nil {
				return err
			}
			next = c.next()
		}
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(max(0, next.Sub(c.Now())))
		}
	}
}

// yield returns a leader.YieldTo where operands that another operator made serve the
// policy, and that operator is ready: it can go on with them, and this one cannot.
func (c *Controller) yield() error {
	to := c.scene.elsewhere
	if c.Elected && to != "" && to != c.Operator.Namespace && c.model.siblings[types.NamespacedName{Namespace: to, Name: c.Operator.Name}] {
		return &leader.YieldTo{Namespace: to}
	}
	return nil
}

// hear takes in the news.
func (c *Controller) hear() {
	for _, news := range c.inbox.take() {
		news(c.model)
	}
	if len(c.model.touched) > 0 {
		c.since = earlier(c.since, c.Now())
	}
}

// next is when there is something to do; zero: when there is news.
func (c *Controller) next() time.Time {
	at := earlier(c.alarm, c.due())
	if c.changed() {
		at = earlier(at, c.last.Add(PassEvery))
	}
	return at
}

// earlier is the earlier of two times, of which zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// changed says whether there is something for a pass: nothing is done of nodes while it is
// not known what is wanted.
func (c *Controller) changed() bool {
	return c.model.common || len(c.model.dirty) > 0 && c.scene.err == nil
}

// turn does what follows from the news, and tells how things stand.
func (c *Controller) turn(ctx context.Context) {
	c.last = c.Now()
	if !c.alarm.IsZero() && !c.alarm.After(c.last) {
		c.alarm, c.model.common = time.Time{}, true
	}
	if c.changed() {
		c.pass(ctx)
	}
	if due := c.due(); !due.IsZero() && !due.After(c.last) {
		c.report(ctx)
	}
}

// wake has everything looked at at a time, if that is not to be sooner; never at the zero
// time.
func (c *Controller) wake(at time.Time) { c.alarm = earlier(c.alarm, at) }

// tellNode tells of an upgrade's step, on the Node.
func (c *Controller) tellNode(node *corev1.Node, e upgrade.Event) {
	kind := corev1.EventTypeNormal
	if e.Warning {
		kind = corev1.EventTypeWarning
	}
	c.Events.Eventf(node, nil, kind, e.Reason, action, "%s", record.Clean(e.Message, maxNote))
}

// maxNote is how many bytes the API server takes of an Event's message.
const maxNote = 1024
