package leader

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Labels of the Lease that name the installation that leads or led last: its namespace and the
// UID of its Deployment.
const (
	labelNamespace  = "gpuready.io/operator-namespace"
	labelDeployment = "gpuready.io/operator-deployment-uid"
)

// annotationProcess is the Lease's annotation with a random name of the process that took it. The
// holder's name does not distinguish two processes of one pod.
const annotationProcess = "gpuready.io/operator-process"

// policyCRD owns the Lease: deleting the CRD of ClusterPolicy deletes the Lease. Without it there
// is nothing to lead.
const policyCRD = "clusterpolicies.nvidia.com"

var crdKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// releasedSeconds is the duration that client-go writes when it releases a Lease. A Lease without a
// holder and with this duration shows that no leader acts any more. A process that releases the Lease
// before it knows whether the leader before it has ended writes leaseDuration instead, and the next
// leader waits. A Lease whose holder was removed by hand keeps its duration, too.
const releasedSeconds = 1

var errStandDown = errors.New("another installation serves this cluster")

// lock implements resourcelock.Interface, which client-go's elector calls from one goroutine.
// client-go's own LeaseLock is not enough: it does not give access to the labels and the owner of a
// Lease. A process that has lost the Lease, because it was deleted or has another holder, does not
// take it again.
type lock struct {
	Options
	process string     // random name of this process, in annotationProcess of a Lease that it took
	lost    chan error // capacity 1: receives the reason once the Lease is lost

	// Only the elector's goroutine uses these.
	lease   *coordinationv1.Lease // as last read or written; nil if there is none
	problem string                // last error that was logged
	leader  string                // last other leader that was logged, "namespace holder"
	history history

	mu        sync.Mutex
	uid       string    // of the held Lease; "" if none is held
	renewedAt time.Time // when the request of the last successful renewal was sent
	ambiguous bool      // an earlier leader may still act: the caller waits takeoverDelay before it acts
	successor string    // namespace of the installation to give up the Lease to; "": any
	status    Status    // last reported
}

var _ resourcelock.Interface = (*lock)(nil)

func newLock(o Options) *lock {
	return &lock{Options: o, process: string(uuid.NewUUID()), lost: make(chan error, 1)}
}

// Identity implements resourcelock.Interface.
func (l *lock) Identity() string { return l.identity() }

// Describe implements resourcelock.Interface.
func (l *lock) Describe() string { return Namespace + "/" + Name }

// RecordEvent implements resourcelock.Interface. It does nothing, as the log has the events.
func (l *lock) RecordEvent(string) {}

// remaining returns for how much longer this process may write: nobody else acts before that time
// after its last renewal. It counts the longer of the times that have passed by the monotonic and by
// the wall clock: the first stops while a virtual machine is suspended, the second may be set back.
func (l *lock) remaining() time.Duration {
	l.mu.Lock()
	renewedAt, held := l.renewedAt, l.uid != ""
	l.mu.Unlock()
	if !held {
		return 0
	}
	now := time.Now()
	return writePeriod - max(now.Sub(renewedAt), now.Round(0).Sub(renewedAt.Round(0)))
}

// earlierMayAct reports whether an earlier leader may still act.
func (l *lock) earlierMayAct() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ambiguous
}

// clearEarlier records that no earlier leader acts any more.
func (l *lock) clearEarlier() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ambiguous = false
}

// yieldTo sets the namespace of the installation to give up the Lease to.
func (l *lock) yieldTo(namespace string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.successor = namespace
}

// heldUID returns the UID of the Lease that this process has taken and not given up, or "".
func (l *lock) heldUID() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.uid
}

// Get implements resourcelock.Interface.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	lease := &coordinationv1.Lease{}
	err := l.withTimeout(ctx, func(ctx context.Context) error {
		return l.Client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: Name}, lease)
	})
	if apierrors.IsNotFound(err) {
		lease = nil
	} else if err != nil {
		return nil, nil, l.logProblem(err)
	}
	l.lease = lease
	if l.heldUID() != "" {
		if lost := l.checkHeld(l.heldUID(), lease); lost != nil {
			select {
			case l.lost <- lost:
			default: // it is known
			}
			return nil, nil, lost
		}
	}
	if lease == nil {
		return nil, nil, err // Create follows
	}
	l.history.add(lease, time.Now())
	record := resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)
	if record.HolderIdentity != "" {
		// Somebody may have edited the Lease. With too short a duration it would be taken from a
		// leader that still acts; with too long a one nobody would lead for long.
		duration := min(max(time.Duration(record.LeaseDurationSeconds)*time.Second, leaseDuration), longestLease)
		record.LeaseDurationSeconds = int(duration / time.Second)
	}
	if err := l.checkTurn(ctx, record); err != nil {
		return nil, nil, l.logProblem(err)
	}
	raw, err := json.Marshal(record)
	return record, raw, l.logProblem(err)
}

// checkTurn returns errStandDown while the Lease belongs to another installation that still exists.
// While that replaces its pod, nobody holds the Lease, but it remains that installation's. checkTurn
// also reports who leads.
func (l *lock) checkTurn(ctx context.Context, record *resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == l.Identity() {
		return nil
	}
	other, exists := l.lease.Labels[labelNamespace], false // the namespace of the other installation
	if other == l.Namespace {
		other = ""
	}
	if held := record.HolderIdentity != ""; held && time.Since(l.history.since) < time.Duration(record.LeaseDurationSeconds)*time.Second {
		l.reportOther(other, record.HolderIdentity)
		return nil // client-go waits until it expires
	}
	// An installation that has not used the Lease for claimTimeout has lost its claim.
	if other != "" && time.Since(l.history.used) < claimTimeout {
		var err error
		if _, exists, err = l.findDeployment(ctx, other, l.lease.Labels[labelDeployment]); err != nil {
			return err
		}
	}
	if exists {
		l.reportOther(other, "")
		return errStandDown
	}
	return nil
}

// reportOther reports that another operator leads, and logs changes of it.
func (l *lock) reportOther(other, holder string) {
	holder = truncate(holder)
	known := l.leader == other+" "+holder
	l.leader = other + " " + holder
	l.reportStatus(Status{StandsDownFor: other})
	switch {
	case known:
	case other == "":
		l.Log.Info("standing by: another replica leads", "holder", holder)
	default:
		l.Log.Warn("standing down: another operator serves this cluster; uninstall one of the two",
			"reason", "AnotherOperator", "namespace", other, "deployment", l.Deployment, "holder", cmp.Or(holder, "none now"))
	}
}

// reportStatus calls Options.Report if the Status has changed.
func (l *lock) reportStatus(s Status) {
	l.mu.Lock()
	same := l.status == s
	l.status = s
	l.mu.Unlock()
	if !same && l.Report != nil {
		l.Report(s)
	}
}

// Create implements resourcelock.Interface.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	owner := &metav1.PartialObjectMetadata{}
	owner.SetGroupVersionKind(crdKind)
	if err := l.withTimeout(ctx, func(ctx context.Context) error {
		return l.Client.Get(ctx, client.ObjectKey{Name: policyCRD}, owner)
	}); err != nil {
		return l.logProblem(fmt.Errorf("the definition of policies: %w", err))
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: Name, OwnerReferences: []metav1.OwnerReference{{
		APIVersion: crdKind.GroupVersion().String(), Kind: crdKind.Kind, Name: policyCRD, UID: owner.UID,
	}}}}
	// The Lease may have been deleted under a leader that still acts.
	return l.acquire(ctx, lease, record, true, func(ctx context.Context) error { return l.Client.Create(ctx, lease) })
}

// Update implements resourcelock.Interface: it takes, renews or gives up the Lease that was read
// last. Unlike client-go, it does not give up a Lease that another process holds by now.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if l.lease == nil {
		return fmt.Errorf("the Lease %s has not been read", l.Describe())
	}
	lease := l.lease.DeepCopy()
	send := func(ctx context.Context) error { return l.Client.Update(ctx, lease) }
	holder := holderOf(lease)
	switch {
	case record.HolderIdentity == "" && (holder != l.Identity() || l.heldUID() == ""):
		return fmt.Errorf("the Lease %s is not this operator's to give up", l.Describe())
	case record.HolderIdentity == "":
		return l.release(ctx, lease, record, send)
	case l.heldUID() != "":
		return l.writeHeld(ctx, lease, record, false, send)
	}
	return l.acquire(ctx, lease, record, !l.provesNoLeader(lease), send)
}

// provesNoLeader reports whether a Lease that this process may take proves that no earlier
// leader acts. This process's own name as the holder shows nothing: it may come from a
// request whose response was lost, from another process of this pod, or from a person.
func (l *lock) provesNoLeader(lease *coordinationv1.Lease) bool {
	switch holderOf(lease) {
	case "":
		return lease.Spec.LeaseDurationSeconds != nil && *lease.Spec.LeaseDurationSeconds == releasedSeconds
	case l.Identity():
		return false
	}
	return true // it has expired
}

// release gives up the Lease, to the successor's installation if there is one.
func (l *lock) release(ctx context.Context, lease *coordinationv1.Lease, record resourcelock.LeaderElectionRecord, send func(context.Context) error) error {
	if l.earlierMayAct() { // the next leader must wait, too: see releasedSeconds
		record.LeaseDurationSeconds = int(leaseDuration / time.Second)
	}
	l.mu.Lock()
	successor := l.successor
	l.mu.Unlock()
	if successor != "" {
		uid, found, err := l.findDeployment(ctx, successor, "")
		if err != nil {
			return l.logProblem(err)
		}
		if found {
			setInstallation(lease, successor, uid)
		}
	}
	lease.Spec = resourcelock.LeaderElectionRecordToLeaseSpec(&record)
	if err := l.withTimeout(ctx, send); err != nil {
		return l.logProblem(err)
	}
	l.setHeld(lease, time.Time{}, false)
	return nil
}

// acquire takes the Lease: it writes this operator and its installation to it by send.
// ambiguous: an earlier leader may still act.
func (l *lock) acquire(ctx context.Context, lease *coordinationv1.Lease, record resourcelock.LeaderElectionRecord, ambiguous bool, send func(context.Context) error) error {
	deployment := ""
	if l.Pod != (Pod{}) { // else it runs outside the cluster, without a Deployment
		var err error
		if deployment, _, err = l.findDeployment(ctx, l.Namespace, ""); err != nil {
			return l.logProblem(err)
		}
	}
	setInstallation(lease, l.Namespace, deployment)
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, annotationProcess, l.process)
	return l.writeHeld(ctx, lease, record, ambiguous, send)
}

// withTimeout calls send with the timeout of a request.
func (l *lock) withTimeout(ctx context.Context, send func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return send(ctx)
}

// logProblem returns an error. It logs it unless it is expected, or the same as the last one.
func (l *lock) logProblem(err error) error {
	switch {
	case err == nil:
		l.problem = ""
	case errors.Is(err, errStandDown), errors.Is(err, context.Canceled), apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
	case l.problem != err.Error():
		l.problem = err.Error()
		l.Log.Warn("cannot read or write the Lease; retrying", "lease", l.Describe(), "error", err)
	}
	return err
}
