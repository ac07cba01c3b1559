// Package observe watches Nodes, Pods and Events of a cluster, and timestamps each change
// with one clock.
//
// The cost to the API server does not depend on the size of the cluster: one watch of Nodes, one
// of Events, one of the workload's pods and, with the default selectors, four of the operands'
// pods. Each lasts for minutes. In addition there is one small request every two seconds.
package observe

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuready/gpuready/provision/cluster"
	"github.com/gpuready/gpuready/provision/step"
)

// heartbeat is the interval and the timeout of the requests that probe the API server. A
// watch alone does not show that a server hangs.
const heartbeat = 2 * time.Second

// Observer watches a cluster.
type Observer struct {
	client    *cluster.Client
	selectors step.Selectors
	clock     Clock
	changes   chan step.Change

	mu    sync.Mutex
	nodes map[types.UID]*corev1.Node
	pods  map[types.UID]*corev1.Pod

	unsynced int           // number of streams that were not listed yet, or not since their watch broke
	ready    chan struct{} // closed when unsynced reaches 0 for the first time

	lastResponse time.Duration // when the API server last responded
	isSilent     bool          // it has not responded since lastResponse
	gaps         []Gap
	watches      map[string]context.CancelFunc // by stream
}

// Gap is a period in which the API server did not respond: from its last response to the next,
// by the observer's clock.
type Gap struct {
	From, To time.Duration
}

// stream is a selection of objects of one kind, which is listed and watched.
type stream struct {
	name   string // for errors
	path   string
	params map[string]string
}

// The paths of the objects.
const (
	nodesPath  = "/api/v1/nodes"
	podsPath   = "/api/v1/pods"
	eventsPath = "/api/v1/events"
)

// streams returns the streams to watch.
func (o *Observer) streams() []stream {
	all := []stream{
		{"Nodes", nodesPath, nil},
		// The end of an image's pull is recorded nowhere else.
		{"Events", eventsPath, map[string]string{"fieldSelector": "involvedObject.kind=Pod,reason=Pulled"}},
		{"Pods with the label " + step.WorkloadLabel, podsPath, map[string]string{"labelSelector": step.WorkloadLabel}},
	}
	for _, selector := range mergeSelectors(o.selectors) {
		all = append(all, stream{"Pods with the labels " + selector, podsPath, map[string]string{"labelSelector": selector}})
	}
	return all
}

// mergeSelectors returns label selectors that together find every operand's pods. It merges
// selectors for values of the same label into one.
func mergeSelectors(all step.Selectors) []string {
	values := map[string][]string{}
	var merged []string
	for _, operand := range step.Operands() {
		for _, selector := range all[operand] {
			requirements, _ := selector.Requirements()
			if len(requirements) == 1 && (requirements[0].Operator() == selection.Equals || requirements[0].Operator() == selection.DoubleEquals || requirements[0].Operator() == selection.In) {
				r := requirements[0]
				values[r.Key()] = append(values[r.Key()], slices.Sorted(maps.Keys(r.Values()))...)
				continue
			}
			merged = append(merged, selector.String())
		}
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		merged = append(merged, fmt.Sprintf("%s in (%s)", key, strings.Join(slices.Compact(slices.Sorted(slices.Values(values[key]))), ",")))
	}
	return merged
}

// New returns an Observer, which watches once it runs. The client must be the Observer's alone:
// Requests counts the client's requests.
func New(client *cluster.Client, selectors step.Selectors, clock Clock) *Observer {
	return &Observer{
		client: client, selectors: selectors, clock: clock,
		changes: make(chan step.Change, 1024),
		nodes:   map[types.UID]*corev1.Node{}, pods: map[types.UID]*corev1.Pod{},
		ready: make(chan struct{}), watches: map[string]context.CancelFunc{},
	}
}

// Requests returns how many requests the Observer has sent.
func (o *Observer) Requests() int64 { return o.client.Requests() }

// Changes returns the channel of changes. It has to be read while the Observer runs.
func (o *Observer) Changes() <-chan step.Change { return o.changes }

// Ready returns a channel that is closed when everything has been listed once.
func (o *Observer) Ready() <-chan struct{} { return o.ready }

// Gaps returns the gaps so far, oldest first. The last one may still go on.
func (o *Observer) Gaps() []Gap {
	o.mu.Lock()
	defer o.mu.Unlock()
	gaps := slices.Clone(o.gaps)
	if o.isSilent {
		gaps = append(gaps, Gap{o.lastResponse, o.clock.Now()})
	}
	return gaps
}

// IsSynced reports whether all streams are watched now, so that no change is missing.
func (o *Observer) IsSynced() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.unsynced == 0
}

// Snapshot returns the existing Nodes and Pods, each as a change.
func (o *Observer) Snapshot() []step.Change {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.clock.Now()
	var all []step.Change
	for n := range maps.Values(o.nodes) {
		all = append(all, step.Change{At: now, Node: n})
	}
	for p := range maps.Values(o.pods) {
		all = append(all, step.Change{At: now, Pod: p})
	}
	return all
}

// Run watches until the context ends. It returns an error only if the first list of a
// stream fails. Later the API server may come and go.
func (o *Observer) Run(ctx context.Context) error {
	o.markResponding()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { o.probeServer(ctx); return nil })
	all := o.streams()
	o.mu.Lock()
	o.unsynced = len(all)
	o.mu.Unlock()
	for _, s := range all {
		g.Go(func() error { return o.followStream(ctx, s) })
	}
	return g.Wait()
}

// probeServer probes the API server until the context ends.
func (o *Observer) probeServer(ctx context.Context) {
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		limited, cancel := context.WithTimeout(ctx, heartbeat)
		err := o.client.Get(limited, "/version", nil, nil)
		cancel()
		switch {
		case ctx.Err() != nil: // Run ends; err is not the server's
		case err != nil:
			o.markSilent()
		default:
			o.markResponding()
		}
	}
}

// markResponding records that the API server has responded.
func (o *Observer) markResponding() {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.clock.Now()
	if o.isSilent {
		o.isSilent = false
		o.gaps = append(o.gaps, Gap{o.lastResponse, now})
	}
	o.lastResponse = now
}

// markSilent records that the API server does not respond, and cancels the watches. Changes
// that they would deliver later may have happened at any time since the last response.
func (o *Observer) markSilent() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.isSilent = true
	for _, cancel := range o.watches {
		cancel()
	}
}

// markUnsynced records that the watch of a stream has broken, and returns when the API server
// last responded.
func (o *Observer) markUnsynced() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.isSilent = true
	o.unsynced++
	return o.lastResponse
}

// setCancel stores the function that cancels a stream's watch.
func (o *Observer) setCancel(name string, cancel context.CancelFunc) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.watches[name] = cancel
}

// markSynced records that one more stream has been listed, and so that the API server has
// responded.
func (o *Observer) markSynced() {
	o.markResponding()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.unsynced--; o.unsynced > 0 {
		return
	}
	select {
	case <-o.ready:
	default:
		close(o.ready)
	}
}
