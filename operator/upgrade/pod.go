package upgrade

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/operator/label"
)

// Pod is a pod on a node in flight, reduced to what decides whether and how it is removed.
type Pod struct {
	Namespace, Name, UID string
	Labels               map[string]string
	GPU                  bool   // it requests a GPU, MIG device or share of one, or was given one
	Class                string // its RuntimeClass, which may give it GPUs; "": none
	Finished             bool
	Deleting             bool
	Controlled           bool // a controller recreates it elsewhere
	Agent                bool // of a DaemonSet, or static: it belongs to the node
	Own                  bool // of this product: its loss hurts nobody
	EmptyDir             bool
	Created              time.Time
}

// validations are the validator's jobs, by their label app (validator/workload).
var validations = []string{"nvidia-driver-validation", "nvidia-device-plugin-validation"}

// ObservePod reduces a pod. namespaces are this product's: its labels count only there, as
// anybody may set them on pods elsewhere.
func ObservePod(p *corev1.Pod, namespaces ...string) *Pod {
	owner := metav1.GetControllerOf(p)
	_, static := p.Annotations[corev1.MirrorPodAnnotationKey]
	o := &Pod{
		Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Labels: p.Labels,
		Finished:   p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
		Deleting:   p.DeletionTimestamp != nil,
		Controlled: owner != nil,
		Agent:      static || owner != nil && owner.APIVersion == "apps/v1" && owner.Kind == "DaemonSet",
		Own: slices.Contains(namespaces, p.Namespace) &&
			(p.Labels[label.PartOf] == label.Product || slices.Contains(validations, p.Labels["app"]) && owner == nil),
		Created: p.CreationTimestamp.Time,
	}
	if p.Spec.RuntimeClassName != nil {
		o.Class = *p.Spec.RuntimeClassName
	}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			o.GPU = o.GPU || requestsGPU(list[i].Resources.Requests) || requestsGPU(list[i].Resources.Limits) || requestsGPUByEnv(list[i].Env)
		}
	}
	for i := range p.Spec.EphemeralContainers {
		o.GPU = o.GPU || requestsGPUByEnv(p.Spec.EphemeralContainers[i].Env)
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		o.EmptyDir = o.EmptyDir || v.EmptyDir != nil
		o.GPU = o.GPU || v.HostPath != nil && strings.HasPrefix(v.HostPath.Path, gpuDevices)
	}
	for key, value := range p.Annotations {
		o.GPU = o.GPU || strings.HasPrefix(key, cdiAnnotation) && (strings.Contains(value, "nvidia.com/") || strings.Contains(value, ".gpuready.io/"))
	}
	return o
}

// Ways to get GPUs other than a resource request: device nodes of the host, and CDI names in
// an annotation.
const (
	gpuDevices    = "/dev/nvidia"
	cdiAnnotation = "cdi.k8s.io/"
)

func requestsGPU(list corev1.ResourceList) bool {
	for name := range list {
		if nodestate.IsGPUResource(string(name)) {
			return true
		}
	}
	return false
}

// requestsGPUByEnv reports whether a container requests GPUs by its environment, which
// NVIDIA's runtime reads; "void" and "none" request none.
func requestsGPUByEnv(env []corev1.EnvVar) bool {
	return slices.ContainsFunc(env, func(e corev1.EnvVar) bool {
		return e.Name == "NVIDIA_VISIBLE_DEVICES" && e.Value != "" && e.Value != "void" && e.Value != "none"
	})
}

// Claims returns the names of a pod's ResourceClaims (Dynamic Resource Allocation), including
// those that were created for its extended resources.
func Claims(p *corev1.Pod) (names []string) {
	for i := range p.Spec.ResourceClaims {
		if name := p.Spec.ResourceClaims[i].ResourceClaimName; name != nil {
			names = append(names, *name)
		}
	}
	for i := range p.Status.ResourceClaimStatuses {
		if name := p.Status.ResourceClaimStatuses[i].ResourceClaimName; name != nil {
			names = append(names, *name)
		}
	}
	if extended := p.Status.ExtendedResourceClaimStatus; extended != nil {
		names = append(names, extended.ResourceClaimName)
	}
	return names
}

// GPUHandler reports whether a runtime handler gives containers GPUs: nvidia, nvidia-cdi,
// nvidia-legacy.
func GPUHandler(handler string) bool {
	return handler == gpuHandler || strings.HasPrefix(handler, gpuHandler+"-")
}

const gpuHandler = "nvidia"

// gpuDrivers are the name suffixes of DRA drivers that allocate GPUs or channels of their
// driver: gpu.nvidia.com, compute-domain.nvidia.com, gpu.gpuready.io.
var gpuDrivers = []string{".nvidia.com", ".gpuready.io"}

// ObserveClaim reports whether a ResourceClaim, of any version of its API, is allocated,
// and whether a device of gpuDrivers is part of the allocation.
func ObserveClaim(claim *unstructured.Unstructured) (allocated, gpu bool) {
	results, allocated, _ := unstructured.NestedSlice(claim.Object, "status", "allocation", "devices", "results")
	for _, result := range results {
		fields, _ := result.(map[string]any)
		driver, _ := fields["driver"].(string)
		for _, suffix := range gpuDrivers {
			gpu = gpu || strings.HasSuffix("."+driver, suffix)
		}
	}
	return allocated, gpu
}
