package v1

// ToolkitSpec configures the container toolkit.
type ToolkitSpec struct {
	OperandSpec `json:",inline"`

	// The directory of the toolkit's programs on the host.
	// +kubebuilder:default=/usr/local/nvidia
	InstallDir HostPath `json:"installDir,omitempty"`

	DriverFieldsSpec `json:",inline"`
}

// DriverFieldsSpec holds fields of the driver that early releases of NVIDIA's operator also
// accepted for other operands.
type DriverFieldsSpec struct {
	// Replaced by driver.repoConfig.
	RepoConfig *Object `json:"repoConfig,omitempty"`
	// Replaced by driver.licensingConfig.
	LicensingConfig *Object `json:"licensingConfig,omitempty"`
}

// DevicePluginSpec configures the device plugin.
type DevicePluginSpec struct {
	OperandSpec `json:",inline"`

	// Configurations that nodes choose from.
	Config *DevicePluginConfig `json:"config,omitempty"`
	// Sharing GPUs by CUDA's Multi-Process Service.
	MPS *MPSConfig `json:"mps,omitempty"`

	DriverFieldsSpec `json:",inline"`
}

// DevicePluginConfig names configurations that nodes choose from.
type DevicePluginConfig struct {
	// Name of a ConfigMap. A node's label nvidia.com/device-plugin.config selects a key of it.
	Name string `json:"name,omitempty"`
	// The key for nodes without that label.
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

	// The interval of NVIDIA's GPU feature discovery.
	DiscoveryIntervalSeconds int64 `json:"discoveryIntervalSeconds,omitempty"`
	// Replaced by mig.strategy.
	MIGStrategy string `json:"migStrategy,omitempty"`
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
	Name string `json:"name,omitempty"`
}

// ValidatorSpec configures the validator.
type ValidatorSpec struct {
	ContainerSpec `json:",inline"`
	PodSpec       `json:",inline"`

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
	Env []EnvVar `json:"env,omitempty"`
}
