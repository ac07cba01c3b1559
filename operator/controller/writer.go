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
	"github.com/gpuready/gpuready/operator/right"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// writers is how many Nodes are patched at a time: as many as operator/roll has requests on
// their way, so that 127 over which a webhook hangs delay no other. The retries are how long
// a patch that fails waits for the next try.
const (
	writers    = 128
	firstRetry = 100 * time.Millisecond
	lastRetry  = time.Minute
)

// writer patches Nodes, several at a time. Of each Node only the newest patch is sent, and
// again until it is accepted or has been refused for upgrade.WriteDeadline. The model then
// decides whether and when to try another.
type writer struct {
	client client.Client
	inbox  *inbox
	tell   func(node *corev1.Node, event upgrade.Event)
	now    func() time.Time
	log    *slog.Logger
	queue  workqueue.TypedRateLimitingInterface[string]

	mu      sync.Mutex
	wanted  map[string]*upgrade.Patch
	refused map[string]*refused // Nodes whose patches are refused
}

// refused is a Node whose patches the API server refuses.
type refused struct {
	since time.Time
	told  bool
}

func newWriter(c client.Client, in *inbox, tell func(*corev1.Node, upgrade.Event), now func() time.Time, log *slog.Logger) *writer {
	return &writer{
		client: c, inbox: in, tell: tell, now: now, log: log, wanted: map[string]*upgrade.Patch{}, refused: map[string]*refused{},
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

func (w *writer) get(node string) *upgrade.Patch {
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
// refused. told reports whether an Event said so before; tell records that one says so now.
func (w *writer) refuse(node string, tell bool) (since time.Time, told bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.refused[node]
	if r == nil {
		r = &refused{since: w.now()}
		w.refused[node] = r
	}
	told = r.told
	r.told = told || tell
	return r.since, told
}

// run patches until ctx ends.
func (w *writer) run(ctx context.Context) error {
	var group errgroup.Group
	for range writers {
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
	patch := w.get(name)
	if patch == nil || ctx.Err() != nil {
		return
	}
	version, err := patchNode(ctx, w.client, name, patch)
	switch {
	case err == nil:
		w.queue.Forget(name)
		w.done(name, patch, true)
		if patch.Event != nil {
			w.tell(nodeRef(name, patch), *patch.Event)
		}
		w.inbox.put(func(m *model) {
			delete(m.unwritten, name)
			delete(m.refused, name)
			m.answer(name, patch, version)
		})
		return
	case ctx.Err() != nil:
		return
	case !answered(err):
		// Nobody has refused anything: the API server is away.
		if w.queue.NumRequeues(name) == 0 {
			w.complain(name, err)
		}
		w.queue.AddRateLimited(name)
		return
	}
	// Somebody was there before, mostly: the watch shows what is there now, and another
	// patch follows.
	conflict := apierrors.IsConflict(err) || apierrors.IsNotFound(err)
	since, told := w.refuse(name, !conflict)
	now := w.now()
	if late := now.Sub(since) >= upgrade.WriteDeadline; !late {
		if !conflict && !told {
			w.complain(name, err)
		}
		w.queue.AddRateLimited(name)
		return
	}
	w.queue.Forget(name)
	w.done(name, patch, false)
	why := "the Node cannot be written: " + record.Clean(text(err), maxRefusal)
	w.inbox.put(func(m *model) {
		m.refuse(name, err, upgrade.Refusal{Why: why, Since: since, Next: now.Add(upgrade.WriteAgain)}, func() {
			w.tell(nodeRef(name, patch), upgrade.Event{Warning: true, Reason: upgrade.Reason, Message: why + "; where its driver is to be upgraded, others go first"})
		})
		m.answer(name, patch, "")
	})
}

// complain says of a Node that it cannot be patched.
func (w *writer) complain(name string, err error) {
	w.log.Error("a Node cannot be labelled; it is tried again", "node", name, "error", err)
	w.inbox.put(func(m *model) {
		if m.nodes[name] != nil {
			m.unwritten[name], m.touched[name] = err, true
		}
	})
}

// answered reports whether an error is the API server's answer, or that it took too long
// over it, as it does where an admission webhook hangs; else it was not reached.
func answered(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) || errors.Is(err, context.DeadlineExceeded)
}

// text describes an error for people.
func text(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("the API server has not answered within %s: see the admission webhooks that it asks about Nodes", apply.Timeout)
	}
	return right.Tell(err)
}

// maxRefusal bounds what is told of a refusal, in bytes.
const maxRefusal = 512

func nodeRef(name string, patch *upgrade.Patch) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(patch.UID)}}
}

// patchNode brings one patch to a Node and returns the version that the Node has then. The
// Node itself comes by the watch, and need not be read twice.
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
