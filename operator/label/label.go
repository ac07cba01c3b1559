// Package label has the labels, annotations and names that the operator shares with
// the cluster. They are the ecosystem's where the ecosystem has one.
package label

// Labels of Nodes that are read: NFD writes them.
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

// GPUProduct is what GPUs the Node has: NFD or the validator writes it, last of all.
const GPUProduct = "nvidia.com/gpu.product"

// Labels of Nodes that are written.
const (
	// Present says that the Node has an NVIDIA GPU.
	Present = "nvidia.com/gpu.present"
	// Deploy is the beginning of the labels by which operands are placed; "false" by a
	// person keeps the operand away, and PreInstalled is what Deploy+"driver" says of a
	// host that has its own driver.
	Deploy       = "nvidia.com/gpu.deploy."
	PreInstalled = "pre-installed"
	// Paused is what Deploy labels say while an upgrade takes the driver from under the
	// operands, which keep it in use.
	Paused = "paused-for-driver-upgrade"
	// Operands "false", by a person, keeps all operands away.
	Operands = Deploy + "operands"
	// DriverOperand is the driver's name behind Deploy.
	DriverOperand = "driver"
	// Driver names the driver DaemonSet that serves the Node (driver.Choice.ID): it moves
	// when the Node's turn has come, so that a change of DaemonSets rolls like any other.
	// PreInstalled, where the host has its own driver.
	Driver = "gpuready.io/driver"
	// MPSCapable "true" is by the validator: the Node's GPUs are shared by MPS.
	MPSCapable = "nvidia.com/mps.capable"
	// Injection is how containers on the Node get GPUs (fleet.Injection).
	Injection = "gpuready.io/injection"
	// HandOver "gpuready", by a person, gives a Node to this operator while NVIDIA's runs.
	HandOver = "gpuready.io/operator"
	// UpgradeState is how far the Node's driver upgrade is (package upgrade).
	UpgradeState = "nvidia.com/gpu-driver-upgrade-state"
	// UpgradeSkip "true", by a person, leaves the Node's driver as it is.
	UpgradeSkip = "nvidia.com/gpu-driver-upgrade.skip"
	// Workload is what the Node is for, by a person: "container", "vm-passthrough", "vm-vgpu".
	// Only containers are served; the label is left as it is.
	Workload = "nvidia.com/gpu.workload.config"
)

// Annotations of Nodes.
const (
	// Wrote has the names of the labels below nvidia.com/gpu. that the operator wrote and
	// may therefore change and remove (package fleet).
	Wrote = "gpuready.io/labels"
	// InitiallyCordoned "true": somebody cordoned the Node before its upgrade, and it stays so.
	InitiallyCordoned = "nvidia.com/gpu-driver-upgrade.node-initial-state.unschedulable"
	// UpgradeSince is when the Node came into its UpgradeState, RFC 3339; UpgradeWhy is why it failed.
	UpgradeSince = "gpuready.io/driver-upgrade.since"
	UpgradeWhy   = "gpuready.io/driver-upgrade.why"
	// UpgradeTarget is the driver that the Node's upgrade was last for, "<ID>@<digest>".
	UpgradeTarget = "gpuready.io/driver-upgrade.target"
	// UpgradeCordoned "true": the upgrade cordoned the Node, and nobody else had.
	UpgradeCordoned = "gpuready.io/driver-upgrade.cordoned"
)

// Features is an annotation of Nodes, the validator's: the labels, without their common
// beginning, by which it says what the Node's GPUs are.
const Features = "gpuready.io/feature-labels"

// Labels and annotations of objects.
const (
	ManagedBy = "app.kubernetes.io/managed-by" // the operator's objects have it, with the value Operator
	PartOf    = "app.kubernetes.io/part-of"    // everything of the product has it, with the value Product
	Operator  = "gpu-operator"
	Product   = "gpuready"
	// State is the state (state.Name) that an object belongs to.
	State = "gpuready.io/state"
	// Digest, an annotation, is that of the object as it was last applied.
	Digest = "gpuready.io/digest"
	// DriverDigest, on driver pods, is that of the driver that they were made of: of their
	// pod template without what places them and what runs before the driver.
	DriverDigest = "gpuready.io/driver-digest"
	// DriverToolkit "true" marks DaemonSets, and their pods, that build with OpenShift's Driver Toolkit.
	DriverToolkit = "openshift.driver-toolkit"
	DriverApp     = "nvidia-driver-daemonset"
	// Precompiled, on driver DaemonSets and their pods, is "true" where the modules are by kernel.
	Precompiled = "nvidia.com/precompiled"
	// DriverContainer, with the value Product, marks DaemonSets, and driver pods, whose driver
	// container is of this product. Of pods, those of the simulated driver too.
	DriverContainer = "gpuready.io/driver-container"
	// Prebuild "true" marks Jobs, and their pods, that build kernel modules before a node runs
	// their kernel (package prebuild).
	Prebuild = "gpuready.io/prebuild"
	// DrainSkip "true", on a pod, keeps it on its Node when an upgrade drains it.
	DrainSkip = "nvidia.com/gpu-driver-upgrade-drain.skip"
)

// FieldManager is the operator's, in server-side apply.
const FieldManager = "gpu-operator"
