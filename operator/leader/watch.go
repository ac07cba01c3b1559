package leader

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// watchHeld watches the Lease that this process holds, and returns an error when it is lost. While
// the watch is interrupted, the renewals detect the loss.
func (l *lock) watchHeld(ctx context.Context) error {
	uid := l.held()
	for ctx.Err() == nil {
		lease, err := l.read(ctx)
		if err == nil || apierrors.IsNotFound(err) {
			if lost := l.checkHeld(uid, lease); lost != nil {
				return ignoreEnd(ctx, lost)
			}
			var lost error
			lost, err = l.watchObject(ctx, &coordinationv1.LeaseList{}, Namespace, Name, lease.ResourceVersion, func(e watch.Event) error {
				lease, is := e.Object.(*coordinationv1.Lease)
				if !is {
					return nil
				}
				if e.Type == watch.Deleted {
					lease = nil
				}
				return l.checkHeld(uid, lease)
			})
			if lost != nil {
				return ignoreEnd(ctx, lost)
			}
		}
		l.logInterruption(ctx, err)
	}
	return nil
}

// ignoreEnd returns nil once ctx has ended: then this process itself gives up the Lease.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return nil
}

// peek reads the Lease for awaitFree. It returns nil if it cannot.
func (l *lock) peek(ctx context.Context) *coordinationv1.Lease {
	lease, err := l.read(ctx)
	if err != nil {
		return nil
	}
	return lease
}

// awaitFree returns when the Lease, last read as seen, has been given up or deleted, or when its
// installation is gone. Nothing else makes an attempt before client-go's next one worthwhile.
func (l *lock) awaitFree(ctx context.Context, seen *coordinationv1.Lease) {
	for ; ctx.Err() == nil; seen = l.peek(ctx) {
		if seen == nil {
			pause(ctx, retryPeriod)
			continue
		}
		free, err := l.watchLeaseAndOwner(ctx, seen)
		if free {
			return
		}
		l.logInterruption(ctx, err)
	}
}

// watchLeaseAndOwner watches the Lease and the Deployment of its installation, and reports
// whether the Lease may be taken.
func (l *lock) watchLeaseAndOwner(ctx context.Context, seen *coordinationv1.Lease) (free bool, err error) {
	type end struct{ why, err error }
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	owner, uid := seen.Labels[labelNamespace], seen.Labels[labelDeployment]
	ends := make(chan end, 2)
	running := 1
	go func() {
		why, err := l.watchObject(ctx, &coordinationv1.LeaseList{}, Namespace, Name, seen.ResourceVersion, func(e watch.Event) error {
			lease, is := e.Object.(*coordinationv1.Lease)
			if is && (e.Type == watch.Deleted || holderOf(lease) == "" || lease.Labels[labelNamespace] != owner) {
				return errFree
			}
			return nil
		})
		ends <- end{why, err}
	}()
	if owner != "" && owner != l.Namespace && uid != "" {
		running++
		go func() {
			why, err := l.awaitUninstalled(ctx, owner, uid)
			ends <- end{why, err}
		}()
	}
	first := <-ends
	cancel()
	for range running - 1 {
		<-ends
	}
	return first.why != nil, first.err
}

// awaitUninstalled returns errFree when the Deployment with a UID is gone or has been scaled to
// zero.
func (l *lock) awaitUninstalled(ctx context.Context, namespace, uid string) (why, err error) {
	var list appsv1.DeploymentList
	if err := l.request(ctx, func(ctx context.Context) error {
		return l.Client.List(ctx, &list, client.InNamespace(namespace), byName(l.Deployment))
	}); err != nil {
		return nil, fmt.Errorf("list Deployment %s/%s: %w", namespace, l.Deployment, err)
	}
	there := false
	for i := range list.Items {
		there = there || string(list.Items[i].UID) == uid && runs(&list.Items[i])
	}
	if !there { // the running attempt has seen this
		<-ctx.Done()
		return nil, nil
	}
	return l.watchObject(ctx, &appsv1.DeploymentList{}, namespace, l.Deployment, list.ResourceVersion, func(e watch.Event) error {
		d, is := e.Object.(*appsv1.Deployment)
		if is && (e.Type == watch.Deleted || string(d.UID) != uid || !runs(d)) {
			return errFree
		}
		return nil
	})
}

// errFree ends a watch.
var errFree = errors.New("the Lease may be taken")

// watchObject watches one object from a resourceVersion on, until see returns an error, which it
// returns as why. err is why the watch ended otherwise; it may be nil.
func (l *lock) watchObject(ctx context.Context, list client.ObjectList, namespace, name, version string, see func(watch.Event) error) (why, err error) {
	w, err := l.Client.Watch(ctx, list, client.InNamespace(namespace), byName(name), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version}})
	if err != nil {
		return nil, fmt.Errorf("watch %T %s/%s: %w", list, namespace, name, err)
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, nil
		case e, open := <-w.ResultChan():
			if !open {
				return nil, nil
			}
			if e.Type == watch.Error {
				return nil, fmt.Errorf("watch %T %s/%s: %w", list, namespace, name, apierrors.FromObject(e.Object))
			}
			if why := see(e); why != nil {
				return why, nil
			}
		}
	}
}

// logInterruption logs why a watch ended, and waits before the next one.
func (l *lock) logInterruption(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		l.Log.Warn("cannot watch the Lease; retrying", "lease", l.Describe(), "error", err)
	}
	pause(ctx, retryPeriod)
}

func byName(name string) client.MatchingFields {
	return client.MatchingFields{"metadata.name": name}
}
