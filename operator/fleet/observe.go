package fleet

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/operator/label"
)

// The validator's conditions of a Node.
const (
	readyType   corev1.NodeConditionType = "GPUReady"
	healthyType corev1.NodeConditionType = "GPUHealthy"
)

// Observe reduces a Node, which may have been stripped, to what the operator acts on. The
// Node must not be changed afterwards, as the result shares parts of it.
func Observe(node *corev1.Node) *Node {
	info := node.Status.NodeInfo
	n := &Node{
		Name:        node.Name,
		UID:         string(node.UID),
		Version:     node.ResourceVersion,
		Created:     node.CreationTimestamp.Time,
		Cordoned:    node.Spec.Unschedulable,
		Taints:      node.Spec.Taints,
		Injection:   injectionOf(info.KubeletVersion, info.ContainerRuntimeVersion),
		Kubelet:     info.KubeletVersion,
		Runtime:     info.ContainerRuntimeVersion,
		Handlers:    handlerNames(node.Status.RuntimeHandlers),
		Labels:      filter(node.Labels, readLabel),
		Annotations: filter(node.Annotations, readAnnotation),
		Allocatable: hasGPUs(node.Status.Allocatable),
		Registered:  hasGPUs(node.Status.Capacity),
		Withheld:    withholdsGPUs(node.Status),
	}
	for i := range node.Status.Conditions {
		switch c := &node.Status.Conditions[i]; c.Type {
		case corev1.NodeReady:
			n.Ready, n.Heartbeat = c.Status == corev1.ConditionTrue, c.LastHeartbeatTime.Time
		case readyType:
			n.GPUReady = condition(c)
		case healthyType:
			n.GPUHealthy = condition(c)
		}
	}
	n.HasNFDLabels = n.Labels[label.Kernel] != "" || n.Labels[label.OSID] != ""
	if n.GPU = n.hasGPU(); n.GPU {
		n.AllLabels = node.Labels
	}
	n.Pool = poolOf(n.Labels, &info)
	n.Pool.NotServed = n.ReportsPlatformNotServed() || n.Labels[label.Workload] == vGPUHost || !n.detectedByNFD() && isOtherPlatform(info.KernelVersion)
	return n
}

// vGPUHost is the value of label.Workload with which a person gives the node's GPUs to NVIDIA's vGPU
// manager.
const vGPUHost = "vm-vgpu"

// ReportsPlatformNotServed reports whether the validator has found that the machine is of a platform
// that is not served.
func (n *Node) ReportsPlatformNotServed() bool {
	return n.GPUReady.Status == corev1.ConditionFalse && n.GPUReady.Reason == reasonPlatform
}

// reasonPlatform is the reason of the validator's condition on such a platform.
const reasonPlatform = "PlatformNotServed"

// isOtherPlatform reports whether a kernel is that of WSL2 or of a Jetson, by its release:
// 5.15.153.1-microsoft-standard-WSL2, 5.15.148-tegra. An IGX Orin has the kernel of a Jetson, and is
// served if it has a GPU on its PCI bus, which NFD then labels.
func isOtherPlatform(kernel string) bool {
	return strings.Contains(kernel, "-microsoft-standard") || strings.HasSuffix(kernel, "-tegra")
}

// hasGPUs reports whether there is anything of a resource of the device plugin.
func hasGPUs(all corev1.ResourceList) bool {
	for name, amount := range all {
		if nodestate.IsGPUResource(string(name)) && amount.Sign() > 0 {
			return true
		}
	}
	return false
}

// withholdsGPUs reports whether the kubelet knows more of a resource of the device plugin than pods may be
// given.
func withholdsGPUs(s corev1.NodeStatus) bool {
	for name, amount := range s.Capacity {
		if nodestate.IsGPUResource(string(name)) && amount.Cmp(s.Allocatable[name]) > 0 {
			return true
		}
	}
	return false
}

// handlerNames returns the sorted names of handlers. The one without a name stands for the default.
func handlerNames(all []corev1.NodeRuntimeHandler) (names []string) {
	for _, h := range all {
		if h.Name != "" {
			names = append(names, h.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// hasGPU reports whether the node has a GPU. A person's label decides. The operator's own label
// does not count on a node that NFD has labelled, since NFD shows whether the GPU is still
// there. If all of NFD's labels are gone, the operator's label counts: a driver is not removed
// from under running pods because NFD is being replaced.
func (n *Node) hasGPU() bool {
	switch present := n.Labels[label.Present]; {
	case present != "" && present != yes:
		return false
	case n.detectedByNFD():
		return true
	case present == yes:
		return !n.HasNFDLabels || !n.recorded().has(label.Present)
	}
	return false
}

// mayHaveGPU reports whether a label says that the node has a GPU.
func (n *Node) mayHaveGPU() bool { return n.detectedByNFD() || n.Labels[label.Present] == yes }

// detectedByNFD reports whether NFD has found an NVIDIA GPU: a display or 3D controller or, if
// NFD is set up to label by vendor, any NVIDIA device.
func (n *Node) detectedByNFD() bool {
	return n.Labels[label.PCI3D] == yes || n.Labels[label.PCIDisplay] == yes || n.Labels[label.PCI] == yes
}

// SimilarGPULabel returns a label, "KEY=VALUE", that is like one that says that a node has a GPU and does not
// count, since its letters or its value are others, and the one that would count. Both are "" if there is none.
func SimilarGPULabel(all map[string]string) (have, want string) {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		for _, read := range []string{label.Present, label.PCI3D, label.PCIDisplay, label.PCI} {
			value := all[key]
			if strings.EqualFold(key, read) && (key != read || value != yes) && !strings.EqualFold(value, "false") {
				return key + "=" + value, read + "=" + yes
			}
		}
	}
	return "", ""
}

func condition(c *corev1.NodeCondition) Condition {
	return Condition{Status: c.Status, Reason: c.Reason, Message: c.Message, Since: c.LastTransitionTime.Time, Renewed: c.LastHeartbeatTime.Time}
}

// poolOf prefers NFD's labels, so that a Node agrees with the labels that place pods on it, and
// falls back to what the kubelet reports.
func poolOf(labels map[string]string, info *corev1.NodeSystemInfo) Pool {
	p := Pool{
		Arch:   info.Architecture,
		Kernel: labels[label.Kernel],
		RHCOS:  labels[label.OSTree],
	}
	if p.Arch == "" {
		p.Arch = labels[corev1.LabelArchStable]
	}
	if p.Kernel == "" {
		p.Kernel = kernelLabel(info.KernelVersion)
	}
	if id := labels[label.OSID]; id != "" {
		p.OS = Tag(id, labels[label.OSVersion], labels[label.RHELID], p.RHCOS)
	} else {
		p.OS = prettyTag(info.OSImage)
	}
	p.CoreOS = p.RHCOS != "" || strings.HasPrefix(p.OS, rhcos) || strings.Contains(info.OSImage, "CoreOS")
	return p
}

// kernelLabel formats a kernel's version as NFD does in its label, so that a Node is in the same
// pool before and after NFD has labelled it: "6.8.0+64k" is not a valid label value.
func kernelLabel(version string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		}
		return '_'
	}, version), "-_.")
}

// readLabel reports whether the operator reads or writes a Node's label.
func readLabel(key string) bool {
	switch key {
	case label.PCI, label.PCI3D, label.PCIDisplay, label.Kernel,
		label.OSID, label.OSVersion, label.OSTree, label.RHELID, corev1.LabelArchStable,
		label.Present, label.Serve, label.Driver, label.Injection, label.HandOver, label.UpgradeState, label.UpgradeSkip, label.Workload, label.GPUProduct:
		return true
	}
	return strings.HasPrefix(key, label.Deploy)
}

func readAnnotation(key string) bool {
	switch key {
	case label.OwnLabels, label.InitiallyCordoned, label.UpgradeSince, label.UpgradeReason, label.UpgradeTarget, label.UpgradeCordoned, label.Features:
		return true
	}
	return false
}

// filter returns the wanted entries of m, or m itself if that is all of them.
func filter(m map[string]string, wanted func(string) bool) map[string]string {
	count := 0
	for key := range m {
		if wanted(key) {
			count++
		}
	}
	if count == len(m) {
		return m
	}
	kept := make(map[string]string, count)
	for key, value := range m {
		if wanted(key) {
			kept[key] = value
		}
	}
	return kept
}
