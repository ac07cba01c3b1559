package v1alpha1

import v1 "github.com/gpuready/gpuready/operator/api/v1"

// IgnoredFields returns the fields of spec without an effect.
func IgnoredFields() []v1.IgnoredField {
	return []v1.IgnoredField{
		{Field: "useOpenKernelModules", Why: "kernelModuleType took its place: set that to open"},
		{Field: "manager", Why: "the operator itself clears a node before its driver is replaced: set upgradePolicy"},
		{Field: "startupProbe.successThreshold", Default: "1", Why: whyProbe},
		{Field: "livenessProbe.successThreshold", Default: "1", Why: whyProbe},
		{Field: "gds", When: []string{"gds.enabled"}, Why: "gpuready has no container for nvidia-fs: install nvidia-fs on the hosts, or use an image of the driver that contains it"},
		{Field: "gdrcopy", When: []string{"gdrcopy.enabled"}, Why: "gpuready has no container for gdrdrv: install gdrdrv on the hosts, or use an image of the driver that contains it"},
		{Field: "nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution", Why: "a node has this driver or another: use nodeSelector, or the required affinity"},
	}
}

// Overrides returns the settings of an NVIDIADriver that leave others without an effect.
func Overrides() []v1.Override {
	return []v1.Override{
		{
			When: []string{"simulated.enabled=true"},
			Except: []string{
				"simulated", "default", "driverType", "nodeSelector", "nodeAffinity", "upgradePolicy",
				"labels", "annotations", "tolerations", "priorityClassName", "podSecurityContext", "hostNetwork",
			},
			Why: "the simulated driver has no driver image, version or kernel modules: remove the fields, or set simulated.enabled to false",
		},
		{
			When: []string{"simulated.enabled!=true"}, Within: "simulated", Except: []string{"enabled"},
			Why: "the driver is not the simulated one: set simulated.enabled to true, or remove the fields",
		},
		{
			When: []string{"upgradePolicy.autoUpgrade=false"}, Within: "upgradePolicy",
			Why: "limits and evictions are for automatic upgrades only: set upgradePolicy.autoUpgrade to true",
		},
		{
			When: []string{"upgradePolicy.autoUpgrade!=false", "upgradePolicy.drain.enable!=true"}, Within: "upgradePolicy.drain",
			Why: "a node is not drained: set upgradePolicy.drain.enable to true",
		},
		{When: []string{"rdma.enabled!=true"}, Within: "rdma", Why: "GPUDirect RDMA is off: set rdma.enabled to true"},
	}
}

const whyProbe = "Kubernetes accepts only 1 for this probe: remove the field"

// Unserved lists the fields that are set but have no effect, each with the reason and the next
// action, sorted, at most v1.MaxUnserved.
func (d *NVIDIADriver) Unserved() []string {
	return v1.UnservedFields(&d.Spec, IgnoredFields(), Overrides())
}
