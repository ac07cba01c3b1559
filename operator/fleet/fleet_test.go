package fleet

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/operator/label"
)

func node(labels map[string]string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1", ResourceVersion: "7", Labels: labels},
		Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{
			Architecture: "amd64", KernelVersion: "5.15.0-1042-aws", OSImage: "Ubuntu 22.04.4 LTS",
			KubeletVersion: "v1.31.2", ContainerRuntimeVersion: "containerd://2.0.1",
		}},
	}
}

// with returns the labels of a node that NFD has labelled, and those given.
func with(more ...string) map[string]string {
	labels := map[string]string{label.Kernel: "5.15.0-1042-aws", label.OSID: "ubuntu", label.OSVersion: "22.04"}
	for i := 0; i < len(more); i += 2 {
		labels[more[i]] = more[i+1]
	}
	return labels
}

// apply applies a merge patch as the API server does.
func apply(n *corev1.Node, p Patch) *corev1.Node {
	n = n.DeepCopy()
	merge := func(into *map[string]string, changes map[string]*string) {
		if *into == nil {
			*into = map[string]string{}
		}
		for key, value := range changes {
			if value == nil {
				delete(*into, key)
			} else {
				(*into)[key] = *value
			}
		}
	}
	merge(&n.Labels, p.Labels)
	merge(&n.Annotations, p.Annotations)
	return n
}

func TestSourcesOfGPUPresence(t *testing.T) {
	for _, c := range []struct {
		name   string
		labels map[string]string
		wrote  string
		gpu    bool
	}{
		{"nobody", map[string]string{}, "", false},
		{"NFD: none", with(), "", false},
		{"NFD: a 3D controller", with(label.PCI3D, "true"), "", true},
		{"NFD: a display controller", with(label.PCIDisplay, "true"), "", true},
		{"NFD, by vendor", with(label.PCI, "true"), "", true},
		{"a person, where NFD has not been", map[string]string{label.Present: "true"}, "", true},
		{"a person, against NFD: a simulated driver", with(label.Present, "true"), "", true},
		{"a person: there is none", with(label.PCI, "true", label.Present, "false"), "", false},
		{"the operator, and NFD still sees it", with(label.PCI, "true", label.Present, "true"), "present", true},
		{"the operator, and NFD no longer sees it", with(label.Present, "true"), "present", false},
		{"the operator, and NFD has been removed", map[string]string{label.Present: "true"}, "present", true},
	} {
		n := node(c.labels)
		n.Annotations = map[string]string{label.OwnLabels: c.wrote}
		require.Equal(t, c.gpu, Observe(n).GPU, c.name)
	}
}
