package fleet

import (
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Strip removes from a Node what Observe does not read, so that a cache of thousands stays
// small: of some 20 KB (images, managed fields, addresses) about one remains, and the labels of a
// node with a GPU, any of which an NVIDIADriver may select it by.
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
	known := int64(1)
	if withholdsGPUs(node.Status) {
		known = 2 // of which at most one is allocatable
	}
	node.Status = corev1.NodeStatus{
		Conditions:      readConditions(node.Status.Conditions),
		RuntimeHandlers: readHandlers(node.Status.RuntimeHandlers),
		Allocatable:     readGPUs(node.Status.Allocatable, 1),
		Capacity:        readGPUs(node.Status.Capacity, known),
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

func readHandlers(all []corev1.NodeRuntimeHandler) []corev1.NodeRuntimeHandler {
	var read []corev1.NodeRuntimeHandler
	for _, h := range all {
		read = append(read, corev1.NodeRuntimeHandler{Name: intern(h.Name)})
	}
	return read
}

// readGPUs keeps amount of one of the device plugin's resources, if there is anything of one.
func readGPUs(all corev1.ResourceList, amount int64) corev1.ResourceList {
	if !hasGPUs(all) {
		return nil
	}
	return corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(amount, resource.DecimalSI)}
}

func readConditions(all []corev1.NodeCondition) []corev1.NodeCondition {
	var read []corev1.NodeCondition
	for _, c := range all {
		switch c.Type {
		case corev1.NodeReady:
			// Nothing reads the kubelet's reason and message.
			read = append(read, corev1.NodeCondition{Type: c.Type, Status: c.Status, LastHeartbeatTime: c.LastHeartbeatTime})
		case readyType, healthyType:
			read = append(read, c)
		}
	}
	return read
}
