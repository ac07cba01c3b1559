package progress

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Strip removes from a pod what neither ObservePod nor its eviction or deletion needs, so that
// a cache of many pods is small. It changes p.
func Strip(p *corev1.Pod) {
	p.ObjectMeta = metav1.ObjectMeta{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, Generation: p.Generation,
		CreationTimestamp: p.CreationTimestamp, DeletionTimestamp: p.DeletionTimestamp, DeletionGracePeriodSeconds: p.DeletionGracePeriodSeconds,
		Labels: p.Labels, OwnerReferences: p.OwnerReferences,
	}
	spec := corev1.PodSpec{NodeName: p.Spec.NodeName}
	if node := nodeOf(p); spec.NodeName == "" && node != "" {
		spec.Affinity = p.Spec.Affinity
	}
	p.Spec = spec
	p.Status = corev1.PodStatus{
		Phase: p.Status.Phase, Reason: p.Status.Reason, Message: p.Status.Message, StartTime: p.Status.StartTime,
		Conditions:            stripConditions(p),
		InitContainerStatuses: stripStatuses(p.Status.InitContainerStatuses), ContainerStatuses: stripStatuses(p.Status.ContainerStatuses),
	}
}

func stripConditions(p *corev1.Pod) (all []corev1.PodCondition) {
	for _, kind := range []corev1.PodConditionType{corev1.PodReady, corev1.PodScheduled} {
		if c := condition(p, kind); c != nil {
			all = append(all, corev1.PodCondition{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime, Message: c.Message})
		}
	}
	return all
}

func stripStatuses(statuses []corev1.ContainerStatus) (all []corev1.ContainerStatus) {
	for _, c := range statuses {
		all = append(all, corev1.ContainerStatus{Name: c.Name, Image: c.Image, Ready: c.Ready, RestartCount: c.RestartCount, State: c.State, LastTerminationState: c.LastTerminationState})
	}
	return all
}
