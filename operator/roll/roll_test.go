package roll

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/gpuready/gpuready/operator/upgrade"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func pod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{NodeName: node},
	}
}

func newClient(funcs interceptor.Funcs, objects ...client.Object) client.WithWatch {
	return fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(objects...).WithInterceptorFuncs(funcs).
		WithIndex(&corev1.Pod{}, nodeName, func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).Build()
}

// start starts a Roller that ends with the test.
func start(t *testing.T, o Options) *Roller {
	if o.Changed == nil {
		o.Changed = func() {}
	}
	r := New(o)
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { _ = r.Start(ctx) })
	t.Cleanup(func() { cancel(); done.Wait() })
	return r
}

func TestARefusedEvictionIsTriedAgainLater(t *testing.T) {
	var tries int
	refuse := true
	c := newClient(interceptor.Funcs{SubResourceCreate: func(ctx context.Context, c client.Client, sub string, o, s client.Object, opts ...client.SubResourceCreateOption) error {
		tries++
		require.Equal(t, "eviction", sub)
		require.Equal(t, types.UID("uid-p"), *s.(*policyv1.Eviction).DeleteOptions.Preconditions.UID)
		deadline, ok := ctx.Deadline()
		require.True(t, ok && time.Until(deadline) <= 10*time.Second)
		if refuse {
			err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
			err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
				Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget web needs 2 healthy pods and has 2 currently"})
			return err
		}
		return c.SubResource(sub).Create(ctx, o, s, opts...)
	}}, pod("p", "a"))
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var told []string
	r := start(t, Options{Client: c, Now: func() time.Time { return now }, Tell: func(n *corev1.Node, e upgrade.Event) { told = append(told, string(n.UID)+" "+e.Message) }})
	plan := &upgrade.Plan{Evict: []upgrade.Removal{{Node: "a", NodeUID: "1", Namespace: "default", Name: "p", UID: "uid-p"}}}

	for _, pause := range []time.Duration{1, 2, 4, 8, 15, 15} {
		o, err := r.Remove(t.Context(), plan)
		require.NoError(t, err)
		require.Equal(t, map[string]string{"a": "pod default/p cannot be evicted: The disruption budget web needs 2 healthy pods and has 2 currently"}, o.Blocked)
		require.Equal(t, now.Add(pause*time.Second), o.Next)
		before := tries
		_, err = r.Remove(t.Context(), plan) // too early
		require.NoError(t, err)
		require.Equal(t, before, tries)
		now = o.Next
	}
	require.Equal(t, []string{"1 pod default/p cannot be evicted: The disruption budget web needs 2 healthy pods and has 2 currently; it is tried again until it may"}, told)
	refuse = false
	o, err := r.Remove(t.Context(), plan)
	require.NoError(t, err)
	require.Equal(t, Outcome{Blocked: map[string]string{}}, o)
	require.True(t, apierrors.IsNotFound(c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "p"}, &corev1.Pod{})))
	_, err = r.Remove(t.Context(), plan) // it has gone
	require.NoError(t, err)
}

func TestAPodIsForgottenWithItsPlan(t *testing.T) {
	c := newClient(interceptor.Funcs{SubResourceCreate: func(context.Context, client.Client, string, client.Object, client.Object, ...client.SubResourceCreateOption) error {
		return apierrors.NewInternalError(errors.New("this pod has more than one PodDisruptionBudget"))
	}}, pod("p", "a"))
	r := start(t, Options{Client: c})
	o, err := r.Remove(t.Context(), &upgrade.Plan{Evict: []upgrade.Removal{{Node: "a", Namespace: "default", Name: "p", UID: "uid-p"}}})
	require.NoError(t, err)
	require.Contains(t, o.Blocked["a"], "more than one PodDisruptionBudget")
	o, err = r.Remove(t.Context(), &upgrade.Plan{})
	require.NoError(t, err)
	require.Empty(t, o.Blocked)
	require.Empty(t, r.refused)
}

func TestADriverPodIsDeletedByItsUID(t *testing.T) {
	var uids []types.UID
	var failure error
	c := newClient(interceptor.Funcs{Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
		var applied client.DeleteOptions
		applied.ApplyOptions(opts)
		uids = append(uids, *applied.Preconditions.UID)
		if failure != nil {
			return failure
		}
		return c.Delete(ctx, o)
	}}, pod("driver", "a"))
	r := start(t, Options{Client: c})
	plan := &upgrade.Plan{Delete: []upgrade.Removal{{Node: "a", Namespace: "default", Name: "driver", UID: "uid-driver"}}}
	failure = apierrors.NewForbidden(corev1.Resource("pods"), "driver", errors.New("no"))
	_, err := r.Remove(t.Context(), plan)
	require.ErrorContains(t, err, "driver pod default/driver on node a cannot be deleted")
	failure = apierrors.NewConflict(corev1.Resource("pods"), "driver", errors.New("the UID is another"))
	_, err = r.Remove(t.Context(), plan)
	require.NoError(t, err)
	failure = nil
	for range 2 {
		_, err = r.Remove(t.Context(), plan)
		require.NoError(t, err)
	}
	require.Equal(t, []types.UID{"uid-driver", "uid-driver", "uid-driver", "uid-driver"}, uids)
}

func TestPodsOfNodesInFlightAreKnown(t *testing.T) {
	c := newClient(interceptor.Funcs{}, pod("p", "a"), pod("q", "b"))
	changes := make(chan struct{}, 100)
	r := start(t, Options{Client: c, Changed: func() { changes <- struct{}{} }})
	plan := &upgrade.Plan{Watch: []string{"a"}}
	_, err := r.Remove(t.Context(), plan)
	require.NoError(t, err)
	<-changes
	known := r.Pods()
	require.Len(t, known, 1)
	require.Equal(t, "p", known["a"][0].Name)

	// This API server's watches begin when they begin: it may have to be said twice.
	created := pod("r", "a")
	require.NoError(t, c.Create(t.Context(), created))
	require.Eventually(t, func() bool {
		require.NoError(t, c.Patch(t.Context(), created.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"`+rand.Text()+`"}}}`))))
		return len(r.Pods()["a"]) == 2
	}, time.Minute, 5*time.Millisecond)
	require.NoError(t, c.Delete(t.Context(), pod("p", "a")))
	require.Eventually(t, func() bool { known := r.Pods()["a"]; return len(known) == 1 && known[0].Name == "r" }, time.Minute, 5*time.Millisecond)

	_, err = r.Remove(t.Context(), &upgrade.Plan{Watch: []string{"b"}})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(r.Pods()["b"]) == 1 }, time.Minute, 5*time.Millisecond)
	require.NotContains(t, r.Pods(), "a")
}

func TestPodsThatCannotBeListedAreNotKnown(t *testing.T) {
	failed := make(chan struct{}, 100)
	c := newClient(interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
		failed <- struct{}{}
		return errors.New("the API server is away")
	}})
	r := start(t, Options{Client: c})
	_, err := r.Remove(t.Context(), &upgrade.Plan{Watch: []string{"a"}})
	require.NoError(t, err)
	<-failed
	require.Empty(t, r.Pods())
}

func TestAMissingRightIsAnErrorAndNoRefusalOfThePods(t *testing.T) {
	denied := func(verb, resource string) error {
		return apierrors.NewForbidden(corev1.Resource(resource), "p", errors.New(`User "u" cannot `+verb+` resource "`+resource+`" in API group "" in the namespace "default"`))
	}
	var mu sync.Mutex
	refused := true
	may := func() bool { mu.Lock(); defer mu.Unlock(); return !refused }
	c := newClient(interceptor.Funcs{
		SubResourceCreate: func(context.Context, client.Client, string, client.Object, client.Object, ...client.SubResourceCreateOption) error {
			return denied("create", "pods/eviction")
		},
		List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			if !may() {
				return denied("list", "pods")
			}
			return c.List(ctx, l, opts...)
		},
	}, pod("p", "a"))
	changed := make(chan struct{}, 100)
	r := start(t, Options{Client: c, Changed: func() { changed <- struct{}{} }})
	watch := &upgrade.Plan{Watch: []string{"a"}}
	_, _ = r.Remove(t.Context(), watch) // it begins the list, and may already say how that ended
	<-changed
	_, err := r.Remove(t.Context(), watch)
	require.ErrorContains(t, err, `pods of node a cannot be listed`)
	mu.Lock()
	refused = false
	mu.Unlock()
	require.Eventually(t, func() bool { _, err := r.Remove(t.Context(), watch); return err == nil }, time.Minute, 10*time.Millisecond, "until the right is back")

	plan := &upgrade.Plan{Evict: []upgrade.Removal{{Node: "a", NodeUID: "1", Namespace: "default", Name: "p", UID: "uid-p"}}}
	for range 2 { // also while it is too early to try again
		o, err := r.Remove(t.Context(), plan)
		require.ErrorContains(t, err, `pod default/p cannot be evicted: pods/eviction "p" is forbidden`)
		require.Contains(t, o.Blocked["a"], "the operator may not create pods/eviction in namespace default: install its roles again")
	}
}
