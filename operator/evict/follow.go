package evict

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/operator/status"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// maxFollowed bounds how many nodes are followed at a time. The pods of further nodes become
// known when the first ones have no more to evict.
const maxFollowed = 64

// watchTimeout is the time after which the API server ends a watch and it is renewed.
const watchTimeout = 5 * time.Minute

// pauseAfterError is the pause after a list or watch that failed or ended at once.
const pauseAfterError = 2 * time.Second

// readDeadline bounds one read request and the start of a watch.
const readDeadline = 10 * time.Second

// nodeName is the field selector for the pods of a node.
const nodeName = "spec.nodeName"

// follower watches the pods of one node.
type follower struct {
	node       string
	namespaces []string // Options.Namespaces
	cancel     context.CancelFunc

	claims map[claimUse]bool // allocated ResourceClaims; true if they hold a GPU; used by run only

	mu   sync.Mutex
	pods map[string]*upgrade.Pod // by UID; nil: not known yet
	err  error                   // why they may not be listed or watched; nil if they may
}

// claimUse is a pod's use of a ResourceClaim. After the pod, another claim may have the name.
type claimUse struct{ pod, claim string }

// Pods returns the known pods of the followed nodes, for upgrade.Input.Pods.
func (r *Evictor) Pods() map[string][]*upgrade.Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := map[string][]*upgrade.Pod{}
	for node, f := range r.followers {
		if pods, ok := f.list(); ok {
			known[node] = pods
		}
	}
	return known
}

// follow follows exactly these nodes, or the first ones if they exceed maxFollowed.
func (r *Evictor) follow(nodes []string) {
	nodes = nodes[:min(len(nodes), maxFollowed)]
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	for node := range r.followers {
		if !slices.Contains(nodes, node) {
			r.unfollow(node)
		}
	}
	for _, node := range nodes {
		if _, ok := r.followers[node]; ok {
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		f := &follower{node: node, namespaces: r.Namespaces, cancel: cancel}
		r.followers[node] = f
		r.running.Go(func() { f.run(ctx, r.Client, r.Changed) })
	}
}

// unfollow stops following a node. The lock must be held.
func (r *Evictor) unfollow(node string) {
	r.followers[node].cancel()
	delete(r.followers, node)
}

func (f *follower) list() ([]*upgrade.Pod, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pods == nil {
		return nil, false
	}
	pods := slices.SortedFunc(maps.Values(f.pods), func(a, b *upgrade.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return pods, true
}

// run lists and watches until ctx ends. While neither works, the known pods stay: evictions
// name UIDs, so that outdated pods do no harm.
func (f *follower) run(ctx context.Context, c client.WithWatch, changed func()) {
	for ctx.Err() == nil {
		began := time.Now()
		err := f.listAndWatch(ctx, c, changed)
		if err != nil && len(status.MissingRights(err.Error())) > 0 {
			f.setError(err)
			changed()
		}
		if err == nil && time.Since(began) > pauseAfterError {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(pauseAfterError):
		}
	}
}

func (f *follower) setError(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// denied returns the missing right that keeps pods of followed nodes unknown, for the first
// such node. Other failures of the API server are transient and not reported.
func (r *Evictor) denied() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, node := range slices.Sorted(maps.Keys(r.followers)) {
		f := r.followers[node]
		f.mu.Lock()
		err := f.err
		f.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// listAndWatch lists, and watches until the watch ends.
func (f *follower) listAndWatch(ctx context.Context, c client.WithWatch, changed func()) error {
	var list corev1.PodList
	short, cancel := context.WithTimeout(ctx, readDeadline)
	err := c.List(short, &list, client.MatchingFields{nodeName: f.node})
	cancel()
	if err != nil {
		return fmt.Errorf("pods of node %s cannot be listed: %w", f.node, err)
	}
	pods := map[string]*upgrade.Pod{}
	f.claims = map[claimUse]bool{}
	for i := range list.Items {
		pod, err := f.observe(ctx, c, &list.Items[i])
		if err != nil {
			return err
		}
		pods[pod.UID] = pod
	}
	f.mu.Lock()
	f.pods = pods
	f.mu.Unlock()
	changed()

	seconds := int64(watchTimeout / time.Second)
	long, cancel := context.WithTimeout(ctx, watchTimeout+readDeadline)
	defer cancel()
	w, err := c.Watch(long, &corev1.PodList{}, client.MatchingFields{nodeName: f.node},
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion, TimeoutSeconds: &seconds}})
	if err != nil {
		return fmt.Errorf("pods of node %s cannot be watched: %w", f.node, err)
	}
	defer w.Stop()
	f.setError(nil)
	for {
		select {
		case <-long.Done():
			return long.Err()
		case event, ok := <-w.ResultChan():
			if !ok {
				return nil
			}
			if err := f.apply(long, c, event); err != nil {
				return err
			}
			changed()
		}
	}
}

// apply updates the known pods from an event.
func (f *follower) apply(ctx context.Context, c client.Client, event watch.Event) error {
	pod, ok := event.Object.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("the watch of the pods of node %s ended with %v", f.node, event.Type)
	}
	var observed *upgrade.Pod
	if event.Type == watch.Added || event.Type == watch.Modified {
		var err error
		if observed, err = f.observe(ctx, c, pod); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case observed != nil:
		f.pods[observed.UID] = observed
	case event.Type == watch.Deleted:
		delete(f.pods, string(pod.UID))
	}
	return nil
}

// observe reduces a pod to what upgrades need. It reads the pod's ResourceClaims unless the
// pod itself shows that it uses a GPU.
func (f *follower) observe(ctx context.Context, c client.Client, pod *corev1.Pod) (*upgrade.Pod, error) {
	p := upgrade.ObservePod(pod, f.namespaces...)
	if p.GPU || p.Finished {
		return p, nil
	}
	for _, name := range upgrade.Claims(pod) {
		gpu, err := f.allocated(ctx, c, pod, name)
		if err != nil {
			return nil, fmt.Errorf("ResourceClaim %s/%s of pod %s on node %s: %w", pod.Namespace, name, pod.Name, f.node, err)
		}
		p.GPU = p.GPU || gpu
	}
	return p, nil
}

// allocated reports whether a GPU is allocated to a ResourceClaim. The result is cached: an
// allocation does not change while a pod uses the claim.
func (f *follower) allocated(ctx context.Context, c client.Client, pod *corev1.Pod, name string) (gpu bool, err error) {
	key := claimUse{string(pod.UID), name}
	if gpu, known := f.claims[key]; known {
		return gpu, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readDeadline)
	defer cancel()
	served, err := c.RESTMapper().RESTMapping(claimKind)
	if meta.IsNoMatchError(err) {
		return false, nil // the API was switched off: nobody prepares a claim
	}
	if err != nil {
		return false, err
	}
	claim := &unstructured.Unstructured{}
	claim.SetGroupVersionKind(served.GroupVersionKind)
	if err := c.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: name}, claim); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	known, gpu := upgrade.ObserveClaim(claim)
	if known {
		f.claims[key] = gpu
	}
	return gpu, nil
}

// claimKind is read in the API server's preferred version.
var claimKind = schema.GroupKind{Group: "resource.k8s.io", Kind: "ResourceClaim"}
