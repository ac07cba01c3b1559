package v1

import (
	"cmp"
	"strings"
)

// DriverSpec configures the nodes' driver.
//
// +kubebuilder:validation:XValidation:rule="!has(self.precompiledFallback) || self.precompiledFallback == 'None' || has(self.usePrecompiled)",message="driver.precompiledFallback is for driver.usePrecompiled: set that, too"
// +kubebuilder:validation:XValidation:rule="!(has(self.usePrecompiled) && self.usePrecompiled && has(self.simulated) && has(self.simulated.enabled) && self.simulated.enabled)",message="driver.simulated and driver.usePrecompiled exclude each other: a simulated driver has no kernel modules"
type DriverSpec struct {
	OperandSpec `json:",inline"`

	// Load modules that were prebuilt for the node's kernel, from the image
	// repository/image:version-kernel-ostag. By default they are built on the node.
	UsePrecompiled *bool `json:"usePrecompiled,omitempty"`
	// What happens to a pool of nodes if there is no precompiled image for its kernel. None, the
	// default: it keeps its driver. DriverToolkit: it builds the driver until there is an image.
	// +kubebuilder:validation:Enum=None;DriverToolkit
	PrecompiledFallback string `json:"precompiledFallback,omitempty"`
	// A simulated driver, for clusters without GPUs.
	Simulated *SimulatedSpec `json:"simulated,omitempty"`

	// The type of the kernel modules.
	// +kubebuilder:validation:Enum=auto;open;proprietary
	// +kubebuilder:default=auto
	KernelModuleType string `json:"kernelModuleType,omitempty"`
	// Replaced by kernelModuleType in NVIDIA's operator.
	UseOpenKernelModules *bool `json:"useOpenKernelModules,omitempty"`
	// Leave drivers to NVIDIADrivers: a node gets the driver of the one that selects it. The fields of
	// this driver have no effect then, but for enabled and, as their default, upgradePolicy.
	UseNvidiaDriverCRD *bool `json:"useNvidiaDriverCRD,omitempty"`
	// Replaced by operator.use_ocp_driver_toolkit.
	UseOpenShiftDriverToolkit *bool `json:"use_ocp_driver_toolkit,omitempty"`
	// Replaced by driver.upgradePolicy.
	RollingUpdate *DriverRollingUpdateSpec `json:"rollingUpdate,omitempty"`

	// When the driver counts as started, which takes minutes when it is built.
	StartupProbe *ContainerProbeSpec `json:"startupProbe,omitempty"`
	// When the driver's container is restarted.
	LivenessProbe *ContainerProbeSpec `json:"livenessProbe,omitempty"`
	// When the driver's pod counts as ready.
	ReadinessProbe *ContainerProbeSpec `json:"readinessProbe,omitempty"`

	// GPUDirect RDMA.
	GPUDirectRDMA *GPUDirectRDMASpec `json:"rdma,omitempty"`
	// How a driver change rolls from node to node.
	UpgradePolicy *DriverUpgradePolicySpec `json:"upgradePolicy,omitempty"`
	// NVIDIA's driver manager, an init container.
	Manager DriverManagerSpec `json:"manager,omitempty"`

	// Package repositories for building.
	RepoConfig *DriverRepoConfigSpec `json:"repoConfig,omitempty"`
	// Certificate authorities for building, and for looking up a precompiled image in the registry.
	CertConfig *DriverCertConfigSpec `json:"certConfig,omitempty"`
	// vGPU licences.
	LicensingConfig *DriverLicensingConfigSpec `json:"licensingConfig,omitempty"`
	// vGPU's topology daemon.
	VirtualTopology *VirtualTopologyConfigSpec `json:"virtualTopology,omitempty"`
	// Parameters of the kernel modules.
	KernelModuleConfig *KernelModuleConfigSpec `json:"kernelModuleConfig,omitempty"`
	// Where kernel modules are stored that were built from an image of gpuready's own.
	Prebuild *PrebuildSpec `json:"prebuild,omitempty"`
	// How kernel modules are signed that are built from an image of gpuready's own.
	ModuleSigning *ModuleSigningSpec `json:"moduleSigning,omitempty"`
	// Name of a Secret whose entries become environment variables of the driver.
	SecretEnv string `json:"secretEnv,omitempty"`
}

// Fallback returns what happens to a pool without a precompiled image.
func (d *DriverSpec) Fallback() string { return cmp.Or(d.PrecompiledFallback, FallbackNone) }

// Values of precompiledFallback.
const (
	FallbackNone          = "None"
	FallbackDriverToolkit = "DriverToolkit"
)

// Precompiled reports whether precompiled modules are loaded.
func (d *DriverSpec) Precompiled() bool { return valueOr(d.UsePrecompiled, false) }

// IsSimulated reports whether the driver is the simulated one.
func (d *DriverSpec) IsSimulated() bool { return d.Simulated != nil && d.Simulated.IsEnabled() }

// UsesNVIDIADrivers reports whether each node's driver is that of an NVIDIADriver.
func (d *DriverSpec) UsesNVIDIADrivers() bool {
	return d.IsEnabled() && valueOr(d.UseNvidiaDriverCRD, false)
}

// PrebuildSpec configures the repository of built kernel modules.
//
// +kubebuilder:validation:XValidation:rule="(has(self.repository) && self.repository.size() > 0) || ((!has(self.secret) || self.secret.size() == 0) && (!has(self.insecure) || !self.insecure))",message="prebuild.secret and prebuild.insecure are for prebuild.repository: set that, too"
type PrebuildSpec struct {
	// Registry and path, "registry.example.com/gpu/driver". Built modules are pushed there as images
	// version-kernel-ostag; nodes with that kernel pull them instead of building.
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches(r'^(([a-zA-Z0-9][a-zA-Z0-9.-]*|\\[[0-9a-fA-F:]+\\])(:[0-9]+)?/[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*)?$')",message="prebuild.repository is a registry and a path, without a tag or digest: registry.example.com/gpu/driver"
	Repository string `json:"repository,omitempty"`
	// Name of a Secret of type kubernetes.io/dockerconfigjson, in the operands' namespace, with
	// credentials to push there.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches(r'^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$')",message="a name has lower-case letters, digits, - and ."
	Secret string `json:"secret,omitempty"`
	// Use the registry by plain HTTP.
	Insecure *bool `json:"insecure,omitempty"`
}

// ModuleSigningSpec configures how built kernel modules are signed.
type ModuleSigningSpec struct {
	// Name of a Secret of type kubernetes.io/tls, in the operands' namespace, with the signing key and
	// its certificate, which the nodes' kernels must trust.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches(r'^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$')",message="a name has lower-case letters, digits, - and ."
	Secret string `json:"secret,omitempty"`
}

// PrebuildRepository returns the repository of built modules, or "".
func (d *DriverSpec) PrebuildRepository() string {
	if d.Prebuild == nil {
		return ""
	}
	return d.Prebuild.Repository
}

// PrebuildInsecure returns that repository's registry if it is used by plain HTTP, or "".
func (d *DriverSpec) PrebuildInsecure() string {
	if d.Prebuild == nil || !valueOr(d.Prebuild.Insecure, false) {
		return ""
	}
	registry, _, _ := strings.Cut(d.Prebuild.Repository, "/")
	return registry
}

// PrebuildSecret returns the Secret to push with, or "".
func (d *DriverSpec) PrebuildSecret() string {
	if d.Prebuild == nil {
		return ""
	}
	return d.Prebuild.Secret
}

// SigningSecret returns the Secret that modules are signed with, or "" if they are not signed.
func (d *DriverSpec) SigningSecret() string {
	if d.ModuleSigning == nil {
		return ""
	}
	return d.ModuleSigning.Secret
}

// SimulatedSpec configures the simulated driver.
type SimulatedSpec struct {
	OptionalSpec `json:",inline"`

	// The machine that every node simulates: "h100-sxm"; gpusim profiles lists them.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches(r'^([a-z0-9]([a-z0-9-]*[a-z0-9])?)?$')",message="profile is a simulated machine: h100-sxm"
	Profile string `json:"profile,omitempty"`
}

// DriverRollingUpdateSpec limits how many drivers are replaced at a time.
type DriverRollingUpdateSpec struct {
	// A number of nodes or a percentage.
	MaxUnavailable string `json:"maxUnavailable,omitempty"`
}

// ContainerProbeSpec configures when a container counts as started, alive or ready.
type ContainerProbeSpec struct {
	// Seconds from the container's start to the first probe.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	InitialDelaySeconds int32 `json:"initialDelaySeconds,omitempty"`
	// The timeout of a probe in seconds.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
	// The interval between probes in seconds.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	PeriodSeconds int32 `json:"periodSeconds,omitempty"`
	// How many probes in a row must succeed after a failure.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	SuccessThreshold int32 `json:"successThreshold,omitempty"`
	// How many probes in a row must fail after a success.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
}

// GPUDirectRDMASpec configures GPUDirect RDMA, the nvidia-peermem module.
type GPUDirectRDMASpec struct {
	// Load nvidia-peermem; false by default.
	Enabled *bool `json:"enabled,omitempty"`
	// Use the host's own network driver (MOFED).
	UseHostMOFED *bool `json:"useHostMofed,omitempty"`
}

// IsEnabled reports whether GPUDirect RDMA is wanted.
func (r *GPUDirectRDMASpec) IsEnabled() bool { return r != nil && valueOr(r.Enabled, false) }

// DriverManagerSpec configures NVIDIA's driver manager, which unloads an old driver.
type DriverManagerSpec struct {
	ImageSpec `json:",inline"`

	// Environment variables in addition to the operator's own, which they override.
	Env []EnvVar `json:"env,omitempty"`
}

// DriverRepoConfigSpec names package repositories for building.
type DriverRepoConfigSpec struct {
	// Name of a ConfigMap with repository lists.
	ConfigMapName string `json:"configMapName,omitempty"`
	// The directory of the repository lists in the container; that of the distribution by default.
	DestinationDir string `json:"destinationDir,omitempty"`
}

// DriverCertConfigSpec names certificate authorities for building, and for looking up a
// precompiled image in the registry.
type DriverCertConfigSpec struct {
	// Name of a ConfigMap in the operands' namespace: each key is a file of PEM certificates.
	Name string `json:"name,omitempty"`
}

// DriverLicensingConfigSpec configures vGPU licences.
type DriverLicensingConfigSpec struct {
	// Name of a ConfigMap. Replaced by secretName in NVIDIA's operator.
	ConfigMapName string `json:"configMapName,omitempty"`
	// Name of a Secret with gridd.conf and a client token.
	SecretName string `json:"secretName,omitempty"`
	// Use the licences of the NVIDIA License System.
	NLSEnabled *bool `json:"nlsEnabled,omitempty"`
}

// VirtualTopologyConfigSpec configures vGPU's topology daemon.
type VirtualTopologyConfigSpec struct {
	// Name of a ConfigMap with nvidia-topologyd.conf.
	Config string `json:"config,omitempty"`
}

// KernelModuleConfigSpec configures parameters of the kernel modules.
type KernelModuleConfigSpec struct {
	// Name of a ConfigMap with a file for each module.
	Name string `json:"name,omitempty"`
}
