package controller

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// driverOf returns the ID of the driver that a DaemonSet installs and its pods' digest, and
// "" for other objects.
func driverOf(o client.Object) (id, digest string) {
	if d := daemonSet(o); d != nil {
		set := upgrade.ObserveSet(d)
		return set.ID, set.Digest
	}
	return "", ""
}

// sets returns the DaemonSets that install drivers, by ID.
func (m *model) sets() map[string]upgrade.Set {
	all := map[string]upgrade.Set{}
	for _, o := range m.objects {
		if o.GetLabels()[label.State] != string(progress.Driver) {
			continue
		}
		if d := daemonSet(o); d != nil {
			set := upgrade.ObserveSet(d)
			all[set.ID] = set
		}
	}
	return all
}

// daemonSet returns an object as a DaemonSet, or nil if it is none.
func daemonSet(o client.Object) *appsv1.DaemonSet {
	if d, is := o.(*appsv1.DaemonSet); is {
		return d
	}
	u, is := o.(runtime.Unstructured)
	if !is || o.GetObjectKind().GroupVersionKind() != daemonSetKind {
		return nil
	}
	var d appsv1.DaemonSet
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.UnstructuredContent(), &d); err != nil {
		return nil
	}
	return &d
}

// noDriverReasons are the validator's reasons for a node that has no driver at all
// (validator/step).
var noDriverReasons = []string{"DriverLibraryMissing", "KernelModuleNotLoaded"}

// driverMissing reports whether the validator finds no driver on the Node.
func driverMissing(n *fleet.Node) bool {
	condition := n.GPUReady
	message, about := strings.CutPrefix(condition.Message, string(readiness.Driver)+": ")
	return condition.Status == corev1.ConditionFalse && about && (slices.Contains(noDriverReasons, condition.Reason) || strings.HasPrefix(message, readiness.NoDriver))
}
