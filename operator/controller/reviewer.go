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
	"github.com/gpuready/gpuready/operator/status"
)

const (
	reviewTimeout = 10 * time.Second
	// reviewEvery is the interval at which Deployments are reviewed again: their permissions
	// may change without an event of the Deployment.
	reviewEvery = time.Minute
	// reviewPause is the pause before the review of a new Deployment is retried when the API
	// server did not respond.
	reviewPause = time.Second
)

// reviewer decides which Deployments are NVIDIA's operator, of those with an operator's name.
// Anybody who may create Deployments in some namespace can use such a name; the service
// account of NVIDIA's may write Nodes.
type reviewer struct {
	client client.Client
	inbox  *inbox
	own    types.NamespacedName // this operator's Deployment
	log    *slog.Logger

	mu         sync.Mutex
	candidates map[types.NamespacedName]*appsv1.Deployment // running Deployments without this product's label
	problem    string                                      // the last one that was logged
}

func newReviewer(c client.Client, in *inbox, own types.NamespacedName, log *slog.Logger) *reviewer {
	return &reviewer{client: c, inbox: in, own: own, log: log, candidates: map[types.NamespacedName]*appsv1.Deployment{}}
}

// eventHandler reviews each Deployment of an informer. HasSynced of its registration waits for
// the first reviews.
func (r *reviewer) eventHandler(ctx context.Context) toolscache.ResourceEventHandler {
	return eventHandler(
		func(d *appsv1.Deployment) { r.classify(ctx, d) },
		func(d *appsv1.Deployment) { r.setKind(d, none) },
	)
}

// run repeats the reviews until ctx ends.
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
		all := slices.Collect(maps.Values(r.candidates))
		r.mu.Unlock()
		for _, d := range all {
			r.review(ctx, d)
		}
	}
}

// classify determines the kind of a Deployment and reports it to the owner of the model. It
// returns when the kind is known.
func (r *reviewer) classify(ctx context.Context, d *appsv1.Deployment) {
	switch {
	case d.Labels[label.PartOf] == label.Product && available(d):
		r.setKind(d, standby)
	case d.Labels[label.PartOf] == label.Product:
		r.setKind(d, sibling)
	case objectKey(d) == r.own || !runs(d):
		r.setKind(d, none)
	default:
		r.mu.Lock()
		r.candidates[objectKey(d)] = d
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

// setKind reports the kind of a Deployment that needs no review.
func (r *reviewer) setKind(d *appsv1.Deployment, kind operatorKind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.candidates, objectKey(d))
	r.inbox.enqueue(func(m *model) { m.setOperator(objectKey(d), kind) })
}

// review asks the API server about a Deployment and reports whether it got a response.
// Without one, the Deployment keeps its kind. If this operator may not ask, every Deployment
// counts as NVIDIA's: doing nothing is better than doing things twice.
func (r *reviewer) review(ctx context.Context, d *appsv1.Deployment) (answered bool) {
	writes, err := r.writesNodes(ctx, d)
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil || r.candidates[objectKey(d)] != d {
		return true // the caller has gone, or the Deployment has changed meanwhile
	}
	problem := ""
	if err != nil {
		problem = status.ExplainError(err)
	}
	if problem != "" && problem != r.problem {
		r.log.Error("cannot find out whether a Deployment is NVIDIA's operator; without permission it counts as NVIDIA's, otherwise retrying", "deployment", objectKey(d).String(), "error", problem)
	}
	r.problem = problem
	if err != nil && !apierrors.IsForbidden(err) {
		return false
	}
	kind := none
	if writes || err != nil {
		kind = nvidias
	}
	r.inbox.enqueue(func(m *model) { m.setOperator(objectKey(d), kind) })
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

// runs reports whether a Deployment has pods or is scaled to have some.
func runs(d *appsv1.Deployment) bool {
	return d.Spec.Replicas == nil || *d.Spec.Replicas > 0 || d.Status.Replicas > 0
}

// available reports whether a Deployment has a ready pod and is scaled to keep it.
func available(d *appsv1.Deployment) bool {
	return d.DeletionTimestamp == nil && (d.Spec.Replicas == nil || *d.Spec.Replicas > 0) && d.Status.AvailableReplicas > 0
}

// stripDeployment keeps only the fields that a reviewer reads.
func stripDeployment(d *appsv1.Deployment) {
	d.ManagedFields, d.Annotations, d.Status.Conditions = nil, nil, nil
	account := d.Spec.Template.Spec.ServiceAccountName
	d.Spec = appsv1.DeploymentSpec{Replicas: d.Spec.Replicas}
	d.Spec.Template.Spec.ServiceAccountName = account
}
