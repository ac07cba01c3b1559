// Package leader elects the gpu-operator that acts on a cluster, by client-go's election on one
// Lease in kube-system, whatever namespaces operators are installed in. It adds what client-go
// leaves to its caller:
//
//   - A Gate, through which all other requests go, refuses writes unless this process certainly
//     holds the Lease.
//   - A leader whose Lease was deleted, or taken by another process, stops, and its process should
//     exit. It does not try to lead again.
//   - The Lease belongs to an installation: its replicas take precedence, and other
//     installations stand down while it is installed and has a leader (see claimTimeout).
//
// See docs/decisions/0032-operators-elect-a-leader-by-one-lease-in-kube-system.md for the reasons.
package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Namespace and Name of the Lease. It is in kube-system, where people who administer only their own
// namespaces cannot change it.
const (
	Namespace = "kube-system"
	Name      = "gpu-operator.gpuready.io"
)

// Times of the election: the first three are Kubernetes' own defaults.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
	// writePeriod bounds how long after a renewal this process may write to the cluster. A healthy
	// leader renews sooner. One that cannot renew holds the Lease for renewDeadline, but writes
	// nothing after writePeriod.
	writePeriod = 2 * retryPeriod
	// takeoverDelay is the time that a new leader waits before it acts, if the Lease does not prove
	// that the previous leader has ended: for example, the Lease was deleted. After that time an
	// earlier leader no longer writes: it could not renew the Lease, and its writePeriod is over.
	takeoverDelay = writePeriod + time.Second
	// longestLease bounds the duration that a Lease can claim after somebody has edited it.
	longestLease = time.Minute
	// claimTimeout is the time that an installation may be without a leader before another
	// installation takes over, although the first one's Deployment still exists. Only a leader that
	// has led for longer than steadyTerm counts: an operator that fails soon after each start loses
	// its precedence.
	claimTimeout = 10 * time.Minute
	steadyTerm   = time.Minute
	// requestTimeout bounds one request, so that a renewal can be tried twice.
	requestTimeout = 4 * time.Second
)

// Scheme returns the kinds that an Elector's client needs.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(appsv1.AddToScheme(s), coordinationv1.AddToScheme(s), metav1.AddMetaToScheme(s))
}

// Pod identifies the operator's pod. The zero Pod means that it runs outside of pods.
type Pod struct{ Name, UID string }

// Status describes which operator leads, as far as this process knows.
type Status struct {
	Leads bool // this process leads
	// StandsDownFor is the namespace of another installation that serves the cluster.
	StandsDownFor string
}

// Options configure an Elector.
type Options struct {
	Client     client.Client // with Scheme, without a cache and without the Gate
	Namespace  string        // of this operator's installation
	Deployment string        // name of this operator's Deployment
	// FormerDeployment is the Deployment's name in earlier versions, or "" if it was the same.
	FormerDeployment string
	Pod              Pod
	Host             string       // a unique name, for processes outside of pods
	Report           func(Status) // called when the Status changes; nil: not called
	Log              *slog.Logger
}

// identity returns this process's name as the holder of the Lease. All containers of one pod have
// the same name. So a restarted container can take the Lease at once, although its killed
// predecessor still holds it.
func (o *Options) identity() string {
	if o.Pod == (Pod{}) {
		return o.Namespace + "/" + o.Host
	}
	return strings.Join([]string{o.Namespace, o.Pod.Name, o.Pod.UID}, "/")
}

// YieldTo is the error by which a leader gives up the Lease to the installation in a namespace,
// whose operands already serve the cluster.
type YieldTo struct{ Namespace string }

// Error implements error.
func (y *YieldTo) Error() string {
	return fmt.Sprintf("operands in namespace %s serve this cluster, and their operator is back: this operator stops, and stands down for it", y.Namespace)
}

// Elector elects one of several operators.
type Elector struct {
	Options
	Gate *Gate // for the transport of all other writes
	lock *lock
}

// New returns an Elector.
func New(o Options) *Elector {
	l := newLock(o)
	return &Elector{Options: o, Gate: &Gate{remaining: l.remaining}, lock: l}
}

// Run waits until this process leads, and then calls lead. When the Lease is lost, it cancels
// lead's context and returns an error. After lead has returned, for whatever reason, it gives up the
// Lease: to any replica, or to the installation that a YieldTo names. The process should exit after
// Run.
func (e *Elector) Run(ctx context.Context, lead func(context.Context) error) error {
	elected, ended := make(chan struct{}), make(chan struct{})
	election, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: e.lock, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(elected) },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return err
	}
	// When the election ends, client-go gives up the Lease. So the election must not end with ctx,
	// but after everything else has stopped. client-go's log is discarded: it has each problem at
	// every attempt, and the lock logs it once.
	electionCtx, stop := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), logr.Discard()))
	defer stop()
	leadCtx, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	var running sync.WaitGroup
	running.Go(func() { defer close(ended); election.Run(electionCtx) })
	running.Go(func() {
		var why error
		select {
		case why = <-e.lock.lost:
		case <-ended:
			why = fmt.Errorf("the Lease %s could not be renewed for %v", e.lock.Describe(), renewDeadline)
		case <-leadCtx.Done():
			return
		}
		e.Gate.close()
		lose(fmt.Errorf("%w: this operator stops", why))
	})
	select {
	case <-elected:
		err = e.openAndLead(leadCtx, lead)
	case <-leadCtx.Done():
	}
	e.Gate.close()
	lost := context.Cause(leadCtx) // nil unless the Lease was lost or ctx has ended
	lose(nil)
	if to, yields := errors.AsType[*YieldTo](err); yields {
		e.lock.yieldTo(to.Namespace)
	}
	stop()
	running.Wait()
	e.lock.reportStatus(Status{})
	if lost != nil && ctx.Err() == nil {
		return errors.Join(lost, err)
	}
	return err
}

// openAndLead waits until no earlier leader can be acting, opens the Gate, and calls lead.
func (e *Elector) openAndLead(ctx context.Context, lead func(context.Context) error) error {
	if e.lock.earlierMayAct() {
		e.Log.Info("took a Lease that does not show that the leader before has ended; waiting until it has", "wait", takeoverDelay)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(takeoverDelay):
		}
		e.lock.clearEarlier()
	}
	e.Gate.open(ctx)
	e.Log.Info("leading", "lease", e.lock.Describe(), "identity", e.lock.Identity())
	e.lock.reportStatus(Status{Leads: true})
	return lead(ctx)
}
