package controller

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/gpuready/gpuready/operator/label"
)

// access answers access reviews as an API server does.
type access struct {
	mu    sync.Mutex
	verbs map[string]string // on Nodes, by user
	err   error
}

func (a *access) set(verbs map[string]string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.verbs, a.err = verbs, err
}

func newTestReviewer(t *testing.T, a *access) (*reviewer, *model) {
	t.Helper()
	scheme, err := Scheme()
	require.NoError(t, err)
	c := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
			review, is := o.(*authorizationv1.SubjectAccessReview)
			require.True(t, is)
			asked := review.Spec.ResourceAttributes
			a.mu.Lock()
			defer a.mu.Unlock()
			review.Status.Allowed = asked.Resource == "nodes" && asked.Namespace == "" && a.verbs[review.Spec.User] == asked.Verb
			return a.err
		},
	}).Build()
	return newReviewer(c, newInbox(), types.NamespacedName{Namespace: namespace, Name: label.Deployment}, slog.New(slog.DiscardHandler)), newModel(namespace)
}

// others returns the Deployments that count as NVIDIA's operator.
func (r *reviewer) others(m *model) (all []string) {
	for _, news := range r.inbox.drain() {
		news(m)
	}
	for key := range m.nvidiaOperators {
		all = append(all, key.String())
	}
	return all
}

func deployment(ns, account string, wanted *int32, there int32, labels map[string]string) *appsv1.Deployment {
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: label.NVIDIADeployment, Labels: labels},
		Spec:       appsv1.DeploymentSpec{Replicas: wanted}, Status: appsv1.DeploymentStatus{Replicas: there},
	}
	d.Spec.Template.Spec.ServiceAccountName = account
	stripDeployment(d)
	return d
}

func TestADeploymentIsNVIDIAsOperatorIfItMayWriteNodesAndRuns(t *testing.T) {
	may := &access{verbs: map[string]string{
		"system:serviceaccount:gpu-operator:gpu-operator": "update", "system:serviceaccount:new:default": "patch",
		"system:serviceaccount:" + namespace + ":gpuready-operator": "patch",
	}}
	for name, c := range map[string]struct {
		is    *appsv1.Deployment
		other bool
		own   bool // it has this operator's name
	}{
		"by default":               {deployment("gpu-operator", "gpu-operator", nil, 0, nil), true, false},
		"one pod":                  {deployment("gpu-operator", "gpu-operator", new(int32(1)), 1, nil), true, false},
		"scaled down, one left":    {deployment("gpu-operator", "gpu-operator", new(int32(0)), 1, nil), true, false},
		"scaled to none":           {deployment("gpu-operator", "gpu-operator", new(int32(0)), 0, nil), false, false},
		"not started yet":          {deployment("gpu-operator", "gpu-operator", new(int32(2)), 0, nil), true, false},
		"the default account":      {deployment("new", "", nil, 1, nil), true, false},
		"a tenant's":               {deployment("team-a", "gpu-operator", nil, 1, nil), false, false},
		"of this product":          {deployment("gpu-operator", "gpu-operator", nil, 1, map[string]string{label.PartOf: label.Product}), false, false},
		"this one, its label lost": {deployment(namespace, "gpuready-operator", nil, 1, nil), false, true},
		"another, its label lost":  {deployment("gpu-operator", "gpu-operator", nil, 1, nil), true, true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.own {
				c.is.Name = label.Deployment
			}
			r, m := newTestReviewer(t, may)
			r.classify(t.Context(), c.is)
			require.Equal(t, c.other, len(r.others(m)) > 0)
			require.Equal(t, c.other || c.is.Labels != nil, m.changed && (len(m.nvidiaOperators)+len(m.siblings) > 0))
			m.changed = false
			r.classify(t.Context(), c.is)
			r.others(m)
			require.False(t, m.changed, "nothing is new")
			r.setKind(c.is, none)
			require.Empty(t, r.others(m))
			require.Empty(t, m.siblings)
		})
	}
}

func TestAnOperatorOfThisProductIsReadyWhileItHasAPod(t *testing.T) {
	r, m := newTestReviewer(t, &access{})
	for _, c := range []struct {
		replicas *int32
		pods     int32
		ready    bool
	}{{nil, 0, false}, {nil, 1, true}, {new(int32(0)), 1, false}, {new(int32(1)), 1, true}} {
		d := deployment("elsewhere", "gpu-operator", c.replicas, 1, map[string]string{label.PartOf: label.Product})
		d.Status.AvailableReplicas = c.pods
		m.changed = false
		r.classify(t.Context(), d)
		r.others(m)
		require.Equal(t, map[types.NamespacedName]bool{objectKey(d): c.ready}, m.siblings)
		require.True(t, m.changed)
	}
}

func TestPermissionsAreReviewedPeriodically(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &access{}
		r, m := newTestReviewer(t, a)
		go func() { _ = r.run(t.Context()) }()
		r.classify(t.Context(), deployment("gpu-operator", "gpu-operator", nil, 1, nil))
		require.Empty(t, r.others(m), "its binding comes after it")
		a.set(map[string]string{"system:serviceaccount:gpu-operator:gpu-operator": "patch"}, nil)
		time.Sleep(reviewEvery + time.Second)
		require.Equal(t, []string{"gpu-operator/gpu-operator"}, r.others(m))
		a.set(nil, nil)
		time.Sleep(reviewEvery)
		require.Empty(t, r.others(m))
		a.set(nil, errors.New("the API server is away"))
		time.Sleep(reviewEvery)
		require.Empty(t, r.others(m), "it stays what it was")
		a.set(nil, apierrors.NewForbidden(authorizationv1.Resource("subjectaccessreviews"), "", nil))
		time.Sleep(reviewEvery)
		require.NotEmpty(t, r.others(m), "better nothing is done than done twice")
	})
}

// An API server that is away for a moment removes no stack.
func TestDeploymentCountsAsNothingUntilReviewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &access{err: errors.New("the API server is away")}
		r, m := newTestReviewer(t, a)
		known := make(chan struct{})
		go func() {
			defer close(known)
			r.classify(t.Context(), deployment("gpu-operator", "gpu-operator", nil, 1, nil))
		}()
		time.Sleep(time.Minute)
		require.Empty(t, r.others(m))
		a.set(map[string]string{"system:serviceaccount:gpu-operator:gpu-operator": "update"}, nil)
		<-known
		require.Equal(t, []string{"gpu-operator/gpu-operator"}, r.others(m))
	})
}
