package upgrade

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/operator/label"
)

// Pod is one on a node in flight, reduced to what decides whether and how it goes.
type Pod struct {
	Namespace, Name, UID string
	Labels               map[string]string
	GPU                  bool // it asks for a GPU, MIG device or share of one
	Finished             bool
	Deleting             bool
	Controlled           bool // something will make it anew elsewhere
	Agent                bool // a DaemonSet's, or static: it belongs to the node
	Own                  bool // of this product: its loss is nobody's
	EmptyDir             bool
}

// gpuResources are the beginnings of the resource names that are GPUs.
var gpuResources = []string{"nvidia.com/gpu", "nvidia.com/mig-"}

// validations are the validator's jobs, by their label app (validator/workload).
var validations = []string{"nvidia-driver-validation", "nvidia-device-plugin-validation"}

// ObservePod reduces a pod.
func ObservePod(p *corev1.Pod) *Pod {
	owner := metav1.GetControllerOf(p)
	_, static := p.Annotations[corev1.MirrorPodAnnotationKey]
	o := &Pod{
		Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Labels: p.Labels,
		Finished:   p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
		Deleting:   p.DeletionTimestamp != nil,
		Controlled: owner != nil,
		Agent:      static || owner != nil && owner.Kind == "DaemonSet",
		Own:        p.Labels[label.PartOf] == label.Product || slices.Contains(validations, p.Labels["app"]) && owner == nil,
	}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			o.GPU = o.GPU || asksForGPU(list[i].Resources.Requests) || asksForGPU(list[i].Resources.Limits)
		}
	}
	for i := range p.Spec.Volumes {
		o.EmptyDir = o.EmptyDir || p.Spec.Volumes[i].EmptyDir != nil
	}
	return o
}

func asksForGPU(list corev1.ResourceList) bool {
	for name := range list {
		for _, prefix := range gpuResources {
			if strings.HasPrefix(string(name), prefix) {
				return true
			}
		}
	}
	return false
}
