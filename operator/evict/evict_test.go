package evict

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/upgrade"
	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func pod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{NodeName: node},
	}
}

func newClient(funcs interceptor.Funcs, objects ...client.Object) client.WithWatch {
	kinds := meta.NewDefaultRESTMapper([]schema.GroupVersion{resourcev1.SchemeGroupVersion, corev1.SchemeGroupVersion})
	kinds.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	kinds.Add(resourcev1.SchemeGroupVersion.WithKind("ResourceClaim"), meta.RESTScopeNamespace)
	return fake.NewClientBuilder().WithScheme(scheme.Scheme).WithRESTMapper(kinds).WithObjects(objects...).WithInterceptorFuncs(funcs).
		WithIndex(&corev1.Pod{}, nodeName, func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).Build()
}

// fakeRemover is an API server with configured responses to requests to remove pods.
type fakeRemover struct {
	mu       sync.Mutex
	response func(ctx context.Context, pod upgrade.Removal, nth int) error // of the nth request for a pod
	requests map[string][]time.Time                                        // by the pod's name
}

func (a *fakeRemover) Evict(ctx context.Context, pod upgrade.Removal) error {
	return a.respond(ctx, pod)
}

func (a *fakeRemover) Delete(ctx context.Context, pod upgrade.Removal) error {
	return a.respond(ctx, pod)
}

func (a *fakeRemover) respond(ctx context.Context, pod upgrade.Removal) error {
	a.mu.Lock()
	if a.requests == nil {
		a.requests = map[string][]time.Time{}
	}
	a.requests[pod.Name] = append(a.requests[pod.Name], time.Now())
	nth := len(a.requests[pod.Name])
	a.mu.Unlock()
	return a.response(ctx, pod, nth)
}

// requestTimes returns when requests for a pod were made, in seconds since a time.
func (a *fakeRemover) requestTimes(name string, since time.Time) (seconds []float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, at := range a.requests[name] {
		seconds = append(seconds, at.Sub(since).Seconds())
	}
	return seconds
}

func planned(name, node string) upgrade.Removal {
	return upgrade.Removal{Node: node, NodeUID: "uid-" + node, Namespace: "default", Name: name, UID: "uid-" + name}
}

// start starts an Evictor and returns a function that stops it.
func start(o Options) (r *Evictor, end func()) {
	if o.Changed == nil {
		o.Changed = func() {}
	}
	r = New(o)
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = r.Start(ctx) })
	return r, func() { cancel(); done.Wait() }
}

func anyNode(string) bool { return false }

func budget() error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget web needs 2 healthy pods and has 2 currently"})
	return err
}

func TestRefusedEvictionIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuse := true
		var mu sync.Mutex
		api := &fakeRemover{response: func(ctx context.Context, _ upgrade.Removal, _ int) error {
			mu.Lock()
			defer mu.Unlock()
			until, ok := ctx.Deadline()
			if !ok || time.Until(until) > time.Minute {
				t.Error("a request without a deadline")
			}
			if refuse {
				return budget()
			}
			return nil
		}}
		var told []string
		changes := 0
		r, end := start(Options{Remover: api, Changed: func() { changes++ }, RecordEvent: func(n *corev1.Node, e upgrade.Event) { told = append(told, string(n.UID)+" "+e.Message) }})
		defer end()
		plan := &upgrade.Plan{Evict: []upgrade.Removal{planned("p", "a")}}
		began := time.Now()
		require.Empty(t, r.Remove(plan, anyNode).Blocked, "it does not wait for an answer")
		const why = "pod default/p cannot be evicted: The disruption budget web needs 2 healthy pods and has 2 currently"
		for range 60 {
			time.Sleep(time.Second)
			synctest.Wait()
			require.Equal(t, map[string]string{"a": why}, r.Remove(plan, anyNode).Blocked)
		}
		require.Equal(t, []float64{0, 1, 3, 7, 15, 30, 45, 60}, api.requestTimes("p", began))
		require.Equal(t, []string{"uid-a " + why + "; retrying until it is allowed"}, told)
		require.Equal(t, 1, changes, "the same is not said twice")
		mu.Lock()
		refuse = false
		mu.Unlock()
		time.Sleep(15 * time.Second)
		synctest.Wait()
		require.Empty(t, r.Remove(plan, anyNode).Blocked)
		require.Equal(t, 2, changes)
		r.Remove(&upgrade.Plan{}, anyNode)
		require.Empty(t, r.removals, "a pod is forgotten with its plan")
	})
}

// A pod that is slow, refused or deferred delays no other: every other pod is requested at
// once, and again after its own back-off.
func TestWhateverTheAnswersForOnePodAreOthersAreNotDelayed(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		kinds := rapid.SliceOfN(rapid.SampledFrom([]string{"slow", "hangs", "budget", "later", "forbidden", "conflict", "gone", "broken"}), 1, 100).Draw(r, "the others' answers")
		good := rapid.IntRange(1, 20).Draw(r, "pods that may go")
		var problem string
		synctest.Test(t, func(*testing.T) { problem = delayedPod(kinds, good) })
		if problem != "" {
			r.Fatal(problem)
		}
	})
}

// delayedPod removes pods for a minute and a half, some of them with other responses than
// success, and names a pod that was not requested in time.
func delayedPod(kinds []string, good int) (problem string) {
	api := &fakeRemover{response: func(ctx context.Context, pod upgrade.Removal, _ int) error {
		var kind int
		if n, _ := fmt.Sscanf(pod.Name, "bad-%d", &kind); n == 0 {
			return nil
		}
		switch kinds[kind] {
		case "slow":
			time.Sleep(10 * time.Second)
			return nil
		case "hangs":
			<-ctx.Done()
			return ctx.Err()
		case "budget":
			return budget()
		case "later":
			return apierrors.NewTooManyRequests("later", 60)
		case "forbidden":
			return apierrors.NewForbidden(corev1.Resource("pods"), "p", errors.New("no"))
		case "conflict":
			return apierrors.NewConflict(corev1.Resource("pods"), "p", errors.New("another"))
		case "gone":
			return apierrors.NewNotFound(corev1.Resource("pods"), "p")
		}
		return errors.New("connection refused")
	}}
	r, end := start(Options{Remover: api})
	defer end()
	plan := &upgrade.Plan{}
	for i := range kinds {
		plan.Evict = append(plan.Evict, planned(fmt.Sprint("bad-", i), "a"))
	}
	for i := range good {
		plan.Evict = append(plan.Evict, planned(fmt.Sprint("good-", i), "b"))
	}
	began := time.Now()
	for range 90 {
		r.Remove(plan, anyNode)
		time.Sleep(time.Second)
	}
	synctest.Wait()
	for i := range good {
		if got := api.requestTimes(fmt.Sprint("good-", i), began); len(got) == 0 || got[0] != 0 {
			return fmt.Sprintf("good-%d was asked for after %v s", i, got)
		}
	}
	for i, kind := range kinds {
		want := map[string][]float64{"slow": {0, 25, 50, 75}, "hangs": {0, 36, 73}, "later": {0, 60}}[kind]
		if want == nil {
			want = []float64{0, 1, 3, 7, 15, 30, 45, 60, 75}
		}
		got := api.requestTimes(fmt.Sprint("bad-", i), began)
		if got = got[:min(len(got), len(want))]; fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Sprintf("bad-%d (%s) was asked for after %v s, not %v", i, kind, got, want)
		}
	}
	return ""
}

// A removal that is no longer wanted is not requested again. A running request is not
// cancelled: the API server may have carried out half of it.
func TestUnwantedRemovalIsNotRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := false
		api := &fakeRemover{response: func(ctx context.Context, _ upgrade.Removal, _ int) error {
			select {
			case <-ctx.Done():
				ended = true
				return ctx.Err()
			case <-time.After(10 * time.Second):
				return nil
			}
		}}
		r, end := start(Options{Remover: api, RecordEvent: func(*corev1.Node, upgrade.Event) { t.Error("an Event") }})
		defer end()
		began := time.Now()
		plan := &upgrade.Plan{Evict: []upgrade.Removal{planned("p", "a")}}
		r.Remove(plan, func(node string) bool { return node == "a" })
		synctest.Wait()
		require.Empty(t, api.requestTimes("p", began), "its Node is being written")
		r.Remove(plan, anyNode)
		synctest.Wait()
		require.Len(t, api.requestTimes("p", began), 1)
		r.Remove(plan, func(string) bool { return true })
		synctest.Wait()
		r.Remove(&upgrade.Plan{}, anyNode)
		time.Sleep(time.Hour)
		require.Len(t, api.requestTimes("p", began), 1)
		require.Empty(t, r.removals)
		require.False(t, ended)
	})
}

func TestLostLeadershipEndsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeRemover{response: func(ctx context.Context, _ upgrade.Removal, _ int) error { <-ctx.Done(); return ctx.Err() }}
		r, end := start(Options{Remover: api})
		plan := &upgrade.Plan{}
		for i := range 300 {
			plan.Evict = append(plan.Evict, planned(fmt.Sprint("p", i), "a"))
		}
		began := time.Now()
		r.Remove(plan, anyNode)
		synctest.Wait()
		require.Len(t, api.requests, maxRequests)
		end()
		require.Zero(t, time.Since(began))
	})
}

// A driver pod that cannot be deleted is retried with its own back-off, and after a while its
// node yields its turn. The failure stays recorded.
func TestUndeletableDriverPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeRemover{response: func(_ context.Context, pod upgrade.Removal, _ int) error {
			if pod.Name == "bad" {
				return apierrors.NewForbidden(corev1.Resource("pods"), "bad", errors.New("a webhook says no"))
			}
			return nil
		}}
		r, end := start(Options{Remover: api})
		defer end()
		began := time.Now()
		plan := &upgrade.Plan{Delete: []upgrade.Removal{planned("bad", "a"), planned("good", "b")}}
		r.Remove(plan, anyNode)
		time.Sleep(100 * time.Second)
		o := r.Remove(plan, anyNode)
		require.ErrorContains(t, o.Err, "driver pod default/bad on node a cannot be deleted")
		require.Contains(t, o.Blocked["a"], "a webhook says no")
		require.Empty(t, o.Stuck)
		require.Equal(t, []float64{0, 1, 3, 7, 15, 30, 45, 60, 75, 90}, api.requestTimes("bad", began))
		time.Sleep(40 * time.Second)
		o = r.Remove(&upgrade.Plan{}, anyNode) // the plan yields the turn to another node
		require.Equal(t, began, o.Stuck["uid-bad"].Since)
		asked := len(api.requestTimes("bad", began))
		time.Sleep(5 * time.Minute)
		require.Len(t, api.requestTimes("bad", began), asked)
		require.Len(t, r.Remove(plan, anyNode).Stuck, 1, "it is known when it is tried again")
		synctest.Wait()
		require.Len(t, api.requestTimes("bad", began), asked+1)
		waits := &upgrade.Plan{Unwritten: []upgrade.Failure{{Node: "a"}}}
		r.Remove(waits, anyNode)
		time.Sleep(2 * time.Hour)
		r.Remove(waits, anyNode)
		require.Len(t, r.Remove(waits, anyNode).Stuck, 1, "it has no turn, however long")
		r.Remove(&upgrade.Plan{}, anyNode)
		require.Empty(t, r.removals)
	})
}

func TestPodsOfNodesInFlightAreKnown(t *testing.T) {
	c := newClient(interceptor.Funcs{}, pod("p", "a"), pod("q", "b"))
	changes := make(chan struct{}, 100)
	r, end := start(Options{Client: c, Changed: func() { changes <- struct{}{} }})
	defer end()
	plan := &upgrade.Plan{Watch: []string{"a"}}
	r.Remove(plan, anyNode)
	<-changes
	known := r.Pods()
	require.Len(t, known, 1)
	require.Equal(t, "p", known["a"][0].Name)

	// Watches of this API server start with a delay: the event may have to be sent twice.
	created := pod("r", "a")
	require.NoError(t, c.Create(t.Context(), created))
	require.Eventually(t, func() bool {
		require.NoError(t, c.Patch(t.Context(), created.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"`+rand.Text()+`"}}}`))))
		return len(r.Pods()["a"]) == 2
	}, time.Minute, 5*time.Millisecond)
	require.NoError(t, c.Delete(t.Context(), pod("p", "a")))
	require.Eventually(t, func() bool { known := r.Pods()["a"]; return len(known) == 1 && known[0].Name == "r" }, time.Minute, 5*time.Millisecond)

	r.Remove(&upgrade.Plan{Watch: []string{"b"}}, anyNode)
	require.Eventually(t, func() bool { return len(r.Pods()["b"]) == 1 }, time.Minute, 5*time.Millisecond)
	require.NotContains(t, r.Pods(), "a")
}

func claim(name, driver string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	if driver != "" {
		c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{Request: "a", Driver: "net.example.com", Pool: "p", Device: "d"}, {Request: "b", Driver: driver, Pool: "p", Device: "d"},
		}}}
	}
	return c
}

func TestPodsThatHaveGPUsByClaimsAreKnown(t *testing.T) {
	named := pod("named", "a")
	named.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x", ResourceClaimName: new("gpu")}}
	template := pod("template", "a")
	template.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x", ResourceClaimTemplateName: new("t")}}
	template.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "x", ResourceClaimName: new("made")}}
	extended := pod("extended", "a")
	extended.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "extended"}
	channel := pod("channel", "a")
	channel.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x", ResourceClaimName: new("channel")}}
	other := pod("other", "a")
	other.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x", ResourceClaimName: new("nic")}, {Name: "y", ResourceClaimName: new("deleted")}, {Name: "z", ResourceClaimName: new("pending")}}
	c := newClient(interceptor.Funcs{}, named, template, extended, channel, other,
		claim("gpu", "gpu.nvidia.com"), claim("made", "gpu.nvidia.com"), claim("extended", "gpu.gpuready.io"), claim("channel", "compute-domain.nvidia.com"), claim("nic", "nic.example.com"), claim("pending", ""))
	changes := make(chan struct{}, 100)
	r, end := start(Options{Client: c, Changed: func() { changes <- struct{}{} }})
	defer end()
	r.Remove(&upgrade.Plan{Watch: []string{"a"}}, anyNode)
	<-changes
	gpu := map[string]bool{}
	for _, p := range r.Pods()["a"] {
		gpu[p.Name] = p.GPU
	}
	require.Equal(t, map[string]bool{"named": true, "template": true, "extended": true, "channel": true, "other": false}, gpu)
}

// Another claim may use a claim's name later: the result belongs to the pod's use of it.
func TestClaimOfTheSameNameIsReadAgain(t *testing.T) {
	using := func(name string) *corev1.Pod {
		p := pod(name, "a")
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x", ResourceClaimName: new("x")}}
		return p
	}
	c := newClient(interceptor.Funcs{}, claim("x", "nic.example.com"))
	f := &follower{node: "a", claims: map[claimUse]bool{}}
	first, err := f.observe(t.Context(), c, using("first"))
	require.NoError(t, err)
	require.False(t, first.GPU)
	require.NoError(t, c.Delete(t.Context(), claim("x", "")))
	require.NoError(t, c.Create(t.Context(), claim("x", "gpu.nvidia.com")))
	second, err := f.observe(t.Context(), c, using("second"))
	require.NoError(t, err)
	require.True(t, second.GPU)
}

// Labels make a pod this product's in its namespaces only.
func TestPodsOfThisProductAreKnownByTheirNamespaces(t *testing.T) {
	product := map[string]string{label.PartOf: label.Product}
	ours, others := pod("ours", "a"), pod("others", "a")
	ours.Namespace, ours.Labels, others.Labels = "operands", product, product
	changes := make(chan struct{}, 100)
	r, end := start(Options{Client: newClient(interceptor.Funcs{}, ours, others), Namespaces: []string{"operator", "operands"}, Changed: func() { changes <- struct{}{} }})
	defer end()
	r.Remove(&upgrade.Plan{Watch: []string{"a"}}, anyNode)
	<-changes
	own := map[string]bool{}
	for _, p := range r.Pods()["a"] {
		own[p.Name] = p.Own
	}
	require.Equal(t, map[string]bool{"ours": true, "others": false}, own)
}

func TestUnlistablePodsAreUnknown(t *testing.T) {
	failed := make(chan struct{}, 100)
	c := newClient(interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
		failed <- struct{}{}
		return errors.New("the API server is away")
	}})
	r, end := start(Options{Client: c})
	defer end()
	require.NoError(t, r.Remove(&upgrade.Plan{Watch: []string{"a"}}, anyNode).Err)
	<-failed
	require.Empty(t, r.Pods())
}

func denied(verb, resource, group string) error {
	return apierrors.NewForbidden(corev1.Resource(resource), "p", errors.New(`User "u" cannot `+verb+` resource "`+resource+`" in API group "`+group+`" in the namespace "default"`))
}

func TestMissingPermissionIsAnErrorNotABlockedPod(t *testing.T) {
	var mu sync.Mutex
	missing := map[string]bool{"list": true, "get": true}
	may := func(verb string) bool { mu.Lock(); defer mu.Unlock(); return !missing[verb] }
	give := func(verb string) { mu.Lock(); defer mu.Unlock(); delete(missing, verb) }
	one := pod("p", "a")
	one.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x", ResourceClaimName: new("gpu")}}
	c := newClient(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			if !may("list") {
				return denied("list", "pods", "")
			}
			return c.List(ctx, l, opts...)
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if !may("get") {
				return denied("get", "resourceclaims", "resource.k8s.io")
			}
			return c.Get(ctx, key, o, opts...)
		},
	}, one, claim("gpu", "gpu.nvidia.com"))
	api := &fakeRemover{response: func(context.Context, upgrade.Removal, int) error { return denied("create", "pods/eviction", "") }}
	r, end := start(Options{Client: c, Remover: api})
	defer end()
	watch := &upgrade.Plan{Watch: []string{"a"}}
	says := func(text string) {
		require.Eventually(t, func() bool {
			err := r.Remove(watch, anyNode).Err
			return err != nil && len(text) > 0 && strings.Contains(err.Error(), text)
		}, time.Minute, 10*time.Millisecond, text)
	}
	says("pods of node a cannot be listed")
	give("list")
	says("ResourceClaim default/gpu of pod p on node a")
	require.Empty(t, r.Pods(), "a pod that may have a GPU")
	give("get")
	require.Eventually(t, func() bool { return r.Remove(watch, anyNode).Err == nil && len(r.Pods()) == 1 }, time.Minute, 10*time.Millisecond, "until the rights are back")

	plan := &upgrade.Plan{Evict: []upgrade.Removal{planned("p", "a")}}
	require.Eventually(t, func() bool { return r.Remove(plan, anyNode).Err != nil }, time.Minute, 10*time.Millisecond)
	o := r.Remove(plan, anyNode)
	require.ErrorContains(t, o.Err, `pod default/p cannot be evicted: pods/eviction "p" is forbidden`)
	require.Contains(t, o.Blocked["a"], "the operator may not create pods/eviction in namespace default: install its roles again")
}
