package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// State is a policy's state in one word.
type State string

// The states.
const (
	Ready    State = "ready"    // every GPU node is proven
	NotReady State = "notReady" // some are not, or are unknown
	Ignored  State = "ignored"  // an older policy is in force
	Disabled State = "disabled" // NVIDIA's own operator runs; only earlier versions have written it
)

// Types of conditions.
const (
	ConditionReady       = "Ready"       // every GPU node is proven
	ConditionProgressing = "Progressing" // something is in progress
	ConditionDegraded    = "Degraded"    // something failed that waiting does not fix
	ConditionStalled     = "Stalled"     // the policy is not in force, and waiting does not help; absent if it is in force
	ConditionUnserved    = "Unserved"    // fields are set that this operator stores but ignores
	ConditionContested   = "Contested"   // another gpuready operator is installed and on standby, or another device plugin serves the same nodes; absent if there is none
)

// Bounds of the status's lists.
const (
	MaxNotReady = 20
	MaxPools    = 100
	MaxUnserved = 100
	MaxWaiting  = 10
	MaxPrebuilt = 50
)

// ClusterPolicyStatus is the observed state.
type ClusterPolicyStatus struct {
	// The state in one word.
	// +kubebuilder:validation:Enum=ready;notReady;ignored;disabled
	State State `json:"state,omitempty"`
	// The operands' namespace.
	Namespace string `json:"namespace,omitempty"`
	// The generation of the policy that this status describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Ready, Progressing, Degraded, Unserved.
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// The number of GPU nodes by progress.
	Nodes *NodesStatus `json:"nodes,omitempty"`
	// The first 20 nodes that are not ready.
	// +kubebuilder:validation:MaxItems=20
	NotReady []NodeStatus `json:"notReady,omitempty"`
	// The first 100 groups of equal nodes, with the driver that each gets.
	// +kubebuilder:validation:MaxItems=100
	Pools []PoolStatus `json:"pools,omitempty"`
	// The first 50 kernel modules that Jobs have built before a node runs their kernel.
	// +kubebuilder:validation:MaxItems=50
	Prebuilt []PrebuiltStatus `json:"prebuilt,omitempty"`
	// The progress of a driver change.
	Upgrade *UpgradeStatus `json:"upgrade,omitempty"`
	// The change of nodes between the device plugin and the DRA driver.
	Serve *ServeStatus `json:"serve,omitempty"`
	// Fields that are set but have no effect, each with the reason and what to do.
	// +kubebuilder:validation:MaxItems=100
	Unserved []string `json:"unserved,omitempty"`
	// The time that nodes took from their creation to each step.
	// +kubebuilder:validation:MaxItems=32
	Provisioning []ProvisioningStatus `json:"provisioning,omitempty"`
}

// Foreign reports whether another operator has written the status. NVIDIA's sets no observed
// generation, and removes the one that it finds.
func (s *ClusterPolicyStatus) Foreign() bool {
	return s.ObservedGeneration == 0 && (s.State == Ready || s.State == NotReady)
}

// OperandNamespace returns the namespace of this product's operands, or "" if it is unknown.
func (s *ClusterPolicyStatus) OperandNamespace() string {
	if s.Foreign() {
		return "" // the namespace is that of the other operator
	}
	return s.Namespace
}

// NodesStatus counts GPU nodes by progress. All are done when ready equals total, which excludes
// nodes that this operator does not serve. The nodes of total beyond ready, progressing and failed
// have no trustworthy report.
type NodesStatus struct {
	// GPU nodes that this operator serves. Together with excluded, these are all known GPU nodes.
	Total int `json:"total"`
	// Nodes of total on which everything that the policy requires is validated.
	Ready int `json:"ready"`
	// Nodes of total in progress: waiting helps.
	Progressing int `json:"progressing"`
	// Nodes of total on which somebody must act.
	Failed int `json:"failed"`
	// GPU nodes that are not in total: a label excludes them from all operands, or NVIDIA's operator
	// runs and they were not handed over.
	Excluded int `json:"excluded"`
}

// NodeStatus is a node that is not ready.
type NodeStatus struct {
	Node string `json:"node"`
	// Name of the node's pool.
	Pool string `json:"pool,omitempty"`
	// The first state that is not reached: "driver", "toolkit-validation".
	State string `json:"state,omitempty"`
	// The reason in one word.
	Reason string `json:"reason,omitempty"`
	// The reason, and what to do.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// When the node entered this state.
	Since metav1.Time `json:"since,omitzero"`
}

// PoolStatus is a group of equal nodes and the driver that they get.
type PoolStatus struct {
	Name   string `json:"name"`
	OS     string `json:"os,omitempty"`
	Kernel string `json:"kernel,omitempty"`
	RHCOS  string `json:"rhcos,omitempty"`
	Arch   string `json:"arch,omitempty"`
	// The NVIDIADriver that selects the pool's nodes; several are a conflict. Absent where the
	// ClusterPolicy has the driver, or none selects them.
	NVIDIADriver string `json:"nvidiaDriver,omitempty"`
	Nodes        int    `json:"nodes"`
	Ready        int    `json:"ready"`
	// How the pool gets its driver: "container", "driverToolkit", "precompiled", "simulated"; none if the host has one.
	Variant   string `json:"variant,omitempty"`
	DaemonSet string `json:"daemonSet,omitempty"`
	Image     string `json:"image,omitempty"`
	// Why it is not the driver that the policy requires, in one word.
	Reason string `json:"reason,omitempty"`
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// PrebuiltState is the result of a Job that builds modules.
type PrebuiltState string

// The states.
const (
	PrebuiltBuilding PrebuiltState = "Building"
	PrebuiltPresent  PrebuiltState = "Present" // they were pushed
	PrebuiltMissing  PrebuiltState = "Missing" // they were pushed, but the registry no longer has them
	PrebuiltFailed   PrebuiltState = "Failed"
)

// PrebuiltStatus is the modules of a kernel that a Job of kubectl gpu prebuild builds.
type PrebuiltStatus struct {
	Kernel string `json:"kernel"`
	OSTag  string `json:"osTag"`
	// Version of the driver.
	Version string `json:"version,omitempty"`
	// Kind of the modules: "open" or "proprietary".
	Kind string `json:"kind,omitempty"`
	// The image that contains the modules.
	Image string `json:"image"`
	// Building, Present (nodes with the kernel pull it), Missing (it was pushed, but the registry no
	// longer has it) or Failed.
	// +kubebuilder:validation:Enum=Building;Present;Missing;Failed
	State PrebuiltState `json:"state"`
	// Why it has failed or does not continue.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// Name of the Job.
	Job string `json:"job,omitempty"`
}

// UpgradeStatus is the progress of a driver change, in nodes.
type UpgradeStatus struct {
	Total      int `json:"total"`
	Done       int `json:"done"`
	InProgress int `json:"inProgress"`
	Pending    int `json:"pending"`
	Failed     int `json:"failed"`
	// What the first 10 nodes in progress wait for; nodes whose pods may not be evicted come first.
	// +kubebuilder:validation:MaxItems=10
	Waiting []UpgradeWait `json:"waiting,omitempty"`
}

// UpgradeWait is a node whose driver upgrade has begun, and what it waits for.
type UpgradeWait struct {
	Node string `json:"node"`
	// "pod team/trainer cannot be evicted: The disruption budget trainer needs 1 healthy pods and has 1 currently".
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
}

// ServeStatus is the progress of nodes between the device plugin and the DRA driver.
type ServeStatus struct {
	// How the policy wants pods to get GPUs: "plugin" or "dra".
	Want Serve `json:"want"`
	// GPU nodes that follow the policy.
	Total int `json:"total"`
	// Nodes of total that serve ResourceClaims, or are on the way to it.
	DRA int `json:"dra"`
	// Nodes of total on the way.
	InProgress int `json:"inProgress"`
	// Nodes of total whose change has not begun.
	Pending int `json:"pending"`
	// GPU nodes whose label nvidia.com/gpu.serve was set by a person, and is left alone.
	ByPerson int `json:"byPerson"`
	// Nodes of total that cannot serve ResourceClaims.
	Unsupported int `json:"unsupported"`
	// What the first 10 nodes on the way wait for.
	// +kubebuilder:validation:MaxItems=10
	Waiting []UpgradeWait `json:"waiting,omitempty"`
}

// ProvisioningStatus is a histogram of the time that nodes took from their creation to a step.
type ProvisioningStatus struct {
	Step string `json:"step"`
	// The number of nodes.
	Count int64 `json:"count"`
	// The sum of their times, in whole seconds.
	SumSeconds int64 `json:"sumSeconds"`
	// The number of nodes in each bucket, not cumulative; the operator knows the bounds.
	// +kubebuilder:validation:MaxItems=64
	Buckets []int64 `json:"buckets,omitempty"`
}
