package v1

// ToolkitSpec configures the container toolkit.
type ToolkitSpec struct {
	OperandSpec `json:",inline"`

	// The directory of the toolkit's programs on the host.
	// +kubebuilder:default=/usr/local/nvidia
	InstallDir HostPath `json:"installDir,omitempty"`
}

// DevicePluginSpec configures the device plugin.
type DevicePluginSpec struct {
	OperandSpec `json:",inline"`

	// Configurations that nodes choose from.
	Config *DevicePluginConfig `json:"config,omitempty"`
	// Sharing GPUs by CUDA's Multi-Process Service.
	MPS *MPSConfig `json:"mps,omitempty"`
}

// DevicePluginConfig names configurations that nodes choose from.
//
// +kubebuilder:validation:XValidation:rule="!has(self.default) || self.default.size() == 0 || (has(self.name) && self.name.size() > 0)",message="config.default is a key of the ConfigMap: set config.name to that ConfigMap's name"
type DevicePluginConfig struct {
	// Name of a ConfigMap. A node's label nvidia.com/device-plugin.config selects a key of it.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches(r'^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$')",message="a name has lower-case letters, digits, - and ."
	Name string `json:"name,omitempty"`
	// The key for nodes without that label.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches(r'^[a-zA-Z0-9._-]*$')",message="a key of a ConfigMap has letters, digits, -, _ and ."
	Default string `json:"default,omitempty"`
}

// MPSConfig configures CUDA's Multi-Process Service.
type MPSConfig struct {
	// The directory of MPS's pipes on the host.
	// +kubebuilder:default=/run/nvidia/mps
	Root HostPath `json:"root,omitempty"`
}

// GPUFeatureDiscoverySpec configures the labels that describe a node's GPUs.
type GPUFeatureDiscoverySpec struct {
	OperandSpec `json:",inline"`
}

// MIGManagerSpec configures NVIDIA's MIG manager.
type MIGManagerSpec struct {
	OperandSpec `json:",inline"`

	// Partitions that nodes choose from.
	Config *MIGPartedConfigSpec `json:"config,omitempty"`
	// The clients that must stop while GPUs are split.
	GPUClientsConfig *MIGGPUClientsConfigSpec `json:"gpuClientsConfig,omitempty"`
}

// MIGPartedConfigSpec names partitions that nodes choose from.
type MIGPartedConfigSpec struct {
	// Name of a ConfigMap.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches(r'^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$')",message="a name has lower-case letters, digits, - and ."
	// +kubebuilder:default=default-mig-parted-config
	Name string `json:"name,omitempty"`
	// The partition of nodes without the label nvidia.com/mig.config.
	// +kubebuilder:validation:Enum=all-disabled;""
	// +kubebuilder:default=all-disabled
	Default string `json:"default,omitempty"`
}

// MIGGPUClientsConfigSpec names the clients that must stop while GPUs are split.
type MIGGPUClientsConfigSpec struct {
	// Name of a ConfigMap.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches(r'^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$')",message="a name has lower-case letters, digits, - and ."
	Name string `json:"name,omitempty"`
}

// ValidatorSpec configures the validator.
type ValidatorSpec struct {
	ContainerSpec `json:",inline"`

	// The validation of the device plugin.
	Plugin ValidationSpec `json:"plugin,omitempty"`
	// The validation of the toolkit.
	Toolkit ValidationSpec `json:"toolkit,omitempty"`
	// The validation of the driver.
	Driver ValidationSpec `json:"driver,omitempty"`
	// The validation of CUDA.
	CUDA ValidationSpec `json:"cuda,omitempty"`
	// The validation of vfio-pci.
	VFIOPCI ValidationSpec `json:"vfioPCI,omitempty"`
	// The validation of the vGPU host driver.
	VGPUManager ValidationSpec `json:"vgpuManager,omitempty"`
	// The validation of vGPU devices.
	VGPUDevices ValidationSpec `json:"vgpuDevices,omitempty"`
}

// ValidationSpec configures one of the validator's proofs.
type ValidationSpec struct {
	// Environment variables of the validation.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	Env []EnvVar `json:"env,omitempty"`
}
