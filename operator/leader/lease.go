package leader

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/operator/label"
)

// writeHeld writes the Lease with this process as its holder by send, and records it as held.
func (l *lock) writeHeld(ctx context.Context, lease *coordinationv1.Lease, record resourcelock.LeaderElectionRecord, ambiguous bool, send func(context.Context) error) error {
	sent := time.Now()
	lease.Spec = resourcelock.LeaderElectionRecordToLeaseSpec(&record)
	if err := l.withTimeout(ctx, send); err != nil {
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

// setHeld records the Lease as last written. sent is when its request was sent; the zero time means
// that the Lease was given up.
func (l *lock) setHeld(lease *coordinationv1.Lease, sent time.Time, ambiguous bool) {
	l.lease = lease
	l.mu.Lock()
	defer l.mu.Unlock()
	if sent.IsZero() {
		l.uid, l.renewedAt, l.ambiguous = "", time.Time{}, false
		return
	}
	l.uid, l.renewedAt, l.ambiguous = string(lease.UID), sent, l.ambiguous || ambiguous
}

// checkHeld returns an error if this process no longer holds the Lease that it took. uid is that
// Lease's; lease is the current one, or nil if there is none.
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

// findDeployment returns the UID of the active Deployment of an operator in a namespace,
// and reports whether there is one. If uid is set, a Deployment with another UID does not
// count: a new owner of the namespace may have created it.
func (l *lock) findDeployment(ctx context.Context, namespace, uid string) (string, bool, error) {
	for _, name := range []string{l.Deployment, l.FormerDeployment} {
		if name == "" {
			continue
		}
		var deployments appsv1.DeploymentList
		if err := l.withTimeout(ctx, func(ctx context.Context) error {
			return l.Client.List(ctx, &deployments, client.InNamespace(namespace), client.MatchingFields{"metadata.name": name})
		}); err != nil {
			return "", false, fmt.Errorf("list Deployment %s/%s: %w", namespace, name, err)
		}
		for i := range deployments.Items {
			if d := &deployments.Items[i]; isActive(d) && (uid == "" || string(d.UID) == uid) {
				return string(d.UID), true, nil
			}
		}
	}
	return "", false, nil
}

// isActive reports whether a Deployment is this product's, is not being deleted, and is scaled to
// have pods.
func isActive(d *appsv1.Deployment) bool {
	return d.Labels[label.PartOf] == label.Product && d.DeletionTimestamp == nil && (d.Spec.Replicas == nil || *d.Spec.Replicas > 0)
}

func holderOf(lease *coordinationv1.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// truncate shortens text that others wrote.
func truncate(s string) string { return s[:min(len(s), 200)] }
