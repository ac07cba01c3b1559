package fleet

import (
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Strip removes from a Node what Observe does not read, so that a cache of thousands stays
// small: of about 20 KB (images, managed fields, addresses) 1 KB remains. A node that may have a GPU
// keeps all its labels, since an NVIDIADriver may select by any of them.
func Strip(node *corev1.Node) {
	meta := node.ObjectMeta
	wantedLabel := readLabel
	if (&Node{Labels: meta.Labels}).mayHaveGPU() {
		wantedLabel = func(string) bool { return true }
	}
	node.ObjectMeta = metav1.ObjectMeta{
		Name: meta.Name, UID: meta.UID, ResourceVersion: meta.ResourceVersion,
		CreationTimestamp: meta.CreationTimestamp, DeletionTimestamp: meta.DeletionTimestamp,
		Labels: filterInterned(meta.Labels, wantedLabel), Annotations: filterInterned(meta.Annotations, readAnnotation),
	}
	node.Spec = corev1.NodeSpec{Unschedulable: node.Spec.Unschedulable, Taints: node.Spec.Taints}
	info := node.Status.NodeInfo
	// Observe asks only whether there are GPUs, and whether fewer are allocatable than there are. So 1 of 1, or
	// 1 of 2, stands for the real numbers, and a Node of which only these change stays the same.
	capacity := int64(1)
	if withholdsGPUs(node.Status) {
		capacity = 2
	}
	node.Status = corev1.NodeStatus{
		Conditions:      keepConditions(node.Status.Conditions),
		RuntimeHandlers: keepHandlers(node.Status.RuntimeHandlers),
		Allocatable:     gpuPlaceholder(node.Status.Allocatable, 1),
		Capacity:        gpuPlaceholder(node.Status.Capacity, capacity),
		NodeInfo: corev1.NodeSystemInfo{
			KernelVersion: intern(info.KernelVersion), OSImage: intern(info.OSImage), Architecture: intern(info.Architecture),
			ContainerRuntimeVersion: intern(info.ContainerRuntimeVersion), KubeletVersion: intern(info.KubeletVersion),
		},
	}
}

// filterInterned returns the wanted entries of m, with interned strings.
func filterInterned(m map[string]string, wanted func(string) bool) map[string]string {
	var kept map[string]string
	for key, value := range m {
		if !wanted(key) {
			continue
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[intern(key)] = intern(value)
	}
	return kept
}

// intern returns one shared copy of s, as most Nodes have the same strings. Fewer strings mean
// less work for the garbage collector.
func intern(s string) string { return unique.Make(s).Value() }

func keepHandlers(all []corev1.NodeRuntimeHandler) []corev1.NodeRuntimeHandler {
	var kept []corev1.NodeRuntimeHandler
	for _, h := range all {
		kept = append(kept, corev1.NodeRuntimeHandler{Name: intern(h.Name)})
	}
	return kept
}

// gpuPlaceholder returns amount of nvidia.com/gpu if the list has any of the device plugin's resources, and
// nil otherwise.
func gpuPlaceholder(all corev1.ResourceList, amount int64) corev1.ResourceList {
	if !hasGPUs(all) {
		return nil
	}
	return corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(amount, resource.DecimalSI)}
}

func keepConditions(all []corev1.NodeCondition) []corev1.NodeCondition {
	var kept []corev1.NodeCondition
	for _, c := range all {
		switch c.Type {
		case corev1.NodeReady:
			// Nothing reads the kubelet's reason and message.
			kept = append(kept, corev1.NodeCondition{Type: c.Type, Status: c.Status, LastHeartbeatTime: c.LastHeartbeatTime})
		case readyType, healthyType:
			kept = append(kept, c)
		}
	}
	return kept
}
