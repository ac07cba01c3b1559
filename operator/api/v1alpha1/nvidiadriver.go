package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

// NVIDIADriver describes the driver of the nodes that it selects. It is used while the
// ClusterPolicy in force sets driver.useNvidiaDriverCRD.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=nvidiadrivers,scope=Cluster,shortName={nvd,nvdriver,nvdrivers}
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Default",type=boolean,JSONPath=`.spec.default`
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.nodes.ready`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes.total`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NVIDIADriver struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   NVIDIADriverSpec   `json:"spec,omitempty"`
	Status NVIDIADriverStatus `json:"status,omitempty"`
}

// NVIDIADriverList is a list of NVIDIADrivers.
//
// +kubebuilder:object:root=true
type NVIDIADriverList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NVIDIADriver `json:"items"`
}

// Types of drivers.
const (
	TypeGPU         = "gpu"
	TypeVGPU        = "vgpu"
	TypeHostManager = "vgpu-host-manager"
)

// NVIDIADriverSpec is the driver, and the nodes that get it.
//
// +kubebuilder:validation:XValidation:rule="!has(self.default) || !self.default || !has(self.nodeSelector) || size(self.nodeSelector) == 0",message="a default NVIDIADriver has no nodeSelector: it is for the nodes that no other one selects"
// +kubebuilder:validation:XValidation:rule="!has(self.precompiledFallback) || self.precompiledFallback == 'None' || has(self.usePrecompiled)",message="precompiledFallback is for usePrecompiled: set that, too"
// +kubebuilder:validation:XValidation:rule="!(has(self.usePrecompiled) && self.usePrecompiled && has(self.simulated) && has(self.simulated.enabled) && self.simulated.enabled)",message="simulated and usePrecompiled exclude each other: a simulated driver has no kernel modules"
type NVIDIADriverSpec struct {
	// Whether it is for the nodes that no other NVIDIADriver selects.
	// +kubebuilder:default=false
	Default bool `json:"default,omitempty"`
	// gpu, vgpu for the guests of virtual machines, or vgpu-host-manager for their hosts. To change
	// it, create another NVIDIADriver.
	// +kubebuilder:validation:Enum=gpu;vgpu;vgpu-host-manager
	// +kubebuilder:default=gpu
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="driverType cannot be changed: create another NVIDIADriver"
	DriverType string `json:"driverType,omitempty"`
	// Labels of the nodes that get the driver; without any, and without default, all GPU nodes get it.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// The required node affinity limits the nodes that get the driver. The preferred one has no effect.
	NodeAffinity *v1.Object `json:"nodeAffinity,omitempty"`

	// Load modules that were prebuilt for the node's kernel, from the image
	// repository/image:version-kernel-ostag. By default they are built on the node. To change it,
	// create another NVIDIADriver.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="usePrecompiled cannot be changed: create another NVIDIADriver"
	UsePrecompiled *bool `json:"usePrecompiled,omitempty"`
	// What happens to a pool of nodes if there is no precompiled image for its kernel. None, the
	// default: it keeps its driver. DriverToolkit: it builds the driver until there is an image.
	// +kubebuilder:validation:Enum=None;DriverToolkit
	PrecompiledFallback string `json:"precompiledFallback,omitempty"`
	// A simulated driver, for clusters without GPUs.
	Simulated *v1.SimulatedSpec `json:"simulated,omitempty"`
	// The type of the kernel modules.
	// +kubebuilder:validation:Enum=auto;open;proprietary
	// +kubebuilder:default=auto
	KernelModuleType string `json:"kernelModuleType,omitempty"`
	// Replaced by kernelModuleType in NVIDIA's operator.
	UseOpenKernelModules *bool `json:"useOpenKernelModules,omitempty"`

	// Registry and path, without the image's own name: "nvcr.io/nvidia".
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches(r'^([a-zA-Z0-9][a-zA-Z0-9._/:-]*|\\[[0-9a-fA-F:]+\\][a-zA-Z0-9._/:-]*)?$')",message="repository is a registry and a path, without the image's name: nvcr.io/nvidia"
	Repository string `json:"repository,omitempty"`
	// The image's name; without repository, with its registry and path.
	// +kubebuilder:default=nvcr.io/nvidia/driver
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches(r'^([a-zA-Z0-9][a-zA-Z0-9._/:@-]*)?$')",message="image is an image's name: driver; or, without repository, one with its registry and path"
	Image string `json:"image,omitempty"`
	// The driver's version, or for precompiled modules its branch.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches(r'^([a-zA-Z0-9_][a-zA-Z0-9._-]*|sha256:[0-9a-f]{64})?$')",message="version is a tag, of letters, digits, -, _ and ., or a digest, sha256: and 64 hexadecimal digits"
	Version string `json:"version,omitempty"`
	// When the kubelet pulls the image; IfNotPresent by default.
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never;""
	ImagePullPolicy string `json:"imagePullPolicy,omitempty"`
	// Names of pull Secrets in the operands' namespace.
	ImagePullSecrets []string `json:"imagePullSecrets,omitempty"`
	// The container's requests and limits.
	Resources *v1.ResourceRequirements `json:"resources,omitempty"`
	// Arguments in addition to the operator's own.
	Args []string `json:"args,omitempty"`
	// Environment variables in addition to the operator's own, which they override. Of two with one
	// name the last counts.
	Env []v1.EnvVar `json:"env,omitempty"`
	// Name of a Secret whose entries become environment variables of the driver.
	SecretEnv string `json:"secretEnv,omitempty"`

	// When the driver counts as started, which takes minutes when it is built.
	StartupProbe *v1.ContainerProbeSpec `json:"startupProbe,omitempty"`
	// When the driver's container is restarted.
	LivenessProbe *v1.ContainerProbeSpec `json:"livenessProbe,omitempty"`
	// When the driver's pod counts as ready.
	ReadinessProbe *v1.ContainerProbeSpec `json:"readinessProbe,omitempty"`

	// GPUDirect RDMA.
	GPUDirectRDMA *v1.GPUDirectRDMASpec `json:"rdma,omitempty"`
	// GPUDirect Storage.
	GPUDirectStorage *v1.GPUDirectStorageSpec `json:"gds,omitempty"`
	// The GDRCopy kernel module.
	GDRCopy *GDRCopySpec `json:"gdrcopy,omitempty"`
	// NVIDIA's driver manager, an init container.
	Manager v1.DriverManagerSpec `json:"manager,omitempty"`
	// How a change of this driver rolls from node to node; by default as the ClusterPolicy's
	// driver.upgradePolicy says.
	UpgradePolicy *UpgradePolicySpec `json:"upgradePolicy,omitempty"`

	// Package repositories for building.
	RepoConfig *ConfigMapSpec `json:"repoConfig,omitempty"`
	// Certificate authorities for building, and for looking up a precompiled image in the registry.
	CertConfig *ConfigMapSpec `json:"certConfig,omitempty"`
	// vGPU licences.
	LicensingConfig *LicensingConfigSpec `json:"licensingConfig,omitempty"`
	// vGPU's topology daemon.
	VirtualTopologyConfig *ConfigMapSpec `json:"virtualTopologyConfig,omitempty"`
	// Parameters of the kernel modules.
	KernelModuleConfig *ConfigMapSpec `json:"kernelModuleConfig,omitempty"`
	// Where kernel modules are stored that were built from an image of gpuready's own.
	Prebuild *v1.PrebuildSpec `json:"prebuild,omitempty"`
	// How kernel modules are signed that are built from an image of gpuready's own.
	ModuleSigning *v1.ModuleSigningSpec `json:"moduleSigning,omitempty"`

	// Labels of the driver's pods, in addition to the policy's daemonsets.labels.
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations of the driver's pods, in addition to the policy's daemonsets.annotations.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Tolerations of the driver's pods, in addition to the policy's daemonsets.tolerations.
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// Priority of the driver's pods; the policy's daemonsets.priorityClassName by default.
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// The security context of the driver's pods, in addition to the policy's daemonsets.podSecurityContext.
	PodSecurityContext *v1.Object `json:"podSecurityContext,omitempty"`
	// Use the host's network.
	HostNetwork *bool `json:"hostNetwork,omitempty"`
}

// GDRCopySpec configures the GDRCopy kernel module.
type GDRCopySpec struct {
	v1.ModuleSpec `json:",inline"`

	// Load a module that was prebuilt for the node's kernel.
	UsePrecompiled *bool `json:"usePrecompiled,omitempty"`
}

// ConfigMapSpec names a ConfigMap in the operands' namespace.
type ConfigMapSpec struct {
	// Name of a ConfigMap in the operands' namespace.
	Name string `json:"name,omitempty"`
}

// LicensingConfigSpec configures vGPU licences.
type LicensingConfigSpec struct {
	// Name of a Secret with gridd.conf and a client token.
	SecretName string `json:"secretName,omitempty"`
	// Name of a ConfigMap. Replaced by secretName in NVIDIA's operator.
	Name string `json:"name,omitempty"`
	// Use the licences of the NVIDIA License System.
	NLSEnabled *bool `json:"nlsEnabled,omitempty"`
}

// UpgradePolicySpec configures how a change of the driver rolls from node to node. The limits count
// the nodes of this driver.
type UpgradePolicySpec struct {
	// Replace drivers when their definition changes. Otherwise a node gets the new driver when
	// somebody deletes its driver pod.
	// +kubebuilder:default=true
	AutoUpgrade *bool `json:"autoUpgrade,omitempty"`
	// How many nodes are upgraded at a time; 0: as many as maxUnavailable allows.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000
	MaxParallelUpgrades *int `json:"maxParallelUpgrades,omitempty"`
	// How many of the driver's nodes may be cordoned or not ready meanwhile: a number, or a percentage of all.
	// +kubebuilder:default="25%"
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 && self <= 9999999 : string(self).matches('^([0-9]{1,7}|[0-9]{1,2}%|100%)$')",message="maxUnavailable is a number of nodes (2) or a percentage from 0% to 100% (25%)"
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// How pods with GPUs are evicted.
	PodDeletion *v1.PodDeletionSpec `json:"podDeletion,omitempty"`
	// The pods to wait for first.
	WaitForCompletion *v1.WaitForCompletionSpec `json:"waitForCompletion,omitempty"`
	// Whether and how all pods are evicted.
	DrainSpec *v1.DrainSpec `json:"drain,omitempty"`
}

// NVIDIADriverStatus is the observed state.
type NVIDIADriverStatus struct {
	// The state in one word. disabled: no ClusterPolicy uses NVIDIADrivers.
	// +kubebuilder:validation:Enum=ignored;ready;notReady;disabled
	State v1.State `json:"state,omitempty"`
	// The namespace of the driver's pods.
	Namespace string `json:"namespace,omitempty"`
	// The generation of the NVIDIADriver that this status describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Ready, Degraded, Unserved.
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// The number of this driver's nodes by progress.
	Nodes *v1.NodesStatus `json:"nodes,omitempty"`
	// The first 100 groups of equal nodes that get this driver.
	// +kubebuilder:validation:MaxItems=100
	Pools []v1.PoolStatus `json:"pools,omitempty"`
	// The progress of a change of this driver.
	Upgrade *v1.UpgradeStatus `json:"upgrade,omitempty"`
	// Fields that are set but have no effect, each with the reason and what to do.
	// +kubebuilder:validation:MaxItems=100
	Unserved []string `json:"unserved,omitempty"`
}
