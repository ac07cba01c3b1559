package lead

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

const (
	lasts = time.Minute
	renew = 10 * time.Second
)

var key = client.ObjectKey{Namespace: "n", Name: "lease"}

// cluster is an API server, and the operators that it knows.
type cluster struct {
	t      *testing.T
	client client.WithWatch
	mu     sync.Mutex
	works  []string // who began, and who ended, in their order
	done   sync.WaitGroup
}

func newCluster(t *testing.T, funcs interceptor.Funcs) *cluster {
	scheme, err := Scheme()
	require.NoError(t, err)
	require.NoError(t, appsv1.AddToScheme(scheme))
	byName := func(o client.Object) []string { return []string{o.GetName()} }
	c := &cluster{t: t, client: fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(funcs).
		WithIndex(&corev1.Pod{}, "metadata.name", byName).WithIndex(&appsv1.Deployment{}, "metadata.name", byName).WithIndex(&coordinationv1.Lease{}, "metadata.name", byName).Build()}
	t.Cleanup(c.done.Wait)
	return c
}

// process is a running operator.
type process struct {
	lock *Lock
	kill func() // at once: it gives nothing up
	end  func() // as SIGTERM
}

// run runs an operator in a pod that is there, or in none.
func (c *cluster) run(name string, pod Pod) *process {
	lock := New(Options{Client: c.client, Lease: key, Pod: pod, Host: name, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(c.t.Context())
	c.t.Cleanup(cancel)
	p := &process{lock: lock, end: cancel}
	cut := &severed{WithWatch: c.client}
	lock.Client = cut
	p.kill = func() { cut.yes.Store(true); cancel() }
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: lasts, RenewDeadline: 40 * time.Second, RetryPeriod: renew, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { c.say(name + " works") },
			OnStoppedLeading: func() { c.say(name + " ended") },
		},
	})
	require.NoError(c.t, err)
	c.done.Go(func() { elector.Run(ctx) })
	c.done.Go(func() {
		if err := lock.Hold(ctx); err != nil {
			c.say(name + ": " + err.Error())
			cancel()
		}
	})
	synctest.Wait()
	return p
}

func (c *cluster) say(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.works = append(c.works, what)
}

// said is what happened since it was asked last.
func (c *cluster) said() []string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	said := c.works
	c.works = nil
	return said
}

func (c *cluster) pod(name string) Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "gpu-operator"}}},
		Status:     corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}},
	}
	require.NoError(c.t, c.client.Create(c.t.Context(), pod))
	return Pod{name, string(pod.UID)}
}

// ends has the kubelet say that a pod's container ended some time ago.
func (c *cluster) ends(p Pod, ago time.Duration, restarted bool) {
	pod := &corev1.Pod{}
	require.NoError(c.t, c.client.Get(c.t.Context(), client.ObjectKey{Namespace: key.Namespace, Name: p.Name}, pod))
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, FinishedAt: metav1.NewTime(time.Now().Add(-ago))}}
	status := corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}, LastTerminationState: ended}
	if restarted {
		status.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{status}
	require.NoError(c.t, c.client.Status().Update(c.t.Context(), pod))
}

func (c *cluster) remove(p Pod) {
	require.NoError(c.t, c.client.Delete(c.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: p.Name}}))
}

// world plays in a bubble of its own time.
func world(t *testing.T, play func(*testing.T, *cluster)) {
	synctest.Test(t, func(t *testing.T) { play(t, newCluster(t, interceptor.Funcs{})) })
}

func TestOneThatEndsIsFollowedAtOnce(t *testing.T) {
	world(t, func(t *testing.T, c *cluster) {
		a := c.run("a", c.pod("a"))
		require.Equal(t, []string{"a works"}, c.said())
		c.run("b", c.pod("b"))
		time.Sleep(3 * time.Minute)
		require.Empty(t, c.said(), "a renews the Lease")
		began := time.Now()
		a.end()
		require.ElementsMatch(t, []string{"a ended", "b works"}, c.said())
		require.Zero(t, time.Since(began))
	})
}

func TestAContainerThatWasKilledIsFollowedByTheNextOfItsPod(t *testing.T) {
	world(t, func(t *testing.T, c *cluster) {
		pod := c.pod("a")
		a := c.run("a1", pod)
		require.Equal(t, []string{"a1 works"}, c.said())
		a.kill()
		require.Equal(t, []string{"a1 ended"}, c.said())
		began := time.Now()
		c.run("a2", pod)
		require.Equal(t, []string{"a2 works"}, c.said())
		require.Zero(t, time.Since(began))
	})
}

func TestAPodThatIsGoneIsFollowedWhenWhatItSentHasArrived(t *testing.T) {
	world(t, func(t *testing.T, c *cluster) {
		pod := c.pod("a")
		a := c.run("a", pod)
		c.run("b", c.pod("b"))
		time.Sleep(3 * time.Second)
		a.kill()
		require.Equal(t, []string{"a works", "a ended"}, c.said())
		c.remove(pod)
		time.Sleep(Flight - time.Millisecond)
		require.Empty(t, c.said())
		time.Sleep(2 * time.Millisecond)
		require.Equal(t, []string{"b works"}, c.said())
	})
}

func TestOneWhosePodIsGoneWorksNoMore(t *testing.T) {
	world(t, func(t *testing.T, c *cluster) {
		pod := c.pod("a")
		c.run("a", pod)
		require.Equal(t, []string{"a works"}, c.said())
		c.remove(pod)
		require.Equal(t, []string{"a: the pod n/a (uid-a) is gone: this operator works no more", "a ended"}, c.said())
	})
}

func TestAPodOfTheSameNameIsAnother(t *testing.T) {
	world(t, func(t *testing.T, c *cluster) {
		pod := c.pod("a")
		a := c.run("a", pod)
		require.Equal(t, []string{"a works"}, c.said())
		a.kill()
		c.said()
		c.remove(pod)
		require.NoError(t, c.client.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "a", UID: "other"}}))
		c.run("b", c.pod("b"))
		time.Sleep(Flight + time.Millisecond)
		require.Equal(t, []string{"b works"}, c.said())
	})
}

func TestTheKubeletSaysThatAContainerHasEnded(t *testing.T) {
	for name, say := range map[string]struct {
		ago       time.Duration
		restarted bool
		follows   bool
	}{
		"since it renewed the Lease": {ago: time.Second, follows: true},
		"before it renewed it":       {ago: 10 * time.Second},
		"and runs again":             {ago: time.Second, restarted: true},
	} {
		t.Run(name, func(t *testing.T) {
			world(t, func(t *testing.T, c *cluster) {
				pod := c.pod("a")
				a := c.run("a", pod)
				c.run("b", c.pod("b"))
				time.Sleep(renew + 5*time.Second)
				a.kill()
				require.Equal(t, []string{"a works", "a ended"}, c.said())
				c.ends(pod, say.ago, say.restarted)
				if say.follows {
					require.Equal(t, []string{"b works"}, c.said())
					return
				}
				require.Empty(t, c.said())
				time.Sleep(lasts)
				require.Equal(t, []string{"b works"}, c.said(), "as it is not renewed")
			})
		})
	}
}

func TestOneOfWhichNothingIsHeardHoldsTheLeaseUntilItsTimeIsOver(t *testing.T) {
	for name, pod := range map[string]bool{"in a pod": true, "on a desk": false} {
		t.Run(name, func(t *testing.T) {
			world(t, func(t *testing.T, c *cluster) {
				var where Pod
				if pod {
					where = c.pod("a")
				}
				a := c.run("a", where)
				a.kill()
				require.Equal(t, []string{"a works", "a ended"}, c.said())
				c.run("b", c.pod("b"))
				time.Sleep(lasts - time.Second)
				require.Empty(t, c.said())
				time.Sleep(2 * time.Second)
				require.Equal(t, []string{"b works"}, c.said())
			})
		})
	}
}

func TestOneThatLostTheLeaseWorksNoMoreAndDoesNotGiveItUp(t *testing.T) {
	world(t, func(t *testing.T, c *cluster) {
		c.run("a", c.pod("a"))
		require.Equal(t, []string{"a works"}, c.said())
		var lease coordinationv1.Lease
		require.NoError(t, c.client.Get(t.Context(), key, &lease))
		other := "somebody else"
		lease.Spec.HolderIdentity = &other
		require.NoError(t, c.client.Update(t.Context(), &lease))
		time.Sleep(renew + time.Second)
		require.Equal(t, []string{"a: the Lease n/lease was taken by somebody else: this operator works no more", "a ended"}, c.said())
		require.NoError(t, c.client.Get(t.Context(), key, &lease))
		require.Equal(t, other, *lease.Spec.HolderIdentity)
	})
}

// A container of the holder's pod may start between the look at the pod and the Update.
func TestWhoTakesTheLeaseMeanwhileKeepsIt(t *testing.T) {
	for name, givesUp := range map[string]bool{"and works": false, "unless it gives it up": true} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { meanwhile(t, givesUp) }) })
	}
}

func meanwhile(t *testing.T, givesUp bool) {
	var again func()
	c := newCluster(t, interceptor.Funcs{List: func(ctx context.Context, w client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		err := w.List(ctx, list, opts...)
		if again != nil {
			do := again
			again = nil
			do()
		}
		return err
	}})
	pod := c.pod("a")
	a := c.run("a1", pod)
	time.Sleep(5 * time.Second)
	a.kill()
	require.Equal(t, []string{"a1 works", "a1 ended"}, c.said())
	c.ends(pod, time.Second, false)
	second := New(Options{Client: c.client, Lease: key, Pod: pod, Log: slog.New(slog.DiscardHandler)})
	b := New(Options{Client: c.client, Lease: key, Pod: c.pod("b"), Log: slog.New(slog.DiscardHandler)})
	again = func() {
		record, _, err := second.Get(t.Context())
		require.NoError(t, err)
		require.NoError(t, second.Update(t.Context(), *record))
		if givesUp {
			record.HolderIdentity = ""
			require.NoError(t, second.Update(t.Context(), *record))
		}
	}
	record, _, err := b.Get(t.Context())
	require.NoError(t, err)
	require.Empty(t, record.HolderIdentity, "as it saw it")
	record.HolderIdentity = b.Identity()
	ctx, cancel := context.WithTimeout(t.Context(), renew)
	defer cancel()
	began, want := time.Now(), b.Identity()
	err = b.Update(ctx, *record)
	if givesUp {
		require.NoError(t, err)
		require.Zero(t, time.Since(began))
	} else {
		require.ErrorIs(t, err, context.DeadlineExceeded)
		want = second.Identity()
	}
	var lease coordinationv1.Lease
	require.NoError(t, c.client.Get(t.Context(), key, &lease))
	require.Equal(t, want, *lease.Spec.HolderIdentity)
}

func TestAnAPIServerThatIsAwayIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var away atomic.Bool
		away.Store(true)
		c := newCluster(t, interceptor.Funcs{Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if away.Load() {
				return apierrors.NewServiceUnavailable("it starts")
			}
			return w.Get(ctx, key, o, opts...)
		}})
		c.run("a", Pod{})
		time.Sleep(30*time.Second + pause/2)
		require.Empty(t, c.said())
		away.Store(false)
		time.Sleep(pause)
		require.Equal(t, []string{"a works"}, c.said())
	})
}

func TestTheLeaseGoesWithTheDeploymentOfItsHolder(t *testing.T) {
	c := newCluster(t, interceptor.Funcs{})
	create := func(pod Pod) ([]metav1.OwnerReference, error) {
		lock := New(Options{Client: c.client, Lease: key, Pod: pod, Deployment: "gpu-operator", Log: slog.New(slog.DiscardHandler)})
		err := lock.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: lock.Identity(), LeaseDurationSeconds: 60})
		lease := &coordinationv1.Lease{}
		if err == nil {
			require.NoError(t, c.client.Get(t.Context(), key, lease))
			require.NoError(t, c.client.Delete(t.Context(), lease))
		}
		return lease.OwnerReferences, err
	}
	of := func(pod Pod, set string) Pod {
		object := &corev1.Pod{}
		require.NoError(t, c.client.Get(t.Context(), client.ObjectKey{Namespace: key.Namespace, Name: pod.Name}, object))
		object.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: set, UID: "set", Controller: new(true)}}
		require.NoError(t, c.client.Update(t.Context(), object))
		return pod
	}
	pod := of(c.pod("a"), "gpu-operator-86f678dbdc")
	_, err := create(pod)
	require.ErrorContains(t, err, "Deployment n/gpu-operator is gone")

	deployment := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "gpu-operator", UID: "deployment"}}
	deployment.SetGroupVersionKind(deploymentKind)
	require.NoError(t, c.client.Create(t.Context(), &appsv1.Deployment{ObjectMeta: deployment.ObjectMeta}))
	owners, err := create(pod)
	require.NoError(t, err)
	require.Equal(t, []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "gpu-operator", UID: "deployment"}}, owners)

	for _, other := range []Pod{{}, c.pod("alone"), of(c.pod("b"), "another-7d4f")} {
		owners, err := create(other)
		require.NoError(t, err)
		require.Empty(t, owners, "%v is of no such Deployment", other)
	}
}
