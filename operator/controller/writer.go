package controller

import (
	"context"
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

	"github.com/gpuready/gpuready/operator/apply"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// writers is how many Nodes are patched at a time, and retries how long a patch that
// fails waits for the next try.
const (
	writers    = 16
	firstRetry = 100 * time.Millisecond
	lastRetry  = time.Minute
)

// writer patches Nodes, several at a time and each again until it is done: one request a
// Node, of what is wanted last.
type writer struct {
	client client.Client
	inbox  *inbox
	tell   func(node *corev1.Node, event upgrade.Event)
	log    *slog.Logger
	queue  workqueue.TypedRateLimitingInterface[string]

	mu     sync.Mutex
	wanted map[string]*upgrade.Patch
}

func newWriter(c client.Client, in *inbox, tell func(*corev1.Node, upgrade.Event), log *slog.Logger) *writer {
	return &writer{
		client: c, inbox: in, tell: tell, log: log, wanted: map[string]*upgrade.Patch{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry)),
	}
}

// set wants a Node to be patched; nil: it is fine as it is.
func (w *writer) set(node string, patch *upgrade.Patch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if patch == nil {
		delete(w.wanted, node)
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

func (w *writer) done(node string, patch *upgrade.Patch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wanted[node] == patch {
		delete(w.wanted, node)
	}
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
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		// Somebody was there before; the watch shows what is there now.
		version = ""
	case ctx.Err() != nil:
		return
	default:
		if w.queue.NumRequeues(name) == 0 {
			w.log.Error("a Node cannot be labelled; it is tried again", "node", name, "error", err)
			w.inbox.put(func(m *model) { m.unwritten[name], m.touched[name] = err, true })
		}
		w.queue.AddRateLimited(name)
		return
	}
	w.queue.Forget(name)
	w.done(name, patch)
	if version != "" && patch.Event != nil {
		w.tell(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(patch.UID)}}, *patch.Event)
	}
	w.inbox.put(func(m *model) {
		delete(m.unwritten, name)
		m.answer(name, patch, version)
	})
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
