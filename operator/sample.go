package main

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/operator/label"
)

// sampleNode returns the Node to render for if no Nodes are given.
func sampleNode() corev1.Node {
	var n corev1.Node
	n.Name = "node"
	n.Labels = map[string]string{label.PCI: "true", label.OSID: "ubuntu", label.OSVersion: "22.04", label.Kernel: "5.15.0-105-generic"}
	n.Status.NodeInfo = corev1.NodeSystemInfo{
		Architecture: "amd64", KernelVersion: "5.15.0-105-generic", KubeletVersion: "v1.34.0", ContainerRuntimeVersion: "containerd://2.1.0",
	}
	return n
}
