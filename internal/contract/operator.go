package contract

// operatorReasons are the reasons of the operator and of kubectl gpu.
var operatorReasons = []group{
	{by: Operator, of: "the conditions of a ClusterPolicy", rows: []Reason{
		{Reason: "AllNodesReady", Meaning: "every served GPU node is proven", Next: "nothing"},
		{
			Reason:  "NoGPUNodes",
			Meaning: "NFD labelled the nodes, and none has an NVIDIA GPU",
			Next: "nothing; a new one will be served. If NFD cannot see the GPU (a simulated one), label the node " +
				"`nvidia.com/gpu.present=true`",
		},
		{
			Reason:  "NoNodeFeatureLabels",
			Meaning: "no node has labels of Node Feature Discovery, so the operator cannot know which have GPUs",
			Next:    "install NFD, or label the nodes `nvidia.com/gpu.present=true`",
		},
		{
			Reason:  "NodesNotReady",
			Meaning: "some GPU nodes are not proven; the message names the first",
			Next:    "`kubectl gpu status`, then `kubectl gpu explain NODE`",
		},
		{
			Reason:  "NodesUnknown",
			Meaning: "some GPU nodes report nothing current, and nothing is wrong with the others",
			Next:    "find out why their kubelet or validator is silent",
		},
		{
			Reason:  "NodesProgressing",
			Meaning: "some GPU nodes are still being set up",
			Next:    "wait; the alert GPUNodeStuck reports one that makes no progress",
		},
		{
			Reason:  "DriverUpgrade",
			Meaning: "a change of the driver is being rolled out, node by node",
			Next:    "wait; `status.upgrade` has the counts",
		},
		{
			Reason:  "ServeSwitch",
			Meaning: "nodes change between the device plugin and the DRA driver; the message names what the first of them wait for",
			Next:    "wait; `status.serve` has the counts. A node whose GPUs are all held by pods from before waits until one ends",
		},
		{Reason: "OperandsRolling", Meaning: "pods of toolkit, plugin or validator are being replaced", Next: "wait"},
		{Reason: "Settled", Meaning: "no change is under way", Next: "nothing"},
		{
			Reason:  "NodesFailed",
			Meaning: "some GPU nodes failed, and waiting does not help",
			Next:    "`kubectl gpu explain NODE` for those in the message",
		},
		{
			Reason:  "DriverUpgradeFailed",
			Meaning: "the driver upgrade failed on a node, and no other node starts",
			Next:    "see the node's annotation `gpuready.io/driver-upgrade.why`; the upgrade continues once the cause is gone",
		},
		{
			Reason: "NodeNotWritten",
			Meaning: "for two minutes or longer, the named node could not be written, or its driver pod could not be deleted. Its " +
				"turn went to other nodes, and its upgrade is retried every minute",
			Next: "find the admission webhook or policy that refuses it: `kubectl get " +
				"validatingwebhookconfigurations,mutatingwebhookconfigurations,validatingadmissionpolicies`",
		},
		{
			Reason: "DriverUpgradeBlocked",
			Meaning: "a pod on the named node cannot be evicted, does not end, or holds the driver. Its turn went to other nodes, and " +
				"its old driver keeps serving",
			Next: "end the pod: the upgrade is retried then, and every hour; docs/upgrade.md has what each message asks for",
		},
		{
			Reason:  "OperandsFailed",
			Meaning: "pods that no state waits for (DCGM, its exporter, the MIG manager), or that serve proven nodes, do not start",
			Next:    "`kubectl describe pod` of those in the message",
		},
		{
			Reason:  "ReconcileFailed",
			Meaning: "the operator's reconcile failed; the message has the API server's answer",
			Next:    "check admission webhooks, quotas and the operator's log",
		},
		{
			Reason: "RightsMissing",
			Meaning: "the API server refuses the operator a right that its roles should grant; the message names verb, resource and " +
				"namespace",
			Next: "install its roles again: `helm upgrade`, `kubectl apply -f operator.yaml`, or the OLM bundle: docs/operator.md",
		},
		{Reason: "NothingFailed", Meaning: "nothing failed", Next: "nothing"},
		{
			Reason:  "FieldsNotServed",
			Meaning: "the named fields and settings have no effect",
			Next:    "what `status.unserved` says: `kubectl gpu status`",
		},
		{Reason: "AllFieldsServed", Meaning: "all set fields have an effect", Next: "nothing"},
		{Reason: "Ignored", Meaning: "an older ClusterPolicy is in force", Next: "delete one of the two"},
		{
			Reason: "OtherOperatorRuns",
			Meaning: "an Event of the policy and a line of the log: NVIDIA's operator serves this cluster and writes the policy's " +
				"status",
			Next: "uninstall it, or hand nodes over with the label `gpuready.io/operator=gpuready`",
		},
		{
			Reason: "AnotherInstallation",
			Meaning: "the condition `Contested`: a device plugin of gpuready's manifests runs on nodes of the policy, and the kubelet " +
				"uses whichever registered last",
			Next: "the command in the message; docs/manifests-to-operator.md",
		},
		{
			Reason: "AnotherOperator",
			Meaning: "a second gpuready operator is installed and does nothing (condition `Contested`), or its operands still run and " +
				"none are created beside them (`Ready`)",
			Next: "uninstall one of the two; delete the operands in the message",
		},
		{
			Reason:  "UpgradePolicyInvalid",
			Meaning: "`driver.upgradePolicy` is invalid; the message says why",
			Next:    "correct the field",
		},
	}},
	{by: Operator, of: "a pool's driver", rows: []Reason{
		{
			Reason:  "OSUnknown",
			Meaning: "the operating system of the pool's nodes is unknown, so no image tag can be chosen",
			Next:    "check that NFD labels them with `system-os_release`, and that the release is supported",
		},
		{
			Reason:  "KernelUnknown",
			Meaning: "the policy asks for a precompiled driver, and the nodes' kernel is unknown",
			Next:    "check that NFD labels them with `kernel-version.full`",
		},
		{
			Reason:  "ImageInvalid",
			Meaning: "the policy's fields do not form a valid image name",
			Next:    "correct `driver.repository`, `driver.image` and `driver.version`",
		},
		{
			Reason:  "OSNotSupported",
			Meaning: "the policy names no driver image, and NVIDIA publishes none for the nodes' operating system",
			Next:    "install the driver on the hosts and set `driver.enabled: false`, or name an image of yours (docs/driver.md)",
		},
		{Reason: "PlatformNotServed", Meaning: platformMeaning + "; no driver is deployed there", Next: platformNext},
		{
			Reason:  "PrecompiledImageMissing",
			Meaning: "the registry does not have the image in the message; the pool keeps its current driver",
			Next:    "build and push it, name another `driver.version`, or set `driver.precompiledFallback: DriverToolkit`",
		},
		{
			Reason:  "RegistryPending",
			Meaning: "the operator is asking the registry whether the image exists, or whose driver container it is",
			Next:    "wait",
		},
		{
			Reason:  "RegistryUnknown",
			Meaning: "the registry cannot be reached, or gives no answer; the pool keeps its current driver",
			Next:    "check `driver.imagePullSecrets`, the operator's proxy settings and its CA",
		},
		{
			Reason:  "RHCOSVersionUnknown",
			Meaning: "RHCOS nodes have no label `system-os_release.OSTREE_VERSION`",
			Next:    "apply the NodeFeatureRule that comes with the operator",
		},
		{
			Reason:  "DriverToolkitImageMissing",
			Meaning: "ImageStream `openshift/driver-toolkit` has no tag for the RHCOS version in the message",
			Next: "check `oc get imagestream -n openshift driver-toolkit`; it comes with the cluster's release. Nodes without a " +
				"driver get one of gpuready's own images all the same: it may contain modules, or pull them from " +
				"`driver.prebuild`",
		},
		{
			Reason:  "DriverToolkitUnknown",
			Meaning: "ImageStream `openshift/driver-toolkit` could not be read; the message has the reason",
			Next: "if it is forbidden: install with the chart's `platform.openshift=true`, or grant the operator `get`, `list` and " +
				"`watch` of it",
		},
		{
			Reason: "NoDriverSelected",
			Meaning: "the policy sets `driver.useNvidiaDriverCRD`, and no NVIDIADriver selects the node; it keeps its driver, and a " +
				"new node gets none",
			Next: "label the node, or create an NVIDIADriver that selects it or has `spec.default`",
		},
		{
			Reason:  "Conflict",
			Meaning: "several NVIDIADrivers select the node; it keeps its driver, and a new node gets none",
			Next:    "change a `nodeSelector` or the node's labels, so that one is left",
		},
		{
			Reason: "SelectorInvalid",
			Meaning: "the `nodeAffinity` of an NVIDIADriver cannot be read; the nodes that its `nodeSelector` selects keep what they " +
				"have",
			Next: "correct it",
		},
		{
			Reason:  "DriverTypeNotServed",
			Meaning: "an NVIDIADriver is for the hosts of virtual machines (`vgpu-host-manager`)",
			Next:    "keep NVIDIA's operator for such nodes",
		},
		{
			Reason:  "DriversUnknown",
			Meaning: "the NVIDIADrivers cannot be read, or the cluster has no definition of them; all nodes keep what they have",
			Next:    "apply the definition and the roles of this version: `helm upgrade`, or `kubectl apply -f operator.yaml`",
		},
		{
			Reason:  "NotUsed",
			Meaning: "on an NVIDIADriver: the ClusterPolicy has the drivers of all nodes",
			Next:    "set `driver.useNvidiaDriverCRD` in the policy, or delete the NVIDIADriver",
		},
	}},
	{by: Operator, of: "what the policy asks for", rows: []Reason{
		{
			Reason:  "ConfigMapMissing",
			Meaning: "a ConfigMap that the policy names does not exist in the operands' namespace",
			Next:    "create it, or remove the field",
		},
		{
			Reason: "CertificatesInvalid",
			Meaning: "the ConfigMap of `driver.certConfig` does not exist, cannot be read, or has a key without a valid certificate; " +
				"the message names ConfigMap and key. The operator asks registries without it",
			Next: "correct the key, or create the ConfigMap in the operands' namespace",
		},
		{
			Reason:  "DriverVersionUnknown",
			Meaning: "`driver.prebuild` is set, and the driver's version is unknown; nothing is pulled or pushed",
			Next:    "set `driver.version` to a whole version (`580.95.05`), or the image's label `io.gpuready.driver`",
		},
		{
			Reason: "FieldPassedOver",
			Meaning: "the driver's image is not gpuready's own, or its registry did not confirm it; so the field in the message is " +
				"not passed to it",
			Next: "remove the field, or name an image that is built from `gpuready/driver`",
		},
		{
			Reason:  "DRAUnsupported",
			Meaning: "`draDriver.enabled` is set, and the API server does not serve `resource.k8s.io/v1`; no DRA driver is deployed",
			Next:    "upgrade Kubernetes to 1.34 or newer, or set `draDriver.enabled` to false",
		},
		{
			Reason:  "DRAIncomplete",
			Meaning: "the DRA driver lacks the device plugin, which finds the GPUs for it, or CDI",
			Next:    "set what the message names",
		},
		{
			Reason: "NodesWithoutDRA",
			Meaning: "`draDriver.serve` is `dra`, and some nodes keep the device plugin: their kubelet is older than 1.34, their " +
				"container runtime has no CDI, or a label `nvidia.com/gpu.deploy.…=false` keeps a pod away that claims need",
			Next: "upgrade those nodes, or label them `nvidia.com/gpu.serve=plugin`",
		},
		{
			Reason:  "NoDRADriver",
			Meaning: "a person's label `nvidia.com/gpu.serve=dra` is on a node, and there is no DRA driver: the node offers no GPU",
			Next:    "set `draDriver.enabled` to true, or the label to `plugin`",
		},
		{
			Reason:  "ValueInvalid",
			Meaning: "the schema accepts a value that Kubernetes would refuse; it is left out",
			Next:    "correct the field in the message",
		},
	}},
	{by: Operator, of: "a node", rows: []Reason{
		{
			Reason:  "NodeNotReady",
			Meaning: "the Node is not Ready, so its earlier reports are ignored",
			Next:    "`kubectl describe node`",
		},
		{
			Reason:  "OperandsKeptAway",
			Meaning: "the label `nvidia.com/gpu.deploy.operands=false` keeps all operands away",
			Next:    "nothing, or remove it",
		},
		{
			Reason:  "NotSelected",
			Meaning: "the policy's `daemonsets.nodeSelector` or `validator.nodeSelector` does not select the node",
			Next:    "nothing, or change one of the two, or the node's labels",
		},
		{
			Reason:  "NotHandedOver",
			Meaning: "NVIDIA's operator runs, and the node was not handed over to gpuready",
			Next:    "nothing, or label it `gpuready.io/operator=gpuready`",
		},
		{
			Reason:  "PodMissing",
			Meaning: "the operand has no pod on the node",
			Next:    "`kubectl describe daemonset`: its node selector, tolerations and Events (a quota, an admission webhook)",
		},
		{
			Reason:  "ImagePullBackOff",
			Meaning: "the image cannot be pulled; the message has the registry's answer",
			Next:    "check that the image exists and that the node may pull it: `imagePullSecrets`, proxies, the registry's CA",
		},
		{
			Reason:  "CrashLoopBackOff",
			Meaning: "a container ends again and again; the message says how",
			Next:    "`kubectl logs --previous`",
		},
		{
			Reason:  "ContainerCannotStart",
			Meaning: "the kubelet or the runtime cannot start a container",
			Next:    "`kubectl describe pod`: a ConfigMap, a Secret, a directory or a runtime handler is missing",
		},
		{
			Reason:  "Unschedulable",
			Meaning: "the scheduler cannot place the pod on the node",
			Next:    "free resources, or adapt `daemonsets.tolerations` to the node's taints",
		},
		{
			Reason:  "PodNotAdmitted",
			Meaning: "the kubelet refused or evicted the pod",
			Next:    "`kubectl describe pod`; a new one is created once it is deleted",
		},
		{
			Reason:  "PodTerminating",
			Meaning: "the pod is being deleted",
			Next:    "wait; if it takes long, find the process or finalizer that holds it",
		},
		{
			Reason:  "HostDriver",
			Meaning: "the driver's pod found a driver on the host",
			Next:    "nothing: that driver is used, and the pod is removed",
		},
		{
			Reason:  "InitContainerWaiting",
			Meaning: "an init container has not ended yet",
			Next:    "wait, or `kubectl logs -c` of it",
		},
		{Reason: "PodStarting", Meaning: "the containers are starting", Next: "wait, or `kubectl describe pod`"},
		{
			Reason:  "PodNotReady",
			Meaning: "the container runs and is not ready yet; building a driver takes minutes",
			Next:    "wait, or read its log",
		},
		{
			Reason:  "NotValidated",
			Meaning: "nothing has reported yet whether the GPUs can be used, or a label keeps the validator away",
			Next:    "read the log of the validator's pod on the node",
		},
		{
			Reason:  "ConditionStale",
			Meaning: "the validator has been silent for 15 minutes",
			Next:    "read the log of its pod, and check that it reaches the API server",
		},
		{
			Reason:  "FeatureLabelsMissing",
			Meaning: "everything is proven, but the Node has no label `nvidia.com/gpu.product`",
			Next:    "wait; then read the log of the validator, or of NFD's worker if that publishes the labels",
		},
	}},
	{by: Operator, of: "Events of a Node", rows: []Reason{
		{Reason: "GPUNodeReady", Meaning: "a failed node is ready again", Next: "nothing"},
		{
			Reason:  "GPUServe",
			Meaning: "the operator has changed how pods get the node's GPUs, by its label `nvidia.com/gpu.serve`",
			Next:    "nothing; `kubectl gpu status` shows the progress",
		},
		{
			Reason:  "GPUDriverUpgrade",
			Meaning: "the driver upgrade of the node made a step, or failed; the message says which",
			Next:    "nothing, or as the message says",
		},
	}},
	{by: Operator, of: "`kubectl gpu`", rows: []Reason{
		{Reason: "NoClusterPolicy", Meaning: "there is no ClusterPolicy, or you may not read it", Next: "apply one"},
		{
			Reason:  "NoGPULabel",
			Meaning: "no label shows that the node has a GPU",
			Next:    "nothing, or install NFD; if it cannot see the GPU, label the node `nvidia.com/gpu.present=true`",
		},
		{
			Reason:  "PodsUnread",
			Meaning: "you may not read the operands' pods",
			Next:    "ask for the right to list pods in their namespace",
		},
	}},
}
