package leader

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/operator/label"
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

// The Lease is owned by the definition of policies, without which there is nothing to lead.
const definition = "clusterpolicies.nvidia.com"

var definitionKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// releasedSeconds is the duration of a Lease that a leader gave up. A Lease whose holder was
// removed by hand has another duration, and so has one that was given up before its leader was
// certain to be alone.
const releasedSeconds = 1

var errStandDown = errors.New("another installation serves this cluster")

// lock implements resourcelock.Interface, which client-go's elector calls from one goroutine.
// client-go's own LeaseLock cannot serve: it shows neither the labels nor the owner of a Lease. A
// lock never takes the Lease twice: a Lease that is gone or has another holder is lost.
type lock struct {
	Options
	process string     // random; annotationProcess of a Lease that this process took
	lost    chan error // receives an item once the Lease is lost

	// Only the elector's goroutine uses these.
	lease   *coordinationv1.Lease // as last read or written; nil if there is none
	problem string                // last one that was logged
	leader  string                // last other leader that was logged
	history history

	mu        sync.Mutex
	uid       string    // of the held Lease; "" if none is held
	proven    time.Time // when the last successful renewal was sent
	ambiguous bool      // an earlier leader may still act
	successor string    // namespace of the installation to give up the Lease to; "": any
	status    Status
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

// remaining returns how much longer the last renewal proves that nobody else acts. It takes the
// longer of the times that the monotonic and the wall clock have counted: the first stops while
// a virtual machine is suspended, the second may be set back.
func (l *lock) remaining() time.Duration {
	l.mu.Lock()
	proven, held := l.proven, l.uid != ""
	l.mu.Unlock()
	if !held {
		return 0
	}
	now := time.Now()
	return certainty - max(now.Sub(proven), now.Round(0).Sub(proven.Round(0)))
}

// isAmbiguous reports whether an earlier leader may still act.
func (l *lock) isAmbiguous() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ambiguous
}

// clearAmbiguous records that no earlier leader acts any more.
func (l *lock) clearAmbiguous() {
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

// held returns the UID of the Lease that this process has taken and not given up, or "".
func (l *lock) held() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.uid
}

// Get implements resourcelock.Interface.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	lease := &coordinationv1.Lease{}
	err := l.request(ctx, func(ctx context.Context) error {
		return l.Client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: Name}, lease)
	})
	if apierrors.IsNotFound(err) {
		lease = nil
	} else if err != nil {
		return nil, nil, l.logProblem(err)
	}
	if l.lease = lease; l.held() != "" {
		if lost := l.checkHeld(l.held(), lease); lost != nil {
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
		lasts := min(max(time.Duration(record.LeaseDurationSeconds)*time.Second, leaseDuration), longestLease)
		record.LeaseDurationSeconds = int(lasts / time.Second)
	}
	if err := l.checkTurn(ctx, record); err != nil {
		return nil, nil, l.logProblem(err)
	}
	raw, err := json.Marshal(record)
	return record, raw, l.logProblem(err)
}

// checkTurn returns errStandDown while the Lease belongs to another installation that exists, so
// that a pod that is replaced hands nothing over. It reports who leads.
func (l *lock) checkTurn(ctx context.Context, record *resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == l.Identity() {
		return nil
	}
	other, claimed := l.lease.Labels[labelNamespace], false
	if other == l.Namespace {
		other = ""
	}
	if other != "" && time.Since(l.history.used) < claimTimeout {
		var err error
		if _, claimed, err = l.installed(ctx, other, l.lease.Labels[labelDeployment]); err != nil {
			return err
		}
	}
	if claimed || record.HolderIdentity != "" {
		l.reportOther(other, record.HolderIdentity)
	}
	if claimed {
		return errStandDown
	}
	return nil
}

// reportOther reports that another operator leads, and logs changes of it.
func (l *lock) reportOther(other, holder string) {
	holder = truncate(holder)
	known := l.leader == other+" "+holder
	l.leader = other + " " + holder
	l.report(Status{StandsDownFor: other})
	switch {
	case known:
	case other == "":
		l.Log.Info("standing by: another replica leads", "holder", holder)
	default:
		l.Log.Warn("standing down: another operator serves this cluster; uninstall one of the two",
			"reason", "AnotherOperator", "namespace", other, "deployment", l.Deployment, "holder", cmp.Or(holder, "none now"))
	}
}

// report calls Report if the Status has changed.
func (l *lock) report(s Status) {
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
	owner.SetGroupVersionKind(definitionKind)
	if err := l.request(ctx, func(ctx context.Context) error {
		return l.Client.Get(ctx, client.ObjectKey{Name: definition}, owner)
	}); err != nil {
		return l.logProblem(fmt.Errorf("the definition of policies: %w", err))
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: Name, OwnerReferences: []metav1.OwnerReference{{
		APIVersion: definitionKind.GroupVersion().String(), Kind: definitionKind.Kind, Name: definition, UID: owner.UID,
	}}}}
	return l.acquire(ctx, lease, record, true, func(ctx context.Context) error { return l.Client.Create(ctx, lease) })
}

// Update implements resourcelock.Interface: it takes, renews or gives up the Lease that was read
// last. Unlike client-go, it does not give up a Lease that another process holds by now.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if l.lease == nil {
		return fmt.Errorf("the Lease %s has not been read", l.Describe())
	}
	lease := l.lease.DeepCopy()
	update := func(ctx context.Context) error { return l.Client.Update(ctx, lease) }
	holder := holderOf(lease)
	switch {
	case record.HolderIdentity == "" && (holder != l.Identity() || l.held() == ""):
		return fmt.Errorf("the Lease %s is not this operator's to give up", l.Describe())
	case record.HolderIdentity == "":
		return l.release(ctx, lease, record, update)
	case l.held() != "":
		return l.write(ctx, lease, record, false, update)
	}
	return l.acquire(ctx, lease, record, !l.provesEnd(lease), update)
}

// provesEnd reports whether a Lease that this process may take shows that no earlier leader acts.
// This process's own name as the holder shows nothing: it may come from a request whose response
// was lost, from another process of this pod, or from a person.
func (l *lock) provesEnd(lease *coordinationv1.Lease) bool {
	switch holderOf(lease) {
	case "":
		return lease.Spec.LeaseDurationSeconds != nil && *lease.Spec.LeaseDurationSeconds == releasedSeconds
	case l.Identity():
		return false
	}
	return true // it has expired
}

// release gives up the Lease, to the successor's installation if there is one.
func (l *lock) release(ctx context.Context, lease *coordinationv1.Lease, record resourcelock.LeaderElectionRecord, update func(context.Context) error) error {
	if l.isAmbiguous() { // whoever takes it next waits in turn
		record.LeaseDurationSeconds = int(leaseDuration / time.Second)
	}
	l.mu.Lock()
	successor := l.successor
	l.mu.Unlock()
	if successor != "" {
		uid, there, err := l.installed(ctx, successor, "")
		if err != nil {
			return l.logProblem(err)
		}
		if there {
			setInstallation(lease, successor, uid)
		}
	}
	lease.Spec = resourcelock.LeaderElectionRecordToLeaseSpec(&record)
	if err := l.request(ctx, update); err != nil {
		return l.logProblem(err)
	}
	l.setHeld(lease, time.Time{}, false)
	return nil
}

// acquire writes this operator and its installation to the Lease.
func (l *lock) acquire(ctx context.Context, lease *coordinationv1.Lease, record resourcelock.LeaderElectionRecord, ambiguous bool, write func(context.Context) error) error {
	deployment := ""
	if l.Pod != (Pod{}) {
		var err error
		if deployment, _, err = l.installed(ctx, l.Namespace, ""); err != nil {
			return l.logProblem(err)
		}
	}
	setInstallation(lease, l.Namespace, deployment)
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, annotationProcess, l.process)
	return l.write(ctx, lease, record, ambiguous, write)
}

// write writes the Lease with this process as its holder.
func (l *lock) write(ctx context.Context, lease *coordinationv1.Lease, record resourcelock.LeaderElectionRecord, ambiguous bool, write func(context.Context) error) error {
	sent := time.Now()
	lease.Spec = resourcelock.LeaderElectionRecordToLeaseSpec(&record)
	if err := l.request(ctx, write); err != nil {
		return l.logProblem(err)
	}
	l.setHeld(lease, sent, ambiguous)
	return l.logProblem(nil)
}

// setInstallation sets a Lease's labels that name its installation.
func setInstallation(lease *coordinationv1.Lease, namespace, deployment string) {
	metav1.SetMetaDataLabel(&lease.ObjectMeta, labelNamespace, namespace)
	metav1.SetMetaDataLabel(&lease.ObjectMeta, labelDeployment, deployment)
}

// setHeld records the Lease as last written. The zero time means that it was given up.
func (l *lock) setHeld(lease *coordinationv1.Lease, sent time.Time, ambiguous bool) {
	l.lease = lease
	l.mu.Lock()
	defer l.mu.Unlock()
	if sent.IsZero() {
		l.uid, l.proven, l.ambiguous = "", time.Time{}, false
		return
	}
	l.uid, l.proven, l.ambiguous = string(lease.UID), sent, l.ambiguous || ambiguous
}

// checkHeld returns an error if this process no longer holds the Lease with a UID; lease is nil if
// there is none.
func (l *lock) checkHeld(uid string, lease *coordinationv1.Lease) error {
	switch {
	case lease == nil || string(lease.UID) != uid:
		return fmt.Errorf("the Lease %s was deleted", l.Describe())
	case holderOf(lease) != l.Identity():
		return fmt.Errorf("the Lease %s was taken by %q", l.Describe(), truncate(holderOf(lease)))
	case lease.Annotations[annotationProcess] != l.process:
		return fmt.Errorf("the Lease %s was taken by another process of this pod", l.Describe())
	}
	return nil
}

// installed returns the UID of the operator's Deployment in a namespace, and reports whether it
// runs. If uid is set, a Deployment with another one does not count: a new owner of the namespace
// may have created it.
func (l *lock) installed(ctx context.Context, namespace, uid string) (string, bool, error) {
	var list appsv1.DeploymentList
	if err := l.request(ctx, func(ctx context.Context) error {
		return l.Client.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{"metadata.name": l.Deployment})
	}); err != nil {
		return "", false, fmt.Errorf("list Deployment %s/%s: %w", namespace, l.Deployment, err)
	}
	for i := range list.Items {
		if d := &list.Items[i]; runs(d) && (uid == "" || string(d.UID) == uid) {
			return string(d.UID), true, nil
		}
	}
	return "", false, nil
}

// runs reports whether a Deployment is this product's and scaled to have pods.
func runs(d *appsv1.Deployment) bool {
	return d.Labels[label.PartOf] == label.Product && d.DeletionTimestamp == nil && (d.Spec.Replicas == nil || *d.Spec.Replicas > 0)
}

// request sends a request with a timeout.
func (l *lock) request(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return do(ctx)
}

// logProblem logs an error unless it is the same as the last one, and returns it.
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

func holderOf(lease *coordinationv1.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// truncate shortens text that others wrote.
func truncate(s string) string { return s[:min(len(s), 200)] }
