package progress

// Action returns what a person should do about a node's reason, or "" if the message says it.
func Action(reason string) string {
	return map[string]string{
		ReasonImagePull:     "see that the image exists and that the node may pull it (driver.imagePullSecrets of the policy, proxies, the registry's CA)",
		ReasonCrashLoop:     "read the container's log: kubectl logs --previous",
		ReasonCannotStart:   "see kubectl describe pod: what the container needs is missing on the node or in the namespace",
		ReasonUnschedulable: "make room on the node, or let the pod's tolerations fit its taints (daemonsets.tolerations of the policy)",
		ReasonNotAdmitted:   "see kubectl describe pod for what is missing; the pod is recreated once it is deleted",
		ReasonHostDriver:    "nothing: the host's own driver is used, and the driver's pod is removed",
		ReasonTerminating:   "nothing, unless it lasts: then see which finalizer or process holds the pod",
		ReasonInit:          "wait, or read the init container's log: kubectl logs -c",
		ReasonStarting:      "wait, or see kubectl describe pod",
		ReasonNotReady:      "wait, or read the container's log",
		ReasonNodeNotReady:  "see why the kubelet is silent: kubectl describe node",
		ReasonExcluded:      "nothing, or remove the label nvidia.com/gpu.deploy.operands",
		ReasonHandedOver:    "nothing, or hand the node over with the label gpuready.io/operator=gpuready",
		ReasonNoPod:         "see kubectl describe daemonset: its node selector, tolerations and Events",
		ReasonNotValidated:  "see the log of the validator's pod on the node (DaemonSet nvidia-operator-validator)",
		ReasonStale:         "see the log of the validator's pod on the node (DaemonSet nvidia-operator-validator)",
		ReasonNoLabels:      "wait, or see the log of the validator's pod and, where NFD publishes the labels, of NFD's worker on the node",
	}[reason]
}
