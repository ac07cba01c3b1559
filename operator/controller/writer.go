package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/operator/apply"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/status"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// patchWorkers bounds how many Nodes are patched at a time. It equals operator/evict's limit
// of concurrent requests: 127 patches that hang in a webhook delay no other. A failed patch
// is retried after firstRetry, then with back-off up to lastRetry.
const (
	patchWorkers = 128
	firstRetry   = 100 * time.Millisecond
	lastRetry    = time.Minute
)

// writer patches Nodes concurrently. It sends only the newest patch of each Node, and retries
// until the patch is accepted or has been refused for upgrade.WriteDeadline. The model then
// decides whether and when to try another.
type writer struct {
	client      client.Client
	inbox       *inbox
	recordEvent func(node *corev1.Node, event upgrade.Event)
	now         func() time.Time
	log         *slog.Logger
	queue       workqueue.TypedRateLimitingInterface[string]

	mu      sync.Mutex
	wanted  map[string]*upgrade.Patch
	refused map[string]*refused // Nodes whose patches are refused
}

// refused is a Node whose patches the API server refuses.
type refused struct {
	since    time.Time
	reported bool
}

func newWriter(c client.Client, in *inbox, recordEvent func(*corev1.Node, upgrade.Event), now func() time.Time, log *slog.Logger) *writer {
	return &writer{
		client: c, inbox: in, recordEvent: recordEvent, now: now, log: log, wanted: map[string]*upgrade.Patch{}, refused: map[string]*refused{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry)),
	}
}

// set queues a patch of a Node; nil withdraws the one that is queued.
func (w *writer) set(node string, patch *upgrade.Patch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if patch == nil {
		delete(w.wanted, node)
		delete(w.refused, node)
		return
	}
	w.wanted[node] = patch
	w.queue.Add(node)
}

func (w *writer) queued(node string) *upgrade.Patch {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wanted[node]
}

// done removes a patch from the queue; written reports whether it was accepted.
func (w *writer) done(node string, patch *upgrade.Patch, written bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wanted[node] == patch {
		delete(w.wanted, node)
	}
	if written {
		delete(w.refused, node)
	}
}

// refuse records that a patch was refused, and returns when patches of the Node were first
// refused. reported is true if an Event has reported it before; report marks it as reported.
func (w *writer) refuse(node string, report bool) (since time.Time, reported bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.refused[node]
	if r == nil {
		r = &refused{since: w.now()}
		w.refused[node] = r
	}
	reported = r.reported
	r.reported = reported || report
	return r.since, reported
}

// run patches until ctx ends.
func (w *writer) run(ctx context.Context) error {
	var group errgroup.Group
	for range patchWorkers {
		group.Go(func() error {
			for {
				name, ended := w.queue.Get()
				if ended {
					return nil
				}
				w.write(ctx, name)
				w.queue.Done(name)
			}
		})
	}
	<-ctx.Done()
	w.queue.ShutDown()
	return group.Wait()
}

func (w *writer) write(ctx context.Context, name string) {
	patch := w.queued(name)
	if patch == nil || ctx.Err() != nil {
		return
	}
	version, err := patchNode(ctx, w.client, name, patch)
	switch {
	case err == nil:
		w.queue.Forget(name)
		w.done(name, patch, true)
		if patch.Event != nil {
			w.recordEvent(nodeRef(name, patch), *patch.Event)
		}
		w.inbox.enqueue(func(m *model) {
			delete(m.unwritten, name)
			delete(m.refused, name)
			m.completePatch(name, patch, version)
		})
		return
	case ctx.Err() != nil:
		return
	case !gotResponse(err):
		// The API server was not reached, and so has refused nothing.
		if w.queue.NumRequeues(name) == 0 {
			w.reportError(name, err)
		}
		w.queue.AddRateLimited(name)
		return
	}
	// A conflict mostly means that somebody else wrote first: the watch delivers the new
	// version, and another patch follows.
	conflict := apierrors.IsConflict(err) || apierrors.IsNotFound(err)
	since, reported := w.refuse(name, !conflict)
	now := w.now()
	if late := now.Sub(since) >= upgrade.WriteDeadline; !late {
		if !conflict && !reported {
			w.reportError(name, err)
		}
		w.queue.AddRateLimited(name)
		return
	}
	w.queue.Forget(name)
	w.done(name, patch, false)
	why := "the Node cannot be written: " + record.Clean(describeError(err), maxRefusal)
	w.inbox.enqueue(func(m *model) {
		m.recordRefusal(name, err, upgrade.Refusal{Why: why, Since: since, Next: now.Add(upgrade.WriteRetry)}, func() {
			w.recordEvent(nodeRef(name, patch), upgrade.Event{Warning: true, Reason: upgrade.Reason, Message: why + "; other nodes' driver upgrades go first"})
		})
		m.completePatch(name, patch, "")
	})
}

// reportError logs that a Node cannot be patched and records it in the model.
func (w *writer) reportError(name string, err error) {
	w.log.Error("cannot label a Node; retrying", "node", name, "error", err)
	w.inbox.enqueue(func(m *model) {
		if m.nodes[name] != nil {
			m.unwritten[name], m.changed = err, true
		}
	})
}

// gotResponse reports whether an error is the API server's response or a timeout, as when
// an admission webhook hangs. Otherwise the API server was not reached.
func gotResponse(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) || errors.Is(err, context.DeadlineExceeded)
}

// describeError describes an error for people.
func describeError(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("the API server has not answered within %s: see the admission webhooks that it calls for Nodes", apply.Timeout)
	}
	return status.ExplainError(err)
}

// maxRefusal bounds the reported text of a refusal, in bytes.
const maxRefusal = 512

func nodeRef(name string, patch *upgrade.Patch) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(patch.UID)}}
}

// patchNode sends one patch of a Node and returns the Node's new resourceVersion. The watch
// delivers the Node itself, which need not be read twice.
func patchNode(ctx context.Context, c client.Client, name string, patch *upgrade.Patch) (version string, err error) {
	body, err := patch.JSON()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, apply.Timeout)
	defer cancel()
	node := partial(corev1.SchemeGroupVersion.WithKind("Node"))
	node.Name = name
	err = c.Patch(ctx, node, client.RawPatch(types.MergePatchType, body), client.FieldOwner(label.FieldManager))
	return node.ResourceVersion, err
}
