// Package roll carries out what package upgrade plans of pods: it removes them, and
// watches those of the nodes whose upgrade depends on them, and of no others.
//
// No method waits for the API server. Each pod is removed by requests of its own, with a
// deadline and a back-off of its own, so that one that is slow or refused holds up
// nothing else.
package roll

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
	"github.com/gpuready/gpuready/operator/right"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// maxRequests bounds how many requests to remove pods are made at a time. It is more than the
// pods of a node: while an admission webhook is slow, all of its pods wait side by side.
const maxRequests = 128

// removeDeadline bounds one request to remove a pod. An admission webhook may take 30 s
// (timeoutSeconds); the API server still has to answer after that.
const removeDeadline = 35 * time.Second

// Pauses before a pod is tried again: from firstPause, twice as long each time, up to
// lastPause. They are short because a budget may allow an eviction as pods on other nodes
// change, which are not watched. A Retry-After of the API server counts up to longestPause.
const (
	firstPause   = time.Second
	lastPause    = 15 * time.Second
	longestPause = 5 * time.Minute
)

// maxWhy bounds what the API server says of a refusal, in bytes.
const maxWhy = 512

// Remover asks the API server to remove a pod, by its UID. Each call is one request:
// it does not wait to send it again.
type Remover interface {
	Evict(ctx context.Context, pod upgrade.Removal) error
	Delete(ctx context.Context, pod upgrade.Removal) error
}

// Options are what a Roller is made of.
type Options struct {
	// Client is not cached: pods are listed and watched by node.
	Client client.WithWatch
	// Namespaces are this product's: the operator's own, and the operands'.
	Namespaces []string
	// Remover removes pods; its methods are called from several goroutines.
	Remover Remover
	// Changed is called, from several goroutines, when a pod of a followed node or the
	// Outcome has changed: it is time to plan again.
	Changed func()
	// Tell records an Event of the Node; nil: nobody.
	Tell func(*corev1.Node, upgrade.Event)
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Roller carries plans out.
type Roller struct {
	Options
	queue workqueue.TypedRateLimitingInterface[string] // of pods' UIDs

	mu        sync.Mutex
	removals  map[string]*removal  // by the pod's UID
	followers map[string]*follower // by node
	running   sync.WaitGroup
	closed    bool
}

// removal is a pod to remove, and the answers to its requests so far.
type removal struct {
	upgrade.Removal
	driver bool // it is deleted; else evicted
	wanted bool // by the last plan
	paused bool // its Node is being written: nothing is asked for until that is done

	failures     int       // that failed, since one was accepted
	since        time.Time // when the first of them ended
	last         time.Time // when the last of them ended
	failure      string    // it failed, one sentence; "": it is not known to have failed
	missingRight error     // the right that it failed for; nil: none is missing
}

// New makes a Roller; Start must run as long as it is used.
func New(o Options) *Roller {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Roller{
		Options: o, removals: map[string]*removal{}, followers: map[string]*follower{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstPause, lastPause)),
	}
}

// Start removes pods until the context ends. Then it ends all requests and watches, and
// waits for them.
func (r *Roller) Start(ctx context.Context) error {
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

// Outcome reports on the removals of a plan.
type Outcome struct {
	Blocked map[string]string          // by node: why pods were not removed, one sentence
	Stuck   map[string]upgrade.Refusal // driver pods that cannot be deleted, by UID
	Err     error                      // rights that are missing, and driver pods that cannot be deleted
}

// Remove starts to remove the pods that the plan names, stops to remove others, and
// follows the pods of the nodes in Plan.Watch. It returns at once with what is known so
// far; Changed announces what follows. While writing reports that a Node is being written,
// no pod of it is removed: a Node is cordoned before its pods go.
func (r *Roller) Remove(p *upgrade.Plan, writing func(node string) bool) Outcome {
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
			r.drop(uid, one, p.Waits(one.Node))
		}
		if one.failure == "" {
			continue
		}
		if one.driver && !one.last.Before(one.since.Add(upgrade.WriteDeadline)) {
			o.Stuck[uid] = upgrade.Refusal{Why: one.failure, Since: one.since, Next: one.last.Add(upgrade.WriteAgain)}
		}
		if !one.wanted {
			continue
		}
		// Of several pods of a node always the same is named.
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

// enqueue queues the removal of a pod; the lock is held.
func (r *Roller) enqueue(pod upgrade.Removal, driver, held bool) {
	one := r.removals[pod.UID]
	if one == nil {
		one = &removal{Removal: pod, driver: driver, paused: true}
		r.removals[pod.UID] = one
	}
	one.wanted = true
	if one.paused && !held {
		r.queue.Add(pod.UID)
	}
	one.paused = held
}

// drop forgets a removal that the plan no longer names. A request on its way is not ended:
// plans stop naming a pod as soon as it is being deleted, and an API server that loses its
// client between marking a pod and removing it leaves the pod to a kubelet. A driver pod
// that could not be deleted is remembered while its node waits for another turn, and for a
// while: plans do not name it meanwhile, and its node would have a turn beyond the limit if
// it was forgotten. The lock is held.
func (r *Roller) drop(uid string, one *removal, waits bool) {
	r.queue.Forget(uid)
	one.paused = true
	if !one.driver || one.failure == "" || !waits && r.Now().Sub(one.last) > stuckRetention {
		delete(r.removals, uid)
	}
}

// stuckRetention bounds how long a driver pod that could not be deleted is remembered.
const stuckRetention = time.Hour

// send makes one request to remove a pod, if it is still wanted.
func (r *Roller) send(ctx context.Context, uid string) {
	ctx, cancel := context.WithTimeout(ctx, removeDeadline)
	defer cancel()
	r.mu.Lock()
	one := r.removals[uid]
	if one == nil || !one.wanted || one.paused || ctx.Err() != nil {
		r.mu.Unlock()
		return
	}
	pod, ask := one.Removal, r.Remover.Evict
	if one.driver {
		ask = r.Remover.Delete
	}
	r.mu.Unlock()

	err := ask(ctx, pod)

	r.mu.Lock()
	changed, event := false, (*upgrade.Event)(nil)
	ends := errors.Is(ctx.Err(), context.Canceled) // the operator
	if one.wanted && r.removals[uid] == one && !ends {
		changed, event = r.record(one, err)
	}
	r.mu.Unlock()
	if event != nil && r.Tell != nil {
		r.Tell(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Node, UID: types.UID(pod.NodeUID)}}, *event)
	}
	if changed {
		r.Changed()
	}
}

// record stores the answer to a request and queues the next one. It reports whether the
// Outcome changed, and returns an Event to send, if any. The lock is held.
func (r *Roller) record(one *removal, err error) (changed bool, event *upgrade.Event) {
	before := one.failure
	if err == nil {
		// A watch shows that the pod goes. It is asked for again, as a finalizer or webhook may keep it.
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
		return false, nil // it is gone: its watch is about to show that
	}
	verb := "evicted"
	what := fmt.Sprintf("pod %s/%s", one.Namespace, one.Name)
	if one.driver {
		verb, what = "deleted", fmt.Sprintf("driver pod %s/%s on node %s", one.Namespace, one.Name, one.Node)
	}
	one.failure = fmt.Sprintf("%s cannot be %s: %s", what, verb, record.Clean(reason(err), maxWhy))
	one.missingRight = nil
	if len(right.Missing(err.Error())) > 0 {
		one.missingRight = fmt.Errorf("%s cannot be %s: %w", what, verb, err)
	}
	if before == "" {
		event = &upgrade.Event{Warning: true, Reason: upgrade.Reason, Message: one.failure + "; it is tried again until it may"}
	}
	late := one.driver && !one.last.Before(one.since.Add(upgrade.WriteDeadline))
	return before != one.failure || late, event
}

// retryAfter returns the pause that the API server asks for; 0: it asks for none.
func retryAfter(err error) time.Duration {
	if seconds, is := apierrors.SuggestsClientDelay(err); is && seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	return 0
}

// reason returns why the API server refused, from its causes where a budget is one.
func reason(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil {
		for _, cause := range status.Status().Details.Causes {
			if cause.Type == policyv1.DisruptionBudgetCause {
				return cause.Message
			}
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("the API server has not answered within %s: see the admission webhooks that it asks (kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations)", removeDeadline)
	}
	return right.Tell(err)
}
