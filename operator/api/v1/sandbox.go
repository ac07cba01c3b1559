package v1

// NodeStatusExporterSpec configures NVIDIA's exporter of the nodes' progress.
type NodeStatusExporterSpec struct {
	UnservedSpec `json:",inline"`
}

// GPUDirectStorageSpec configures GPUDirect Storage.
type GPUDirectStorageSpec struct {
	ModuleSpec `json:",inline"`
}

// GDRCopySpec configures the GDRCopy kernel module.
type GDRCopySpec struct {
	ModuleSpec `json:",inline"`
}

// ModuleSpec is a kernel module besides the driver, disabled by default.
type ModuleSpec struct {
	// Whether the operator deploys it.
	Enabled *bool `json:"enabled,omitempty"`

	ImageSpec `json:",inline"`

	// Arguments of its container.
	Args []string `json:"args,omitempty"`
	// Environment variables of its container.
	Env []EnvVar `json:"env,omitempty"`
}

// PSPSpec configures Pod Security Policies.
type PSPSpec struct {
	// Whether they are used.
	Enabled *bool `json:"enabled,omitempty"`
}

// PSASpec configures Pod Security Admission.
type PSASpec struct {
	// Whether the namespace gets its labels.
	Enabled *bool `json:"enabled,omitempty"`
}

// SandboxWorkloadsSpec configures workloads in virtual machines.
type SandboxWorkloadsSpec struct {
	// Whether nodes may run virtual machines.
	Enabled *bool `json:"enabled,omitempty"`
	// The use of nodes without the label nvidia.com/gpu.workload.config.
	// +kubebuilder:validation:Enum=container;vm-passthrough;vm-vgpu
	// +kubebuilder:default=container
	DefaultWorkload string `json:"defaultWorkload,omitempty"`
	// The provider of the virtual machines.
	// +kubebuilder:validation:Enum=kubevirt;kata
	Mode string `json:"mode,omitempty"`
}

// SandboxDevicePluginSpec configures the device plugin for virtual machines.
type SandboxDevicePluginSpec struct {
	UnservedSpec `json:",inline"`
}

// KataDevicePluginSpec configures the device plugin for Kata's virtual machines.
type KataDevicePluginSpec struct {
	UnservedSpec `json:",inline"`
}

// VFIOManagerSpec configures the operand that binds GPUs to vfio-pci.
type VFIOManagerSpec struct {
	UnservedSpec `json:",inline"`

	// NVIDIA's driver manager, an init container.
	DriverManager DriverManagerSpec `json:"driverManager,omitempty"`
}

// VGPUManagerSpec configures the vGPU host driver.
type VGPUManagerSpec struct {
	UnservedSpec `json:",inline"`

	// NVIDIA's driver manager, an init container.
	DriverManager DriverManagerSpec `json:"driverManager,omitempty"`
	// Parameters of the kernel modules.
	KernelModuleConfig *KernelModuleConfigSpec `json:"kernelModuleConfig,omitempty"`
}

// VGPUDeviceManagerSpec configures the operand that creates vGPU devices.
type VGPUDeviceManagerSpec struct {
	UnservedSpec `json:",inline"`

	// Devices that nodes choose from.
	Config *VGPUDevicesConfigSpec `json:"config,omitempty"`
}

// VGPUDevicesConfigSpec names devices that nodes choose from.
type VGPUDevicesConfigSpec struct {
	// Name of a ConfigMap.
	Name string `json:"name,omitempty"`
	// The devices of nodes without the label nvidia.com/vgpu.config.
	// +kubebuilder:default=default
	Default string `json:"default,omitempty"`
}

// KataManagerSpec configures the operand that installs Kata runtime classes.
type KataManagerSpec struct {
	UnservedSpec `json:",inline"`

	// The installed runtime classes.
	Config *KataConfig `json:"config,omitempty"`
}

// KataConfig lists Kata runtime classes.
type KataConfig struct {
	// The directory of images and kernels on the host.
	// +kubebuilder:default=/opt/nvidia-gpu-operator/artifacts/runtimeclasses
	ArtifactsDir HostPath `json:"artifactsDir,omitempty"`
	// The runtime classes.
	RuntimeClasses []KataRuntimeClass `json:"runtimeClasses,omitempty"`
}

// KataRuntimeClass is a Kata runtime class.
type KataRuntimeClass struct {
	// Its name.
	Name string `json:"name"`
	// Labels of the nodes that have it.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// The contents of the runtime class.
	Artifacts KataArtifacts `json:"artifacts"`
}

// KataArtifacts names the contents of a Kata runtime class.
type KataArtifacts struct {
	// The OCI artifact's reference.
	URL string `json:"url"`
	// Name of a pull Secret.
	PullSecret string `json:"pullSecret,omitempty"`
}

// CCManagerSpec configures the operand that switches the GPUs' confidential computing mode.
type CCManagerSpec struct {
	UnservedSpec `json:",inline"`

	// The mode of nodes without the label nvidia.com/cc.mode.
	// +kubebuilder:validation:Enum=on;off;devtools;""
	DefaultMode string `json:"defaultMode,omitempty"`
}
