package controller

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/right"
)

const (
	reviewTimeout = 10 * time.Second
	// reviewEvery is how often a Deployment is reviewed again: rights come and go without
	// an event of it.
	reviewEvery = time.Minute
	// reviewPause is the pause before a Deployment that is new is reviewed again where the
	// API server did not answer.
	reviewPause = time.Second
)

// reviewer decides which Deployments of its name are NVIDIA's operator. Anybody who may
// make a Deployment in some namespace can make one of that name; NVIDIA's has a service
// account that may write Nodes.
type reviewer struct {
	client client.Client
	inbox  *inbox
	own    types.NamespacedName // this operator's Deployment
	log    *slog.Logger

	mu      sync.Mutex
	asked   map[types.NamespacedName]*appsv1.Deployment // those that run and have not this product's label
	problem string                                      // the last one that was logged
}

func newReviewer(c client.Client, in *inbox, own types.NamespacedName, log *slog.Logger) *reviewer {
	return &reviewer{client: c, inbox: in, own: own, log: log, asked: map[types.NamespacedName]*appsv1.Deployment{}}
}

// watch reviews each Deployment that the informer has. HasSynced of what it returns waits
// for the first reviews.
func (r *reviewer) watch(ctx context.Context, informer interface {
	AddEventHandler(toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error)
}) (toolscache.ResourceEventHandlerRegistration, error) {
	seen := func(o any) {
		if d, is := o.(*appsv1.Deployment); is {
			r.report(ctx, d)
		}
	}
	return informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    seen,
		UpdateFunc: func(_, o any) { seen(o) },
		DeleteFunc: func(o any) {
			if last, is := o.(toolscache.DeletedFinalStateUnknown); is {
				o = last.Obj
			}
			if d, is := o.(*appsv1.Deployment); is {
				r.set(d, none)
			}
		},
	})
}

// run reviews again until ctx ends.
func (r *reviewer) run(ctx context.Context) error {
	tick := time.NewTicker(reviewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		r.mu.Lock()
		all := slices.Collect(maps.Values(r.asked))
		r.mu.Unlock()
		for _, d := range all {
			r.review(ctx, d)
		}
	}
}

// report reports a Deployment to the owner of the model. It returns when it is known what
// the Deployment is.
func (r *reviewer) report(ctx context.Context, d *appsv1.Deployment) {
	switch {
	case d.Labels[label.PartOf] == label.Product && available(d):
		r.set(d, standby)
	case d.Labels[label.PartOf] == label.Product:
		r.set(d, sibling)
	case named(d) == r.own || !runs(d):
		r.set(d, none)
	default:
		r.mu.Lock()
		r.asked[named(d)] = d
		r.mu.Unlock()
		for !r.review(ctx, d) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(reviewPause):
			}
		}
	}
}

// set reports what a Deployment is that needs no review.
func (r *reviewer) set(d *appsv1.Deployment, kind operatorKind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.asked, named(d))
	r.inbox.put(func(m *model) { m.setOperator(named(d), kind) })
}

// review asks the API server about a Deployment, and reports whether it answered. Without
// an answer a Deployment stays what it was. Where this operator may not ask, each counts as
// NVIDIA's: nothing is done rather than done twice.
func (r *reviewer) review(ctx context.Context, d *appsv1.Deployment) (answered bool) {
	writes, err := r.writesNodes(ctx, d)
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil || r.asked[named(d)] != d {
		return true // nobody waits for it, or it has changed meanwhile
	}
	problem := ""
	if err != nil {
		problem = right.Tell(err)
	}
	if problem != "" && problem != r.problem {
		r.log.Error("cannot find out whether a Deployment is NVIDIA's operator; it counts as that while this operator may not ask, and is asked about again else", "deployment", named(d).String(), "error", problem)
	}
	r.problem = problem
	if err != nil && !apierrors.IsForbidden(err) {
		return false
	}
	kind := none
	if writes || err != nil {
		kind = nvidias
	}
	r.inbox.put(func(m *model) { m.setOperator(named(d), kind) })
	return true
}

// writesNodes reports whether the service account of a Deployment may write Nodes.
func (r *reviewer) writesNodes(ctx context.Context, d *appsv1.Deployment) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	account := d.Spec.Template.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	for _, verb := range []string{"update", "patch"} {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:" + d.Namespace + ":" + account,
			Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + d.Namespace, "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Resource: "nodes"},
		}}
		if err := r.client.Create(ctx, review); err != nil {
			return false, err
		}
		if review.Status.Allowed {
			return true, nil
		}
	}
	return false, nil
}

// runs reports whether a Deployment has pods, or is to have some.
func runs(d *appsv1.Deployment) bool {
	return d.Spec.Replicas == nil || *d.Spec.Replicas > 0 || d.Status.Replicas > 0
}

// available reports whether a Deployment has a pod that is ready, and is to keep it.
func available(d *appsv1.Deployment) bool {
	return d.DeletionTimestamp == nil && (d.Spec.Replicas == nil || *d.Spec.Replicas > 0) && d.Status.AvailableReplicas > 0
}

// operatorKind tells Deployments of an operator's name apart.
type operatorKind int

const (
	none    operatorKind = iota // or it is gone
	nvidias                     // NVIDIA's operator
	sibling                     // one of this product, this one included
	standby                     // a sibling with a pod that is ready
)

// setOperator records what a Deployment is.
func (m *model) setOperator(key types.NamespacedName, kind operatorKind) {
	ready, known := m.siblings[key]
	if m.other[key] == (kind == nvidias) && known == (kind >= sibling) && ready == (kind == standby) {
		return
	}
	m.common = true
	delete(m.other, key)
	delete(m.siblings, key)
	switch kind {
	case nvidias:
		m.other[key] = true
	case sibling, standby:
		m.siblings[key] = kind == standby
	}
}

// stripDeployment leaves what a reviewer reads.
func stripDeployment(d *appsv1.Deployment) {
	d.ManagedFields, d.Annotations, d.Status.Conditions = nil, nil, nil
	account := d.Spec.Template.Spec.ServiceAccountName
	d.Spec = appsv1.DeploymentSpec{Replicas: d.Spec.Replicas}
	d.Spec.Template.Spec.ServiceAccountName = account
}
