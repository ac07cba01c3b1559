// Package roll carries out what package upgrade plans of pods: it removes them, and
// watches those of the nodes whose upgrade depends on them, and of no others.
package roll

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/operator/right"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// How long one call to the API server may take.
const deadline = 10 * time.Second

// How long is waited after a refused eviction before the next attempt: twice as long
// each time. What a budget allows changes with pods on other nodes, of which nobody here
// hears.
const (
	firstPause = time.Second
	lastPause  = 15 * time.Second
)

// Options are what a Roller is made of.
type Options struct {
	// Client is not cached: pods are listed and watched by node.
	Client client.WithWatch
	// Changed is called, from several goroutines, when pods of a followed node have
	// changed: it is time to plan again.
	Changed func()
	// Tell records an Event of the Node; nil: nobody.
	Tell func(*corev1.Node, upgrade.Event)
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Roller carries plans out. Its methods are for one goroutine, but for Pods.
type Roller struct {
	Options
	refused map[string]refusal // evictions, by the pod's UID

	mu        sync.Mutex
	followers map[string]*follower // by node
	running   sync.WaitGroup
	closed    bool
}

// refusal is an eviction that was refused.
type refusal struct {
	node, why string
	denied    error // the operator may not evict at all; nil: the pod may not be evicted
	pause     time.Duration
	next      time.Time
}

// New makes a Roller; Start must run as long as it is used.
func New(o Options) *Roller {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Roller{Options: o, refused: map[string]refusal{}, followers: map[string]*follower{}}
}

// Start ends when the context does, and with it all watches.
func (r *Roller) Start(ctx context.Context) error {
	<-ctx.Done()
	r.mu.Lock()
	r.closed = true
	for node := range r.followers {
		r.leave(node)
	}
	r.mu.Unlock()
	r.running.Wait()
	return nil
}

// Outcome is what came of removing pods.
type Outcome struct {
	Blocked map[string]string // why evictions were refused, by node, one sentence
	Next    time.Time         // when the first of them may be tried again; zero: none was refused
}

// Remove removes the pods that the plan names, after its patches were written, and
// follows the pods of the nodes that it wants to know of. The error is of what could not
// be asked of the API server, and of rights that are missing; evictions that it refused
// for the pods' sake are in the Outcome.
func (r *Roller) Remove(ctx context.Context, p *upgrade.Plan) (Outcome, error) {
	r.follow(p.Watch)
	problems := []error{r.denied()}
	for _, pod := range p.Delete {
		if err := r.delete(ctx, pod); err != nil {
			problems = append(problems, err)
		}
	}
	wanted := map[string]bool{}
	for _, pod := range p.Evict {
		wanted[pod.UID] = true
		if before, ok := r.refused[pod.UID]; ok && r.Now().Before(before.next) {
			continue
		}
		if ctx.Err() != nil {
			problems = append(problems, ctx.Err())
			break
		}
		r.evict(ctx, pod)
	}
	o := Outcome{Blocked: map[string]string{}}
	for uid, refusal := range r.refused {
		if !wanted[uid] {
			delete(r.refused, uid)
			continue
		}
		if refusal.denied != nil {
			problems = append(problems, refusal.denied)
		}
		// Of several pods of a node always the same is named.
		if why, ok := o.Blocked[refusal.node]; !ok || refusal.why < why {
			o.Blocked[refusal.node] = refusal.why
		}
		if o.Next.IsZero() || refusal.next.Before(o.Next) {
			o.Next = refusal.next
		}
	}
	return o, errors.Join(problems...)
}

func (r *Roller) delete(ctx context.Context, pod upgrade.Removal) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	err := r.Client.Delete(ctx, object, client.Preconditions{UID: new(types.UID(pod.UID))})
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("driver pod %s/%s on node %s cannot be deleted: %w", pod.Namespace, pod.Name, pod.Node, err)
}

// evict asks for an eviction, and remembers a refusal.
func (r *Roller) evict(ctx context.Context, pod upgrade.Removal) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	err := r.Client.SubResource("eviction").Create(ctx, object, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: new(types.UID(pod.UID))}},
	})
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		delete(r.refused, pod.UID)
		return
	}
	why := fmt.Sprintf("pod %s/%s cannot be evicted: %s", pod.Namespace, pod.Name, reason(err))
	if _, known := r.refused[pod.UID]; !known && r.Tell != nil {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Node, UID: types.UID(pod.NodeUID)}}
		r.Tell(node, upgrade.Event{Warning: true, Reason: upgrade.Reason, Message: why + "; it is tried again until it may"})
	}
	pause := min(max(2*r.refused[pod.UID].pause, firstPause), lastPause)
	one := refusal{node: pod.Node, why: why, pause: pause, next: r.Now().Add(pause)}
	if len(right.Missing(err.Error())) > 0 {
		one.denied = fmt.Errorf("pod %s/%s cannot be evicted: %w", pod.Namespace, pod.Name, err)
	}
	r.refused[pod.UID] = one
}

// reason is what the API server says of a refusal; of budgets it names the one in its causes.
func reason(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil {
		for _, cause := range status.Status().Details.Causes {
			if cause.Type == policyv1.DisruptionBudgetCause {
				return cause.Message
			}
		}
	}
	return right.Tell(err)
}
