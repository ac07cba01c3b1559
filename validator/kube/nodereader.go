package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// The bounds of the back-off. It is half as long as that of package nodestatus, since a
// configuration waits for it.
const (
	firstRetry = 500 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// nodeLabelNames lists the labels that are read.
var nodeLabelNames = []string{nodestate.ConfigLabel, nodestate.ServeLabel}

// NodeReaderConfig configures a NodeReader.
type NodeReaderConfig struct {
	Client  *Client
	Node    string                        // its name
	Deliver func(map[string]string) error // called with the labels, never nil, whenever they may have changed
	Status  func(corev1.NodeStatus)       // called with the Node's status whenever it is read; nil: not called
	Log     *slog.Logger

	// For tests; nil: that of package time.
	After func(time.Duration) <-chan time.Time
}

// NodeReader reads a Node's labels that select a configuration, or who offers the GPUs, for components
// without a token: today the device plugin. It also reads the Node's status about kubelet and runtime.
//
// The Node is read once and then watched. While the API server is away, the labels read last
// stay in force.
type NodeReader struct {
	NodeReaderConfig
	failing prometheus.Gauge
	last    error // of the last try, nil when it worked
}

// NewNodeReader returns a NodeReader and registers its metric.
func NewNodeReader(c NodeReaderConfig, reg prometheus.Registerer) *NodeReader {
	if c.After == nil {
		c.After = time.After
	}
	r := &NodeReader{NodeReaderConfig: c, failing: prometheus.NewGauge(prometheus.GaugeOpts{Name: "gpuready_node_watch_failing",
		Help: "1 while the labels of the Node cannot be read."})}
	reg.MustRegister(r.failing)
	return r
}

// Run reads until ctx ends.
func (r *NodeReader) Run(ctx context.Context) error {
	backoff := Backoff{First: firstRetry, Last: lastRetry}
	for {
		began, err := r.read(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if began {
			backoff.Reset()
		}
		if err == nil {
			continue // the API server ends a watch from time to time
		}
		r.recordFailure(err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.After(backoff.Next(err)):
		}
	}
}

// errWatchEnded is the error of a watch that ended at once, before its first event. It leads to
// a back-off, since the next watch might end at once, too.
var errWatchEnded = errors.New("the API server ends the watch at once")

// read reads the Node and watches it until the watch ends. began reports whether the watch
// delivered an event or lasted for a while.
func (r *NodeReader) read(ctx context.Context) (began bool, err error) {
	node, err := r.Client.Node(ctx, r.Node)
	if err != nil {
		return false, fmt.Errorf("read Node %s: %w", r.Node, err)
	}
	if err := r.deliver(node); err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	started := time.Now()
	w, err := r.Client.WatchNode(ctx, node)
	if err != nil {
		return false, fmt.Errorf("watch Node %s: %w", r.Node, err)
	}
	defer w.Stop()
	r.recordSuccess()
	for e := range w.ResultChan() {
		switch e.Type {
		case watch.Added, watch.Modified:
			node, ok := e.Object.(*corev1.Node)
			if !ok {
				return began, fmt.Errorf("watch Node %s: a %T", r.Node, e.Object)
			}
			if err := r.deliver(node); err != nil {
				return began, err
			}
			began = true
		case watch.Deleted:
			// The labels read last stay in force until there is a Node again.
			return began, fmt.Errorf("watch Node %s: it was deleted", r.Node)
		case watch.Error:
			return began, fmt.Errorf("watch Node %s: %w", r.Node, apierrors.FromObject(e.Object))
		}
	}
	if !began && time.Since(started) < firstRetry {
		return false, fmt.Errorf("watch Node %s: %w", r.Node, errWatchEnded)
	}
	return true, nil
}

// deliver delivers the Node's status and the labels in Names.
func (r *NodeReader) deliver(node *corev1.Node) error {
	if r.Status != nil {
		r.Status(node.Status)
	}
	labels := map[string]string{}
	for _, name := range nodeLabelNames {
		if value, ok := node.Labels[name]; ok {
			labels[name] = value
		}
	}
	if err := r.Deliver(labels); err != nil {
		return fmt.Errorf("write the labels of Node %s: %w", r.Node, err)
	}
	return nil
}

// recordFailure records a failure. It logs the first one and each of another kind.
func (r *NodeReader) recordFailure(err error) {
	r.failing.Set(1)
	if r.last == nil || apierrors.ReasonForError(r.last) != apierrors.ReasonForError(err) {
		r.Log.Warn("cannot read the labels of this Node; the last known ones stay in force", "message", err.Error(), "action", Advice(err))
	}
	r.last = err
}

func (r *NodeReader) recordSuccess() {
	r.failing.Set(0)
	if r.last != nil {
		r.Log.Info("reading the labels of this Node works again")
	}
	r.last = nil
}
