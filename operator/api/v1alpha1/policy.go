package v1alpha1

import (
	"strings"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

// PolicySpec returns a policy's spec with this driver in the place of the policy's own. The rest,
// such as the settings for all DaemonSets, stays the policy's.
func (d *NVIDIADriver) PolicySpec(policy *v1.ClusterPolicySpec) *v1.ClusterPolicySpec {
	spec := *policy
	own := &d.Spec
	spec.Driver = v1.DriverSpec{
		OperandSpec: v1.OperandSpec{
			ContainerSpec: v1.ContainerSpec{ImageSpec: own.imageSpec(), Resources: own.Resources, Args: own.Args, Env: own.Env},
			PodSpec: v1.PodSpec{
				Labels: own.Labels, Annotations: own.Annotations, Tolerations: own.Tolerations,
				PriorityClassName: own.PriorityClassName, PodSecurityContext: own.PodSecurityContext, HostNetwork: own.HostNetwork,
			},
		},
		UsePrecompiled: own.UsePrecompiled, PrecompiledFallback: own.PrecompiledFallback, Simulated: own.Simulated,
		KernelModuleType: own.KernelModuleType,
		StartupProbe:     own.StartupProbe, LivenessProbe: own.LivenessProbe, ReadinessProbe: own.ReadinessProbe,
		GPUDirectRDMA: own.GPUDirectRDMA, UpgradePolicy: policy.Driver.UpgradePolicy,
		Prebuild: own.Prebuild, ModuleSigning: own.ModuleSigning, SecretEnv: own.SecretEnv,
	}
	driver := &spec.Driver
	if u := own.UpgradePolicy; u != nil {
		driver.UpgradePolicy = &v1.DriverUpgradePolicySpec{
			AutoUpgrade: u.AutoUpgrade == nil || *u.AutoUpgrade, MaxParallelUpgrades: u.MaxParallelUpgrades, MaxUnavailable: u.MaxUnavailable,
			PodDeletion: u.PodDeletion, WaitForCompletion: u.WaitForCompletion, DrainSpec: u.DrainSpec,
		}
	}
	if own.RepoConfig != nil {
		driver.RepoConfig = &v1.DriverRepoConfigSpec{ConfigMapName: own.RepoConfig.Name}
	}
	if own.CertConfig != nil {
		driver.CertConfig = &v1.DriverCertConfigSpec{Name: own.CertConfig.Name}
	}
	if l := own.LicensingConfig; l != nil {
		driver.LicensingConfig = &v1.DriverLicensingConfigSpec{ConfigMapName: l.Name, SecretName: l.SecretName, NLSEnabled: l.NLSEnabled}
	}
	if own.VirtualTopologyConfig != nil {
		driver.VirtualTopology = &v1.VirtualTopologyConfigSpec{Config: own.VirtualTopologyConfig.Name}
	}
	if own.KernelModuleConfig != nil {
		driver.KernelModuleConfig = &v1.KernelModuleConfigSpec{Name: own.KernelModuleConfig.Name}
	}
	return &spec
}

// defaultImage is the schema's default of image, as NVIDIA's.
const defaultImage = "nvcr.io/nvidia/driver"

// imageSpec returns the image as a policy has it. An image may have its registry and path, as the
// default has, while the version is apart: "nvcr.io/nvidia/driver" and "580.95.05".
func (s *NVIDIADriverSpec) imageSpec() v1.ImageSpec {
	i := v1.ImageSpec{Repository: s.Repository, Image: s.Image, Version: s.Version, ImagePullPolicy: s.ImagePullPolicy, ImagePullSecrets: s.ImagePullSecrets}
	slash := strings.LastIndex(i.Image, "/")
	path, name := i.Image[:max(slash, 0)], i.Image[slash+1:]
	switch {
	case i.Image == defaultImage && i.Repository == "" && i.Version == "":
		i.Image = "" // the operator's own default, in the mirror if there is one
	case i.Image == defaultImage && i.Repository != "":
		i.Image = name
	case i.Repository == "" && slash > 0 && !strings.ContainsAny(name, ":@"):
		i.Repository, i.Image = path, name
	}
	return i
}
