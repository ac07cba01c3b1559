// Package evict removes the pods that plans of package upgrade name. It watches the pods of
// nodes whose upgrade depends on them, and of no others.
//
// No method waits for the API server. Each pod has its own requests, deadline and back-off,
// so that a slow or refused one delays no other.
package evict

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/operator/status"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// maxRequests bounds concurrent requests to remove pods. It exceeds the number of pods on a
// node: while an admission webhook is slow, all of them wait side by side.
const maxRequests = 128

// removeDeadline bounds one request to remove a pod. An admission webhook may take 30 s
// (timeoutSeconds); the API server still has to respond after that.
const removeDeadline = 35 * time.Second

// Back-off of a pod's requests: it doubles from firstPause to lastPause. It is short because
// a budget may allow an eviction when pods on other nodes change, which are not watched. A
// Retry-After of the API server is honoured up to longestPause.
const (
	firstPause   = time.Second
	lastPause    = 15 * time.Second
	longestPause = 5 * time.Minute
)

// maxWhy bounds the API server's text of a refusal, in bytes.
const maxWhy = 512

// Remover removes pods, identified by UID, through the API server. Each call is one request,
// which it does not retry.
type Remover interface {
	Evict(ctx context.Context, pod upgrade.Removal) error
	Delete(ctx context.Context, pod upgrade.Removal) error
}

// Options configure an Evictor.
type Options struct {
	// Client must not be cached: pods are listed and watched by node.
	Client client.WithWatch
	// Namespaces are this product's: the operator's own, and the operands'.
	Namespaces []string
	// Remover removes pods. Its methods are called concurrently.
	Remover Remover
	// Changed is called, concurrently, when a pod of a followed node or the Outcome has
	// changed: it is time to plan again.
	Changed func()
	// RecordEvent records an Event of the Node; it may be nil.
	RecordEvent func(*corev1.Node, upgrade.Event)
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Evictor carries out the pod removals of plans.
type Evictor struct {
	Options
	queue workqueue.TypedRateLimitingInterface[string] // of pods' UIDs

	mu        sync.Mutex
	removals  map[string]*removal  // by the pod's UID
	followers map[string]*follower // by node
	running   sync.WaitGroup
	closed    bool
}

// removal is a pod to remove and the results of its requests so far.
type removal struct {
	upgrade.Removal
	driver bool // delete it; otherwise evict it
	wanted bool // by the last plan
	paused bool // no request is sent while its Node is being written

	failures     int       // since a request was accepted
	since        time.Time // end of the first failed request
	last         time.Time // end of the last failed request
	failure      string    // why the last request failed, one sentence; "" if none is known to have failed
	missingRight error     // the missing right that it failed for; nil if none is missing
}

// New returns an Evictor. Start must run while it is used.
func New(o Options) *Evictor {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Evictor{
		Options: o, removals: map[string]*removal{}, followers: map[string]*follower{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstPause, lastPause)),
	}
}

// Start removes pods until ctx ends. Then it ends all requests and watches and waits for
// them.
func (r *Evictor) Start(ctx context.Context) error {
	stop := context.AfterFunc(ctx, r.queue.ShutDown)
	defer stop()
	var calls errgroup.Group
	calls.SetLimit(maxRequests)
	for {
		uid, ended := r.queue.Get()
		if ended {
			break
		}
		calls.Go(func() error {
			defer r.queue.Done(uid)
			r.send(ctx, uid)
			return nil
		})
	}
	err := calls.Wait()
	r.mu.Lock()
	r.closed = true
	for node := range r.followers {
		r.unfollow(node)
	}
	r.mu.Unlock()
	r.running.Wait()
	return err
}

// Outcome holds the results of a plan's removals so far.
type Outcome struct {
	Blocked map[string]string          // why pods were not removed, by node; one sentence
	Stuck   map[string]upgrade.Refusal // driver pods that cannot be deleted, by UID
	Err     error                      // missing rights, and driver pods that cannot be deleted
}

// Remove starts to remove the pods that the plan names, stops removing others, and follows
// the pods of the nodes in Plan.Watch. It returns at once with the results so far; Changed
// announces later ones. It removes no pod of a Node for which writing reports true: a Node is
// cordoned before its pods are removed.
func (r *Evictor) Remove(p *upgrade.Plan, writing func(node string) bool) Outcome {
	r.follow(p.Watch)
	problems := []error{r.denied()}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.removals {
		one.wanted = false
	}
	for _, pod := range p.Evict {
		r.enqueue(pod, false, writing(pod.Node))
	}
	for _, pod := range p.Delete {
		r.enqueue(pod, true, writing(pod.Node))
	}
	o := Outcome{Blocked: map[string]string{}, Stuck: map[string]upgrade.Refusal{}}
	for uid, one := range r.removals {
		if !one.wanted {
			r.drop(uid, one, p.IsUnwritten(one.Node))
		}
		if one.failure == "" {
			continue
		}
		if one.driver && !one.last.Before(one.since.Add(upgrade.WriteDeadline)) {
			o.Stuck[uid] = upgrade.Refusal{Why: one.failure, Since: one.since, Next: one.last.Add(upgrade.WriteRetry)}
		}
		if !one.wanted {
			continue
		}
		// Always name the same one of several pods of a node.
		if why, ok := o.Blocked[one.Node]; !ok || one.failure < why {
			o.Blocked[one.Node] = one.failure
		}
		switch {
		case one.missingRight != nil:
			problems = append(problems, one.missingRight)
		case one.driver:
			problems = append(problems, errors.New(one.failure))
		}
	}
	o.Err = join(problems)
	return o
}

// join joins errors, sorted by their texts, each once.
func join(all []error) error {
	var texts []string
	byText := map[string]error{}
	for _, err := range all {
		if err != nil {
			texts = append(texts, err.Error())
			byText[err.Error()] = err
		}
	}
	var sorted []error
	for _, text := range unique(texts) {
		sorted = append(sorted, byText[text])
	}
	return errors.Join(sorted...)
}

// enqueue queues the removal of a pod. The lock must be held.
func (r *Evictor) enqueue(pod upgrade.Removal, driver, paused bool) {
	one := r.removals[pod.UID]
	if one == nil {
		one = &removal{Removal: pod, driver: driver, paused: true}
		r.removals[pod.UID] = one
	}
	one.wanted = true
	if one.paused && !paused {
		r.queue.Add(pod.UID)
	}
	one.paused = paused
}

// drop forgets a removal that the plan no longer names. It does not cancel a running request:
// plans stop naming a pod as soon as it is being deleted. An API server that loses its client
// between marking a pod and removing it leaves the pod to a kubelet. A driver pod that could
// not be deleted is remembered while its node waits for another turn, and for a while after.
// Plans do not name it meanwhile, and forgetting it would give its node a turn beyond the
// limit. The lock must be held.
func (r *Evictor) drop(uid string, one *removal, waits bool) {
	r.queue.Forget(uid)
	one.paused = true
	if !one.driver || one.failure == "" || !waits && r.Now().Sub(one.last) > stuckRetention {
		delete(r.removals, uid)
	}
}

// stuckRetention bounds how long a driver pod that could not be deleted is remembered.
const stuckRetention = time.Hour

// send makes one request to remove a pod, if it is still wanted.
func (r *Evictor) send(ctx context.Context, uid string) {
	ctx, cancel := context.WithTimeout(ctx, removeDeadline)
	defer cancel()
	r.mu.Lock()
	one := r.removals[uid]
	if one == nil || !one.wanted || one.paused || ctx.Err() != nil {
		r.mu.Unlock()
		return
	}
	pod, remove := one.Removal, r.Remover.Evict
	if one.driver {
		remove = r.Remover.Delete
	}
	r.mu.Unlock()

	err := remove(ctx, pod)

	r.mu.Lock()
	changed, event := false, (*upgrade.Event)(nil)
	ends := errors.Is(ctx.Err(), context.Canceled) // the operator is ending
	if one.wanted && r.removals[uid] == one && !ends {
		changed, event = r.record(one, err)
	}
	r.mu.Unlock()
	if event != nil && r.RecordEvent != nil {
		r.RecordEvent(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Node, UID: types.UID(pod.NodeUID)}}, *event)
	}
	if changed {
		r.Changed()
	}
}

// record stores the result of a request and queues the next one. It reports whether the
// Outcome changed, and returns the Event to send, if any. The lock must be held.
func (r *Evictor) record(one *removal, err error) (changed bool, event *upgrade.Event) {
	before := one.failure
	if err == nil {
		// The watch shows when the pod ends. Ask again later, as a finalizer or webhook may keep it.
		r.queue.Forget(one.UID)
		r.queue.AddAfter(one.UID, lastPause)
		one.failures, one.failure, one.missingRight, one.since = 0, "", nil, time.Time{}
		return before != "", nil
	}
	if pause := retryAfter(err); pause > 0 {
		r.queue.AddAfter(one.UID, min(pause, longestPause))
	} else {
		r.queue.AddRateLimited(one.UID)
	}
	one.failures++
	one.last = r.Now()
	if one.since.IsZero() {
		one.since = one.last
	}
	if (apierrors.IsNotFound(err) || apierrors.IsConflict(err)) && one.failures == 1 {
		return false, nil // it is gone, as the watch is about to show
	}
	verb := "evicted"
	what := fmt.Sprintf("pod %s/%s", one.Namespace, one.Name)
	if one.driver {
		verb, what = "deleted", fmt.Sprintf("driver pod %s/%s on node %s", one.Namespace, one.Name, one.Node)
	}
	one.failure = fmt.Sprintf("%s cannot be %s: %s", what, verb, record.Clean(reason(err), maxWhy))
	one.missingRight = nil
	if len(status.MissingRights(err.Error())) > 0 {
		one.missingRight = fmt.Errorf("%s cannot be %s: %w", what, verb, err)
	}
	if before == "" {
		event = &upgrade.Event{Warning: true, Reason: upgrade.Reason, Message: one.failure + "; retrying until it is allowed"}
	}
	late := one.driver && !one.last.Before(one.since.Add(upgrade.WriteDeadline))
	return before != one.failure || late, event
}

// retryAfter returns the API server's Retry-After, or 0.
func retryAfter(err error) time.Duration {
	if seconds, is := apierrors.SuggestsClientDelay(err); is && seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	return 0
}

// reason returns why the API server refused: the disruption budget's message, if there is one.
func reason(err error) string {
	var refusal apierrors.APIStatus
	if errors.As(err, &refusal) && refusal.Status().Details != nil {
		for _, cause := range refusal.Status().Details.Causes {
			if cause.Type == policyv1.DisruptionBudgetCause {
				return cause.Message
			}
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("the API server has not answered within %s: see the admission webhooks that it calls (kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations)", removeDeadline)
	}
	return status.ExplainError(err)
}
