package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ClusterPolicy describes the GPU stack of a cluster: driver, container toolkit, device
// plugin, validation and what else runs on its GPU nodes. One is in force, the oldest.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=clusterpolicies,scope=Cluster,shortName={gpup}
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.nodes.ready`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes.total`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ClusterPolicySpec   `json:"spec,omitempty"`
	Status ClusterPolicyStatus `json:"status,omitempty"`
}

// ClusterPolicyList is a list of ClusterPolicies.
//
// +kubebuilder:object:root=true
type ClusterPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ClusterPolicy `json:"items"`
}

// ClusterPolicySpec is the desired state. Every part is optional.
type ClusterPolicySpec struct {
	// Settings of the operator itself.
	Operator OperatorSpec `json:"operator,omitempty"`
	// Common settings of all DaemonSets.
	Daemonsets DaemonsetsSpec `json:"daemonsets,omitempty"`
	// Settings of nodes as a whole.
	Node NodeSpec `json:"node,omitempty"`
	// Directories of the hosts.
	HostPaths HostPathsSpec `json:"hostPaths,omitempty"`
	// How containers get GPUs by the Container Device Interface.
	CDI CDIConfigSpec `json:"cdi,omitempty"`
	// How GPUs that are split by MIG are advertised.
	MIG MIGSpec `json:"mig,omitempty"`

	// The NVIDIA driver.
	Driver DriverSpec `json:"driver,omitempty"`
	// The container toolkit.
	Toolkit ToolkitSpec `json:"toolkit,omitempty"`
	// The device plugin.
	DevicePlugin DevicePluginSpec `json:"devicePlugin,omitempty"`
	// The driver for Dynamic Resource Allocation, and which nodes use it in place of the device
	// plugin. It requires Kubernetes 1.34.
	DRADriver DRADriverSpec `json:"draDriver,omitempty"`
	// The validator of driver, toolkit and device plugin.
	Validator ValidatorSpec `json:"validator,omitempty"`
	// The labels that describe a node's GPUs.
	GPUFeatureDiscovery GPUFeatureDiscoverySpec `json:"gfd,omitempty"`
	// NVIDIA's DCGM, as a service on each node. It requires the name of NVIDIA's image.
	DCGM DCGMSpec `json:"dcgm,omitempty"`
	// NVIDIA's exporter of DCGM's metrics. It requires the name of NVIDIA's image.
	DCGMExporter DCGMExporterSpec `json:"dcgmExporter,omitempty"`
	// NVIDIA's MIG manager. It requires the name of NVIDIA's image.
	MIGManager MIGManagerSpec `json:"migManager,omitempty"`

	// NVIDIA's exporter of the nodes' progress.
	NodeStatusExporter NodeStatusExporterSpec `json:"nodeStatusExporter,omitempty"`
	// GPUDirect Storage.
	GPUDirectStorage *GPUDirectStorageSpec `json:"gds,omitempty"`
	// The GDRCopy kernel module.
	GDRCopy *GDRCopySpec `json:"gdrcopy,omitempty"`
	// Pod Security Policies, which Kubernetes has removed.
	PSP PSPSpec `json:"psp,omitempty"`
	// Pod Security Admission's labels of the operator's namespace.
	PSA PSASpec `json:"psa,omitempty"`
	// Workloads in virtual machines.
	SandboxWorkloads SandboxWorkloadsSpec `json:"sandboxWorkloads,omitempty"`
	// The device plugin for virtual machines.
	SandboxDevicePlugin SandboxDevicePluginSpec `json:"sandboxDevicePlugin,omitempty"`
	// The device plugin for Kata's virtual machines.
	KataSandboxDevicePlugin KataDevicePluginSpec `json:"kataSandboxDevicePlugin,omitempty"`
	// The operand that binds GPUs to vfio-pci.
	VFIOManager VFIOManagerSpec `json:"vfioManager,omitempty"`
	// The vGPU host driver.
	VGPUManager VGPUManagerSpec `json:"vgpuManager,omitempty"`
	// The operand that creates vGPU devices.
	VGPUDeviceManager VGPUDeviceManagerSpec `json:"vgpuDeviceManager,omitempty"`
	// The operand that installs Kata runtime classes.
	KataManager KataManagerSpec `json:"kataManager,omitempty"`
	// The operand that switches the GPUs' confidential computing mode.
	CCManager CCManagerSpec `json:"ccManager,omitempty"`
}
