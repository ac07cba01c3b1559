// Package lead says which operator works, where several run: the one that holds a Lease.
//
// Its Lock goes below client-go's leader election, which renews the Lease and gives it up,
// and is asked for it by one goroutine. client-go's own lock knows one way in which a
// holder ends without giving the Lease up: it is not renewed. This one asks the API server
// about the holder's pod too, and waits for what it waits for by watches.
package lead

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// deadline is how long one request may take, and pause how long is waited after one
	// that failed.
	deadline = 10 * time.Second
	pause    = time.Second
	// Flight is how long a holder's pod has to be gone before another takes the Lease: the
	// process, if it lives, has heard of it (Hold) and has ended what it had in flight.
	Flight = 2 * time.Second
)

// Scheme has the kinds that a Lock's client needs.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(corev1.AddToScheme(s), coordinationv1.AddToScheme(s), metav1.AddMetaToScheme(s))
}

// Pod is a pod that an operator runs in; the zero Pod is none.
type Pod struct{ Name, UID string }

// pods begin the identities that name a pod. All containers that run in one after the
// other have the same, so that one that was killed is followed by the next at once.
const pods = "pod"

func (p Pod) identity() string { return strings.Join([]string{pods, p.Name, p.UID}, "/") }

// podOf is the pod that an identity names; the zero Pod: it names none.
func podOf(identity string) Pod {
	if part := strings.Split(identity, "/"); len(part) == 3 && part[0] == pods {
		return Pod{Name: part[1], UID: part[2]}
	}
	return Pod{}
}

// Options are what a Lock works with.
type Options struct {
	Client client.WithWatch // of Scheme, with no cache: what it reads is what is so
	Lease  client.ObjectKey // the pods are in its namespace
	Pod    Pod              // that this process runs in
	// Deployment is that of the pods, with which the Lease goes; "": there is none.
	Deployment string
	Host       string // who holds the Lease where this process runs in none: nobody else is called that
	Log        *slog.Logger
}

var deploymentKind = appsv1.SchemeGroupVersion.WithKind("Deployment")

// Lock is the Lease: client-go's leader election works with it.
type Lock struct {
	Options
	identity string
	lease    *coordinationv1.Lease // as last read or written
	holds    bool                  // this process has it, or had
	taken    chan error            // another one has it now

	seen  string    // the resourceVersion of the Lease that was read last
	since time.Time // when it was read first
	gone  goneSince
}

// goneSince is a pod that was not there, and since when.
type goneSince struct {
	pod  Pod
	time time.Time
}

var _ resourcelock.Interface = (*Lock)(nil)

// New returns a Lock.
func New(o Options) *Lock {
	l := &Lock{Options: o, identity: o.Host, taken: make(chan error, 1)}
	if o.Pod != (Pod{}) {
		l.identity = o.Pod.identity()
	}
	return l
}

// Identity implements resourcelock.Interface.
func (l *Lock) Identity() string { return l.identity }

// Describe implements resourcelock.Interface.
func (l *Lock) Describe() string { return l.Lease.String() }

// RecordEvent implements resourcelock.Interface. The log tells it.
func (l *Lock) RecordEvent(string) {}

// Create implements resourcelock.Interface.
func (l *Lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.Lease.Namespace, Name: l.Lease.Name}}
	if err := l.own(ctx, lease); err != nil {
		return err
	}
	return l.write(ctx, lease, record, func(ctx context.Context) error { return l.Client.Create(ctx, lease) })
}

// Update implements resourcelock.Interface. It is refused if anybody wrote the Lease since
// it was read, and giving up what another one has is, too: client-go would take it from them.
// One that has not had it yet looks again then, and waits as Get does: client-go would look
// again after a while only, and whoever wrote it may have given it up.
func (l *Lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if l.lease == nil {
		return fmt.Errorf("the Lease %s has not been read yet", l.Lease)
	}
	if holder := holderOf(l.lease); record.HolderIdentity == "" && holder != l.identity {
		return fmt.Errorf("the Lease %s is not given up: %q has it", l.Lease, holder)
	}
	for {
		lease := l.lease.DeepCopy()
		err := l.write(ctx, lease, record, func(ctx context.Context) error { return l.Client.Update(ctx, lease) })
		if l.holds || record.HolderIdentity != l.identity || !apierrors.IsConflict(err) {
			return err
		}
		if _, _, err := l.Get(ctx); err != nil {
			return err
		}
	}
}

func (l *Lock) write(ctx context.Context, lease *coordinationv1.Lease, record resourcelock.LeaderElectionRecord, do func(context.Context) error) error {
	if record.HolderIdentity == l.identity {
		record.RenewTime = metav1.Now() // client-go's is of before Get, which may have waited
	}
	lease.Spec = resourcelock.LeaderElectionRecordToLeaseSpec(&record)
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	if err := do(ctx); err != nil {
		return err
	}
	l.lease = lease
	l.holds = l.holds || record.HolderIdentity == l.identity
	return nil
}

// own has the Lease go with the Deployment that this process is of: when that is deleted,
// so is the Lease. A process that outlives its Deployment makes none any more.
func (l *Lock) own(ctx context.Context, lease *coordinationv1.Lease) error {
	if l.Pod == (Pod{}) || l.Deployment == "" {
		return nil
	}
	pod, _, err := l.pod(ctx, l.Pod)
	if err != nil {
		return err
	}
	if pod == nil {
		return nil // Hold ends this process
	}
	if of := metav1.GetControllerOf(pod); of == nil || !strings.HasPrefix(of.Name, l.Deployment+"-") {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(deploymentKind.GroupVersion().WithKind(deploymentKind.Kind + "List"))
	if err := l.Client.List(ctx, &list, client.InNamespace(l.Lease.Namespace), named(l.Deployment)); err != nil {
		return fmt.Errorf("look at Deployment %s/%s: %w", l.Lease.Namespace, l.Deployment, err)
	}
	if len(list.Items) == 0 {
		return fmt.Errorf("no Lease is made: Deployment %s/%s is gone, and this operator with it", l.Lease.Namespace, l.Deployment)
	}
	lease.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: deploymentKind.GroupVersion().String(), Kind: deploymentKind.Kind, Name: l.Deployment, UID: list.Items[0].UID,
	}}
	return nil
}

// Get implements resourcelock.Interface. Where another one holds the Lease it waits until
// nobody works with it any more, and says then that nobody holds it.
func (l *Lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	for told := ""; ; {
		record, raw, err := l.read(ctx)
		switch {
		case err == nil && (record.HolderIdentity == "" || record.HolderIdentity == l.identity), apierrors.IsNotFound(err):
			return record, raw, err
		case l.holds: // it was taken, or cannot be read: client-go's deadline runs
			if err == nil {
				l.lose(record.HolderIdentity)
			}
			return record, raw, err
		}
		var end ending
		if err == nil {
			end, err = l.ending(ctx, record)
		}
		switch {
		case ctx.Err() != nil:
			return nil, nil, ctx.Err()
		case err != nil:
			l.Log.Warn("cannot see who works", "lease", l.Describe(), "error", err)
			rest(ctx, pause)
		case end.why != "":
			l.Log.Info("takes over", "from", record.HolderIdentity, "why", end.why)
			record.HolderIdentity = ""
			return record, raw, nil
		default:
			if told != record.HolderIdentity {
				told = record.HolderIdentity
				l.Log.Info("another operator works; waiting", "holder", told)
			}
			l.wait(ctx, podOf(record.HolderIdentity), end)
		}
	}
}

func (l *Lock) read(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	lease := &coordinationv1.Lease{}
	if err := l.Client.Get(ctx, l.Lease, lease); err != nil {
		return nil, nil, err
	}
	l.lease = lease
	record := resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)
	raw, err := json.Marshal(record)
	return record, raw, err
}

// lose says that another one has the Lease.
func (l *Lock) lose(holder string) {
	select {
	case l.taken <- fmt.Errorf("the Lease %s was taken by %s: this operator works no more", l.Lease, holder):
	default:
	}
}

func holderOf(lease *coordinationv1.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// rest waits for a time, or until the context ends.
func rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
