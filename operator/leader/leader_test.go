package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

const deployment, formerDeployment = label.Deployment, label.NVIDIADeployment

// nextTry bounds the time between two attempts of a standby: client-go adds up to 1.2 times the
// period to it.
const nextTry = 5 * time.Second

var key = client.ObjectKey{Namespace: Namespace, Name: Name}

// cluster is an API server with its operators.
type cluster struct {
	*testing.T
	client.WithWatch
	mu        sync.Mutex
	events    []string          // what happened
	acting    map[*process]bool // operators whose writes would reach the API server now
	overlap   string            // the first moment at which two acted
	processes []*process
	done      sync.WaitGroup
	serial    int
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	scheme, err := Scheme()
	require.NoError(t, err)
	byName := func(o client.Object) []string { return []string{o.GetName()} }
	c := &cluster{T: t, acting: map[*process]bool{}, WithWatch: fake.NewClientBuilder().WithScheme(scheme).
		WithIndex(&appsv1.Deployment{}, "metadata.name", byName).Build()}
	crd := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: policyCRD, UID: "crd"}}
	crd.SetGroupVersionKind(crdKind)
	require.NoError(t, c.Create(t.Context(), crd))
	t.Cleanup(c.done.Wait)
	return c
}

// install creates the Deployment of an installation.
func (c *cluster) install(namespace string) { c.installAs(namespace, deployment) }

func (c *cluster) installAs(namespace, name string) {
	c.Helper()
	c.serial++
	require.NoError(c, c.Create(c.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(fmt.Sprint("d", c.serial)), Labels: map[string]string{label.PartOf: label.Product},
	}}))
}

func (c *cluster) uninstall(namespace string) {
	c.Helper()
	require.NoError(c, c.Delete(c.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: deployment}}))
}

// link is a process's connection to the API server.
type link struct {
	client.WithWatch
	process *process
}

var errAway = errors.New("no answer")

func (l link) check(ctx context.Context) error {
	switch {
	case l.process.killed.Load():
		return errAway
	case l.process.away.Load():
		<-ctx.Done() // like an unanswered packet
		return ctx.Err()
	}
	return nil
}

func (l link) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if err := l.check(ctx); err != nil {
		return err
	}
	return l.WithWatch.Get(ctx, key, o, opts...)
}

func (l link) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if err := l.check(ctx); err != nil {
		return err
	}
	return l.WithWatch.List(ctx, list, opts...)
}

func (l link) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if err := l.check(ctx); err != nil {
		return err
	}
	o.SetUID(types.UID(fmt.Sprint("lease", l.process.cluster.next())))
	return errors.Join(l.WithWatch.Create(ctx, o, opts...), l.loseResponse())
}

// loseResponse returns an error once if a process should lose the response to a write.
func (l link) loseResponse() error {
	if l.process.lossy.CompareAndSwap(true, false) {
		return errAway
	}
	return nil
}

// Update refuses another object of the name, as API servers do. The fake client compares only
// resourceVersions, which start again with each object.
func (l link) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	if err := l.check(ctx); err != nil {
		return err
	}
	have := &coordinationv1.Lease{}
	if err := l.WithWatch.Get(ctx, client.ObjectKeyFromObject(o), have); err != nil {
		return err
	}
	if have.UID != o.GetUID() {
		return apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, o.GetName(), errors.New("another UID"))
	}
	return errors.Join(l.WithWatch.Update(ctx, o, opts...), l.loseResponse())
}

func (c *cluster) next() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serial++
	return c.serial
}

// process is a running operator that writes continuously.
type process struct {
	cluster      *cluster
	name         string
	elector      *Elector
	ended        chan struct{}
	stop         context.CancelFunc // as SIGTERM
	yield        chan string        // namespaces
	killed, away atomic.Bool
	lossy        atomic.Bool // the answer to its next write is lost
	status       atomic.Pointer[Status]
}

// run starts an operator in a pod of an installation.
func (c *cluster) run(namespace, pod string) *process {
	p := &process{cluster: c, name: namespace + "/" + pod, ended: make(chan struct{}), yield: make(chan string)}
	p.elector = New(Options{
		Client: link{c.WithWatch, p}, Namespace: namespace, Deployment: deployment, FormerDeployment: formerDeployment, Pod: Pod{pod, "uid"},
		Report: func(s Status) { p.status.Store(&s) }, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(c.Context())
	p.stop = cancel
	c.Cleanup(cancel)
	c.processes = append(c.processes, p)
	c.done.Go(func() {
		defer close(p.ended)
		err := p.elector.Run(ctx, func(ctx context.Context) error {
			c.recordEvent(p.name + " leads")
			select {
			case <-ctx.Done():
				return nil
			case namespace := <-p.yield:
				return &YieldTo{namespace}
			}
		})
		if p.killed.Load() {
			return
		}
		if err != nil {
			c.recordEvent(p.name + ": " + err.Error())
		} else {
			c.recordEvent(p.name + " ended")
		}
	})
	c.done.Go(func() {
		writing, stop := context.WithCancel(ctx)
		go func() { <-p.ended; stop() }()
		p.write(writing)
	})
	synctest.Wait()
	return p
}

// write writes continuously, and records when two processes do.
func (p *process) write(ctx context.Context) {
	for ctx.Err() == nil {
		term, err := p.elector.Gate.admit()
		p.cluster.recordActing(p, err == nil && !p.away.Load() && !p.killed.Load())
		if err == nil {
			wait, cancel := context.WithTimeout(term, 500*time.Millisecond)
			<-wait.Done()
			cancel()
			p.cluster.recordActing(p, term.Err() == nil && !p.away.Load() && !p.killed.Load())
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
	p.cluster.recordActing(p, false)
}

func (c *cluster) recordActing(p *process, acts bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.acting[p] = acts; !acts {
		delete(c.acting, p)
	}
	if len(c.acting) > 1 && c.overlap == "" {
		c.overlap = fmt.Sprintf("%d act; %v", len(c.acting), c.events)
	}
}

// actors returns the number of acting processes.
func (c *cluster) actors() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.acting)
}

// kill ends a process at once, without giving up the Lease.
func (p *process) kill() {
	p.killed.Store(true)
	p.stop()
	<-p.ended
}

func (c *cluster) recordEvent(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, what)
}

// takeEvents returns the events since the last call.
func (c *cluster) takeEvents() []string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	told := c.events
	c.events = nil
	return told
}

// expect waits until an operator leads, and returns how long that took.
func (c *cluster) expect(p *process) time.Duration {
	c.Helper()
	began := time.Now()
	for time.Since(began) < time.Hour {
		synctest.Wait()
		if s := p.status.Load(); s != nil && s.Leads {
			return time.Since(began)
		}
		time.Sleep(10 * time.Millisecond)
	}
	c.Fatalf("%s does not lead: %v", p.name, c.takeEvents())
	return 0
}

// awaitEnd waits until an operator has ended.
func (c *cluster) awaitEnd(p *process) {
	c.Helper()
	select {
	case <-p.ended:
	case <-time.After(time.Hour):
		c.Fatalf("%s goes on: %v", p.name, c.takeEvents())
	}
}

// edit changes the Lease as a person would.
func (c *cluster) edit(change func(*coordinationv1.Lease)) {
	c.Helper()
	require.NoError(c, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		var lease coordinationv1.Lease
		require.NoError(c, c.Get(c.Context(), key, &lease))
		change(&lease)
		return c.Update(c.Context(), &lease)
	}))
}

func (c *cluster) deleteLease() {
	c.Helper()
	require.NoError(c, c.Delete(c.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: Name}}))
}

// inBubble runs a test in a synctest bubble, in which no two operators may ever act.
func inBubble(t *testing.T, play func(*cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.install("a")
		play(c)
		c.mu.Lock()
		defer c.mu.Unlock()
		require.Empty(t, c.overlap)
	})
}

func TestFirstLeaderWaitsNoLongerThanALeaderNeedsToStop(t *testing.T) {
	inBubble(t, func(c *cluster) {
		require.Equal(t, takeoverDelay, c.expect(c.run("a", "p")))
		var lease coordinationv1.Lease
		require.NoError(t, c.Get(t.Context(), key, &lease))
		require.Equal(t, "a/p/uid", *lease.Spec.HolderIdentity)
		require.Equal(t, types.UID("crd"), lease.OwnerReferences[0].UID, "the Lease goes with the definition of policies")
	})
}

func TestEndingLeaderIsReplacedByTheNextAttempt(t *testing.T) {
	inBubble(t, func(c *cluster) {
		first := c.run("a", "p")
		c.expect(first)
		second := c.run("a", "q")
		time.Sleep(3 * time.Minute)
		require.Equal(t, []string{"a/p leads"}, c.takeEvents(), "it renews the Lease")
		first.stop()
		require.Less(t, c.expect(second), nextTry)
		require.ElementsMatch(t, []string{"a/p ended", "a/q leads"}, c.takeEvents())
	})
}

// The next container need not wait until the Lease expires. It cannot know that the previous one
// has ended, and waits until that one can no longer write.
func TestKilledContainerIsReplacedByTheNextOfItsPod(t *testing.T) {
	inBubble(t, func(c *cluster) {
		first := c.run("a", "p")
		c.expect(first)
		first.kill()
		require.Equal(t, takeoverDelay, c.expect(c.run("a", "p")))
	})
}

// A second process of the leader's pod may exist because the first was not ended, or because
// somebody started it by hand.
func TestOnlyOneProcessOfAPodActs(t *testing.T) {
	inBubble(t, func(c *cluster) {
		first := c.run("a", "p")
		c.expect(first)
		require.Equal(t, takeoverDelay, c.expect(c.run("a", "p")))
		c.awaitEnd(first)
		require.Contains(t, strings.Join(c.takeEvents(), "\n"), "was taken by another process of this pod: this operator stops")
		time.Sleep(time.Minute)
		require.Equal(t, 1, c.actors())
	})
}

// The leader's Lease is taken by a process that has to wait until the leader can no longer write. The process after that one waits as long.
func TestTwoNeverActWhenAWaitingProcessIsReplaced(t *testing.T) {
	for name, replace := range map[string]func(*cluster, *process) *process{
		"it is ended, and gives the Lease up": func(c *cluster, p *process) *process { p.stop(); return c.run("a", "r") },
		"its container is killed":             func(c *cluster, p *process) *process { p.kill(); return c.run("a", "q") },
		"another process of its pod starts":   func(c *cluster, p *process) *process { return c.run("a", "q") },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(c *cluster) {
				c.expect(c.run("a", "p"))
				second := c.run("a", "q")
				time.Sleep(2*retryPeriod + 10*time.Millisecond) // just after a renewal
				c.deleteLease()
				for lease := (coordinationv1.Lease{}); c.Get(t.Context(), key, &lease) != nil || holderOf(&lease) != "a/q/uid"; {
					time.Sleep(50 * time.Millisecond)
				}
				require.GreaterOrEqual(t, c.expect(replace(c, second)), takeoverDelay)
				time.Sleep(time.Minute)
				require.Equal(t, 1, c.actors())
			})
		})
	}
}

// The Lease then names a process that does not know that it took it.
func TestTwoNeverActWhenTheResponseToAWriteIsLost(t *testing.T) {
	for after := time.Duration(0); after < 3*retryPeriod; after += 100 * time.Millisecond {
		inBubble(t, func(c *cluster) {
			c.expect(c.run("a", "p"))
			second := c.run("a", "q")
			second.lossy.Store(true)
			time.Sleep(after)
			c.deleteLease()
			require.GreaterOrEqual(t, c.expect(second), takeoverDelay)
			time.Sleep(time.Minute)
			require.Equal(t, 1, c.actors())
		})
	}
}

func TestTwoNeverActWhenAPersonNamesAStandbyInTheLease(t *testing.T) {
	for after := time.Duration(0); after < 3*retryPeriod; after += 100 * time.Millisecond {
		inBubble(t, func(c *cluster) {
			c.expect(c.run("a", "p"))
			second := c.run("a", "q")
			time.Sleep(after)
			c.edit(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("a/q/uid") })
			require.GreaterOrEqual(t, c.expect(second), takeoverDelay)
			time.Sleep(time.Minute)
			require.Equal(t, 1, c.actors())
		})
	}
}

func TestKilledPodIsReplacedWhenItsLeaseExpires(t *testing.T) {
	inBubble(t, func(c *cluster) {
		first := c.run("a", "p")
		c.expect(first)
		second := c.run("a", "q")
		first.kill()
		took := c.expect(second)
		require.Greater(t, took, leaseDuration-retryPeriod)
		require.Less(t, took, leaseDuration+3*retryPeriod)
	})
}

func TestALeaderStopsWhenItsLeaseIsNoLongerItsOwn(t *testing.T) {
	for name, way := range map[string]struct {
		do  func(*cluster)
		why string
	}{
		"deleted":         {(*cluster).deleteLease, "the Lease kube-system/gpu-operator.gpuready.io was deleted: this operator stops"},
		"held by another": {func(c *cluster) { c.edit(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("x") }) }, `was taken by "x": this operator stops`},
		"held by nobody":  {func(c *cluster) { c.edit(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = nil }) }, `": this operator stops`}, // by nobody, or by the standby that came first
		"a very long name": {func(c *cluster) {
			c.edit(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new(strings.Repeat("x", 9999)) })
		}, `xxx": this operator stops`},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(c *cluster) {
				first := c.run("a", "p")
				c.expect(first)
				second := c.run("a", "q")
				time.Sleep(time.Second)
				c.takeEvents()
				began := time.Now()
				way.do(c)
				c.awaitEnd(first)
				require.LessOrEqual(t, time.Since(began), retryPeriod, "its next renewal")
				told := c.takeEvents()
				require.Contains(t, told[0], way.why)
				require.Less(t, len(told[0]), 500)
				_, err := first.elector.Gate.admit()
				require.ErrorIs(t, err, ErrNotLeading)
				c.expect(second)
			})
		})
	}
}

// client-go's elector would recreate a deleted Lease, and give up one that another process
// holds, after its operator has lost the Lease.
func TestFormerLeaderDoesNotWriteTheLease(t *testing.T) {
	inBubble(t, func(c *cluster) {
		first := c.run("a", "p")
		c.expect(first)
		other := "somebody else"
		c.edit(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = &other })
		c.awaitEnd(first)
		var lease coordinationv1.Lease
		require.NoError(t, c.Get(t.Context(), key, &lease))
		require.Equal(t, other, *lease.Spec.HolderIdentity)
	})
}

func TestTwoNeverActWhenTheLeaseIsDeleted(t *testing.T) {
	for name, away := range map[string]bool{"": false, "nothing reaches the leader": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(c *cluster) {
				first := c.run("a", "p")
				c.expect(first)
				second := c.run("a", "q")
				time.Sleep(retryPeriod / 4) // between two renewals
				first.away.Store(away)
				c.deleteLease()
				require.GreaterOrEqual(t, c.expect(second), takeoverDelay)
				first.away.Store(false)
				time.Sleep(time.Minute)
				require.Equal(t, &Status{Leads: true}, second.status.Load(), c.takeEvents())
			})
		})
	}
}

func TestLeaderWritesNothingWhileItCannotRenew(t *testing.T) {
	inBubble(t, func(c *cluster) {
		p := c.run("a", "p")
		c.expect(p)
		p.away.Store(true)
		time.Sleep(writePeriod)
		_, err := p.elector.Gate.admit()
		require.ErrorIs(t, err, ErrNotLeading)
		time.Sleep(retryPeriod)
		p.away.Store(false)
		time.Sleep(requestTimeout + retryPeriod)
		_, err = p.elector.Gate.admit()
		require.NoError(t, err)
		c.takeEvents()
		p.away.Store(true)
		c.awaitEnd(p)
		require.Contains(t, c.takeEvents()[0], "could not be renewed for 10s: this operator stops")
	})
}

func TestUnreachableAPIServerIsRetried(t *testing.T) {
	inBubble(t, func(c *cluster) {
		first := c.run("a", "p")
		first.away.Store(true)
		first.kill()
		second := c.run("a", "q")
		second.away.Store(true)
		time.Sleep(time.Minute)
		second.away.Store(false)
		require.Less(t, c.expect(second), takeoverDelay+requestTimeout+3*retryPeriod+leaseDuration)
	})
}

func TestEditedLeaseDoesNotBlockForever(t *testing.T) {
	inBubble(t, func(c *cluster) {
		first := c.run("a", "p")
		c.expect(first)
		second := c.run("a", "q")
		c.edit(func(l *coordinationv1.Lease) {
			l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds = new("x"), new(int32(1<<30))
		})
		require.Less(t, c.expect(second), longestLease+5*retryPeriod)
	})
}

func TestALeaseCutShortByHandIsNotTakenFromItsHolder(t *testing.T) {
	inBubble(t, func(c *cluster) {
		c.expect(c.run("a", "p"))
		c.run("a", "q")
		c.takeEvents()
		for range 100 {
			c.edit(func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = new(int32(0)) })
			// Not at the moments of renewals, each of which could then meet an edit.
			time.Sleep(997 * time.Millisecond)
		}
		require.Empty(t, c.takeEvents())
	})
}

func TestSecondInstallationStandsDownWhileTheFirstIsInstalled(t *testing.T) {
	inBubble(t, func(c *cluster) {
		c.install("b")
		first := c.run("a", "p")
		c.expect(first)
		other := c.run("b", "q")
		time.Sleep(time.Minute)
		require.Equal(t, &Status{StandsDownFor: "a"}, other.status.Load())
		for range 3 { // its pod is replaced
			first.stop()
			c.awaitEnd(first)
			time.Sleep(2 * time.Minute)
			require.Equal(t, &Status{StandsDownFor: "a"}, other.status.Load())
			first = c.run("a", "p2")
			require.Less(t, c.expect(first), nextTry)
		}
		c.uninstall("a")
		time.Sleep(time.Minute)
		require.Equal(t, &Status{StandsDownFor: "a"}, other.status.Load(), "the pod is there yet")
		first.stop()
		require.Less(t, c.expect(other), nextTry)
	})
}

func TestInstallationWithoutALeaderKeepsItsClaimWhileInstalled(t *testing.T) {
	for name, go_ := range map[string]func(*cluster){
		"uninstalled": func(c *cluster) { c.uninstall("a") },
		"scaled to nothing": func(c *cluster) {
			var d appsv1.Deployment
			require.NoError(c, c.Get(c.Context(), client.ObjectKey{Namespace: "a", Name: deployment}, &d))
			d.Spec.Replicas = new(int32(0))
			require.NoError(c, c.Update(c.Context(), &d))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(c *cluster) {
				c.install("b")
				first := c.run("a", "p")
				c.expect(first)
				other := c.run("b", "q")
				first.stop()
				time.Sleep(time.Minute)
				require.Equal(t, &Status{StandsDownFor: "a"}, other.status.Load())
				go_(c)
				require.Less(t, c.expect(other), nextTry)
			})
		})
	}
}

func TestUnusedClaimExpires(t *testing.T) {
	inBubble(t, func(c *cluster) {
		c.install("b")
		first := c.run("a", "p")
		c.expect(first)
		first.kill()
		took := c.expect(c.run("b", "q"))
		require.Greater(t, took, claimTimeout-time.Minute)
		require.Less(t, took, claimTimeout+time.Minute)
	})
}

// Its back-off of five minutes is shorter than claimTimeout.
func TestFailingInstallationLosesItsClaim(t *testing.T) {
	inBubble(t, func(c *cluster) {
		c.install("b")
		first := c.run("a", "p")
		c.expect(first)
		other := c.run("b", "q")
		for range 3 {
			time.Sleep(3 * time.Second)
			first.kill()
			time.Sleep(5 * time.Minute)
			first = c.run("a", "p")
			time.Sleep(takeoverDelay)
		}
		require.Equal(t, &Status{Leads: true}, other.status.Load())
		require.Equal(t, &Status{StandsDownFor: "b"}, first.status.Load())
	})
}

func TestRestartedInstallationKeepsItsClaim(t *testing.T) {
	inBubble(t, func(c *cluster) {
		c.install("b")
		first := c.run("a", "p")
		c.expect(first)
		other := c.run("b", "q")
		for range 10 {
			time.Sleep(2 * steadyTerm)
			first.kill()
			time.Sleep(claimTimeout - 2*time.Minute)
			first = c.run("a", "p")
			c.expect(first)
		}
		// Of a time in which it could not read the Lease, it knows nothing.
		other.away.Store(true)
		time.Sleep(2 * claimTimeout)
		first.kill()
		first = c.run("a", "p")
		c.expect(first)
		other.away.Store(false)
		time.Sleep(15 * time.Second)
		first.kill()
		time.Sleep(time.Minute)
		require.Equal(t, &Status{StandsDownFor: "a"}, other.status.Load())
	})
}

// The installation whose operands exist has an operator again; the other may create none.
func TestALeaderYieldsToTheInstallationThatServesTheCluster(t *testing.T) {
	inBubble(t, func(c *cluster) {
		c.install("b")
		first := c.run("a", "p")
		c.expect(first)
		other := c.run("b", "q")
		c.uninstall("a")
		first.stop()
		c.expect(other)
		c.install("a")
		first = c.run("a", "p2")
		time.Sleep(time.Minute)
		require.Equal(t, &Status{StandsDownFor: "b"}, first.status.Load())
		c.takeEvents()
		other.yield <- "a"
		require.Less(t, c.expect(first), nextTry)
		c.awaitEnd(other)
		require.ElementsMatch(t, []string{"b/q: " + (&YieldTo{"a"}).Error(), "a/p2 leads"}, c.takeEvents())
		other = c.run("b", "q")
		first.stop()
		time.Sleep(time.Minute)
		require.Equal(t, &Status{StandsDownFor: "a"}, other.status.Load())
	})
}

func TestLeaderDoesNotYieldToAMissingInstallation(t *testing.T) {
	inBubble(t, func(c *cluster) {
		first := c.run("a", "p")
		c.expect(first)
		first.yield <- "b"
		c.awaitEnd(first)
		require.Less(t, c.expect(c.run("a", "p")), nextTry)
	})
}

func TestLogTruncatesForeignText(t *testing.T) {
	var log strings.Builder
	l := newLock(Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	for _, other := range []string{"", "b"} {
		l.reportOther(other, strings.Repeat("x", 9999))
		require.Contains(t, log.String(), "xxx")
		require.Less(t, log.Len(), 600)
		log.Reset()
	}
}

// The first installation is one of an earlier version, whose Deployment had another name.
func TestEarlierVersionKeepsItsClaimWhileInstalled(t *testing.T) {
	inBubble(t, func(c *cluster) {
		c.install("b")
		c.uninstall("a")
		c.installAs("a", formerDeployment)
		first := c.run("a", "p")
		c.expect(first)
		first.stop()
		c.awaitEnd(first)
		other := c.run("b", "q")
		time.Sleep(2 * time.Minute)
		require.Equal(t, &Status{StandsDownFor: "a"}, other.status.Load())
		require.NoError(t, c.Delete(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: formerDeployment}}))
		require.Less(t, c.expect(other), nextTry)
	})
}

// A new owner of a removed operator's namespace cannot keep its claim.
func TestLaterDeploymentInheritsNoClaim(t *testing.T) {
	inBubble(t, func(c *cluster) {
		c.install("b")
		first := c.run("a", "p")
		c.expect(first)
		first.stop()
		c.awaitEnd(first)
		c.uninstall("a")
		c.install("a")
		require.Less(t, c.expect(c.run("b", "q")), nextTry)
	})
}

// Of any three operators of two installations, at most one acts at any moment, whatever happens
// to them, to their connections and to the Lease. When nothing more happens, one acts. An
// operator's pod may have several processes.
func TestAtMostOneActs(t *testing.T) {
	type step struct {
		what string
		who  int
		wait time.Duration
	}
	rapid.Check(t, func(r *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) step {
			return step{
				rapid.SampledFrom([]string{
					"delete", "replace", "holder x", "holder none", "holder", "short", "away", "all away", "lossy", "heal",
					"kill", "stop", "start", "another", "yield", "uninstall", "install",
				}).Draw(r, "what"),
				rapid.IntRange(0, 2).Draw(r, "who"),
				time.Duration(rapid.OneOf(rapid.IntRange(0, 10000), rapid.IntRange(0, 100)).Draw(r, "ms")) * time.Millisecond,
			}
		}), 1, 15).Draw(r, "steps")
		var problem string
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t)
			c.install("a")
			c.install("b")
			names := [][2]string{{"a", "p"}, {"a", "q"}, {"b", "r"}}
			var now [3]*process
			start := func(i int) {
				if p := now[i]; p != nil {
					select {
					case <-p.ended:
					default:
						return
					}
				}
				now[i] = c.run(names[i][0], names[i][1])
			}
			all := func(do func(*process)) {
				for _, p := range c.processes {
					do(p)
				}
			}
			for i := range now {
				start(i)
			}
			lease := func(change func(*coordinationv1.Lease)) {
				var l coordinationv1.Lease
				if c.Get(t.Context(), key, &l) == nil {
					change(&l)
					_ = c.Update(t.Context(), &l)
				}
			}
			for _, s := range steps {
				c.recordEvent(fmt.Sprint(s))
				p := now[s.who]
				switch s.what {
				case "delete":
					_ = c.Delete(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: Name}})
				case "replace":
					p.stop()
					now[s.who] = c.run(names[s.who][0], names[s.who][1])
				case "holder x":
					lease(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("x") })
				case "holder none":
					lease(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = nil })
				case "holder":
					lease(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new(p.elector.lock.Identity()) })
				case "short":
					lease(func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = new(int32(0)) })
				case "away":
					p.away.Store(true)
				case "all away":
					all(func(p *process) { p.away.Store(true) })
				case "lossy":
					p.lossy.Store(true)
				case "heal":
					p.away.Store(false)
				case "kill":
					p.away.Store(false)
					p.kill()
				case "stop":
					p.stop()
				case "start":
					start(s.who)
				case "another":
					now[s.who] = c.run(names[s.who][0], names[s.who][1])
				case "yield":
					select {
					case p.yield <- names[2-s.who][0]:
					default:
					}
				case "uninstall":
					_ = c.Delete(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: names[s.who][0], Name: deployment}})
				case "install":
					d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: names[s.who][0], Name: deployment, UID: types.UID(fmt.Sprint("i", c.next())), Labels: map[string]string{label.PartOf: label.Product}}}
					_ = c.Create(t.Context(), d)
				}
				time.Sleep(s.wait)
			}
			all(func(p *process) {
				p.away.Store(false)
			})
			time.Sleep(time.Minute)
			for i := range now {
				start(i)
			}
			for healed := time.Now(); c.actors() != 1 && time.Since(healed) < claimTimeout+2*time.Minute; {
				time.Sleep(10 * time.Second)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			c.mu.Lock()
			problem = c.overlap
			if problem == "" && len(c.acting) != 1 {
				problem = fmt.Sprintf("in the end %d act: %v", len(c.acting), c.events)
			}
			c.mu.Unlock()
			for _, p := range c.processes {
				p.stop()
			}
		})
		if problem != "" {
			r.Fatal(problem)
		}
	})
}
