// Package label defines the labels, annotations and names that the operator shares with the
// cluster. It uses the ecosystem's names where they exist.
package label

// Labels of Nodes that NFD writes and the operator reads.
const (
	Feature    = "feature.node.kubernetes.io/"
	PCI        = Feature + "pci-10de.present"
	PCIDisplay = Feature + "pci-0300_10de.present"
	PCI3D      = Feature + "pci-0302_10de.present"
	Kernel     = Feature + "kernel-version.full"
	OSID       = Feature + "system-os_release.ID"
	OSVersion  = Feature + "system-os_release.VERSION_ID"
	OSTree     = Feature + "system-os_release.OSTREE_VERSION"
	RHELID     = Feature + "system-os_release.RHEL_VERSION"
)

// GPUProduct is the Node's GPU model. NFD or the validator writes it, last of all labels.
const GPUProduct = "nvidia.com/gpu.product"

// DefaultContainer is the annotation of a pod with its container for kubectl logs and exec.
const DefaultContainer = "kubectl.kubernetes.io/default-container"

// Labels of Nodes that the operator writes or that configure it.
const (
	// Present marks a Node that has an NVIDIA GPU.
	Present = "nvidia.com/gpu.present"
	// Deploy is the prefix of the labels that place operands. A person sets "false" to exclude
	// an operand. Deploy+"driver" is PreInstalled on a host that has its own driver.
	Deploy       = "nvidia.com/gpu.deploy."
	PreInstalled = "pre-installed"
	// Paused is the value of Deploy labels while an upgrade replaces the driver, which the
	// operands would keep in use.
	Paused = "paused-for-driver-upgrade"
	// Operands, set to "false" by a person, excludes all operands.
	Operands = Deploy + "operands"
	// DriverOperand follows Deploy in the label of the driver.
	DriverOperand = "driver"
	// DRAOperand follows Deploy in the label of the DRA driver.
	DRAOperand = "dra-driver"
	// Serve is the way in which pods get the Node's GPUs, "plugin" or "dra" (v1.Serve). The operator
	// sets "dra" where a policy wants it; a person's value stays as it is.
	Serve = "nvidia.com/gpu.serve"
	// Driver names the driver DaemonSet that serves the Node (driver.Choice.ID). It changes when
	// the Node has its turn, so that a change of DaemonSets is a rolling upgrade like any other.
	// It is PreInstalled if the host has its own driver.
	Driver = "gpuready.io/driver"
	// MPSCapable is "true", written by the validator, if the Node's GPUs are shared by MPS.
	MPSCapable = "nvidia.com/mps.capable"
	// Injection is the way in which containers on the Node get GPUs (fleet.Injection).
	Injection = "gpuready.io/injection"
	// HandOver, set to "gpuready" by a person or by kubectl gpu migrate, gives a Node to this
	// operator while NVIDIA's runs.
	HandOver = "gpuready.io/operator"
	// UpgradeState is the state of the Node's driver upgrade (package upgrade).
	UpgradeState = "nvidia.com/gpu-driver-upgrade-state"
	// UpgradeSkip, set to "true" by a person, excludes the Node from driver upgrades.
	UpgradeSkip = "nvidia.com/gpu-driver-upgrade.skip"
	// Workload, set by a person, is the Node's use: "container", "vm-passthrough", "vm-vgpu".
	// Only containers are served; the label is left unchanged.
	Workload = "nvidia.com/gpu.workload.config"
)

// Annotations of Nodes.
const (
	// OwnLabels lists the labels below nvidia.com/gpu. that the operator wrote and may therefore
	// change and remove (package fleet).
	OwnLabels = "gpuready.io/labels"
	// InitiallyCordoned is "true" if the Node was cordoned before its upgrade, and stays so.
	InitiallyCordoned = "nvidia.com/gpu-driver-upgrade.node-initial-state.unschedulable"
	// UpgradeSince is the time at which the Node entered its UpgradeState, RFC 3339; UpgradeReason is
	// the reason for a failure or deferral.
	UpgradeSince  = "gpuready.io/driver-upgrade.since"
	UpgradeReason = "gpuready.io/driver-upgrade.why"
	// UpgradeTarget is the target of the Node's last upgrade, "<ID>@<digest>".
	UpgradeTarget = "gpuready.io/driver-upgrade.target"
	// UpgradeCordoned is "true" if the upgrade cordoned the Node.
	UpgradeCordoned = "gpuready.io/driver-upgrade.cordoned"
)

// Features is an annotation of Nodes that lists the validator's labels of the GPUs, without
// their common prefix.
const Features = "gpuready.io/feature-labels"

// Labels and annotations of objects.
const (
	ManagedBy = "app.kubernetes.io/managed-by" // on the operator's objects, with the value Operator
	PartOf    = "app.kubernetes.io/part-of"    // on all objects of the product, with the value Product
	Operator  = "gpu-operator"
	Product   = "gpuready"
	// State is the state (state.Name) that an object belongs to.
	State = "gpuready.io/state"
	// Digest, an annotation, is the digest of the object as it was last applied.
	Digest = "gpuready.io/digest"
	// DriverDigest, on driver pods, is the digest of their driver: of the pod template without
	// the fields that place the pod and without what runs before the driver.
	DriverDigest = "gpuready.io/driver-digest"
	// DriverToolkit "true" marks DaemonSets, and their pods, that build with OpenShift's Driver Toolkit.
	DriverToolkit = "openshift.driver-toolkit"
	// DriverApp is the value of label app of driver DaemonSets and their pods.
	DriverApp = "nvidia-driver-daemonset"
	// Precompiled is "true" on driver DaemonSets and their pods if their modules are for one kernel.
	Precompiled = "nvidia.com/precompiled"
	// DriverContainer, with the value Product, marks DaemonSets and driver pods whose driver
	// container is this product's. It is also on pods of the simulated driver.
	DriverContainer = "gpuready.io/driver-container"
	// Prebuild, set to "true", marks Jobs and their pods that build kernel modules before a node
	// runs their kernel (package prebuild).
	Prebuild = "gpuready.io/prebuild"
	// DrainSkip, set to "true" on a pod, keeps it on its Node when an upgrade drains it.
	DrainSkip = "nvidia.com/gpu-driver-upgrade-drain.skip"
)

// Names of Deployments. NVIDIA's chart and OLM bundle call the Deployment of their operator
// NVIDIADeployment. Versions of this product up to 0.1.0 used that name as well.
const (
	Deployment       = "gpuready-operator"
	NVIDIADeployment = "gpu-operator"
)

// FieldManager is the operator's field manager in server-side apply.
const FieldManager = "gpu-operator"
