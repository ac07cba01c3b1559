package lead

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ending is how it stands with a holder.
type ending struct {
	why   string        // it works no more; empty: it may
	after time.Duration // it has to be looked at again then at the latest
	pods  string        // the resourceVersion at which its pod was looked at
}

// ending says whether the holder of a record, which was read just now, works no more.
// The Lease is read before the pod: whoever takes it after that (another container of
// the same pod) has changed it, and Update is refused.
func (l *Lock) ending(ctx context.Context, record *resourcelock.LeaderElectionRecord) (ending, error) {
	now := time.Now()
	if l.seen != l.lease.ResourceVersion {
		l.seen, l.since = l.lease.ResourceVersion, now
	}
	lasts := time.Duration(record.LeaseDurationSeconds) * time.Second
	end := ending{after: l.since.Add(lasts).Sub(now)}
	if end.after <= 0 {
		end.why = fmt.Sprintf("the Lease has not been renewed for %v", lasts)
		return end, nil
	}
	holder := podOf(record.HolderIdentity)
	if holder == (Pod{}) {
		return end, nil
	}
	pod, version, err := l.pod(ctx, holder)
	if err != nil {
		return end, err
	}
	end.pods = version
	if pod != nil {
		l.gone = goneSince{}
		if ended(pod, record.RenewTime.Time) {
			end.why = "all containers of its pod have ended since it renewed the Lease"
		}
		return end, nil
	}
	if l.gone.pod != holder {
		l.gone = goneSince{holder, now}
	}
	if left := l.gone.time.Add(Flight).Sub(now); left > 0 {
		end.after = min(end.after, left)
	} else {
		end.why = "its pod is gone"
	}
	return end, nil
}

// pod reads a pod, nil where there is none of that UID, and the resourceVersion of the
// answer. It is a list, which needs no right that the operator has not got anyway.
func (l *Lock) pod(ctx context.Context, p Pod) (*corev1.Pod, string, error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	var list corev1.PodList
	if err := l.Client.List(ctx, &list, client.InNamespace(l.Lease.Namespace), named(p.Name)); err != nil {
		return nil, "", fmt.Errorf("look at pod %s/%s: %w", l.Lease.Namespace, p.Name, err)
	}
	for i := range list.Items {
		if string(list.Items[i].UID) == p.UID {
			return &list.Items[i], list.ResourceVersion, nil
		}
	}
	return nil, list.ResourceVersion, nil
}

// ended says whether the kubelet has seen all containers of a pod end after a time. Both
// times are of the clock of the pod's node. A container that has been started since has
// not had the Lease yet: it would have renewed it.
func ended(pod *corev1.Pod, renewed time.Time) bool {
	if len(pod.Status.ContainerStatuses) < len(pod.Spec.Containers) {
		return false
	}
	for _, c := range pod.Status.ContainerStatuses {
		last := c.State.Terminated
		if last == nil && c.State.Running == nil {
			last = c.LastTerminationState.Terminated
		}
		if last == nil || !last.FinishedAt.After(renewed) {
			return false
		}
	}
	return true
}

// wait returns when the Lease or the holder's pod has changed, at the latest when the
// holder has to be looked at again.
func (l *Lock) wait(ctx context.Context, holder Pod, end ending) {
	ctx, cancel := context.WithTimeout(ctx, end.after)
	defer cancel()
	lease, err := l.watch(ctx, &coordinationv1.LeaseList{}, l.Lease.Name, l.lease.ResourceVersion)
	if err == nil {
		defer lease.Stop()
		var pods watch.Interface
		var seen <-chan watch.Event // nothing ever comes, where no pod is known
		if holder != (Pod{}) {
			if pods, err = l.watch(ctx, &corev1.PodList{}, holder.Name, end.pods); err == nil {
				defer pods.Stop()
				seen = pods.ResultChan()
			}
		}
		if err == nil && changed(ctx, lease.ResultChan(), seen) {
			return
		}
	}
	if err != nil && ctx.Err() == nil {
		l.Log.Warn("cannot watch who works", "lease", l.Describe(), "error", err)
	}
	rest(ctx, pause)
}

// changed waits for an event; false: the watch has ended.
func changed(ctx context.Context, either, other <-chan watch.Event) bool {
	var event watch.Event
	var ok bool
	select {
	case <-ctx.Done():
		return true
	case event, ok = <-either:
	case event, ok = <-other:
	}
	return ok && event.Type != watch.Error
}

// watch watches what has a name, from a resourceVersion on.
func (l *Lock) watch(ctx context.Context, list client.ObjectList, name, version string) (watch.Interface, error) {
	w, err := l.Client.Watch(ctx, list, client.InNamespace(l.Lease.Namespace), named(name),
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version}})
	if err != nil {
		return nil, fmt.Errorf("watch %T %s: %w", list, name, err)
	}
	return w, nil
}

func named(name string) client.MatchingFields {
	return client.MatchingFields{"metadata.name": name}
}

// Hold waits until this process may work no more, and says why: its pod is gone, and
// another one may be at work, or another one has taken the Lease. It returns nil when the
// context ends.
func (l *Lock) Hold(ctx context.Context) error {
	looked := make(chan error, 1)
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { looked <- l.hasPod(watching) }()
	select {
	case err := <-looked:
		return err
	case err := <-l.taken:
		cancel()
		return errors.Join(err, <-looked)
	}
}

// hasPod waits until the pod of this process is gone.
func (l *Lock) hasPod(ctx context.Context) error {
	for ctx.Err() == nil {
		if l.Pod == (Pod{}) {
			<-ctx.Done()
			return nil
		}
		pod, version, err := l.pod(ctx, l.Pod)
		if err == nil && pod == nil {
			return fmt.Errorf("the pod %s/%s (%s) is gone: this operator works no more", l.Lease.Namespace, l.Pod.Name, l.Pod.UID)
		}
		if err == nil {
			err = l.untilGone(ctx, version)
		}
		if err != nil && ctx.Err() == nil {
			l.Log.Warn("cannot see whether the own pod is there", "error", err)
			rest(ctx, pause)
		}
	}
	return nil
}

// untilGone returns when the pod of this process may be gone.
func (l *Lock) untilGone(ctx context.Context, version string) error {
	w, err := l.watch(ctx, &corev1.PodList{}, l.Pod.Name, version)
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-w.ResultChan():
			if !ok || event.Type == watch.Deleted {
				return nil
			}
			if event.Type == watch.Error {
				return fmt.Errorf("watch pod %s: %w", l.Pod.Name, apierrors.FromObject(event.Object))
			}
		}
	}
}
