package state

import (
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/deployments"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
)

// draDriver adds the DaemonSet and the DeviceClasses of the DRA driver. Its account, rights and
// admission policy are installed with the operator, which may grant none
// (docs/decisions/0058-the-operator-creates-daemonset-and-deviceclasses-for-dra.md).
func (r *renderer) draDriver() error {
	spec := &r.spec.DRADriver
	if !spec.IsEnabled() {
		return nil
	}
	r.reportDRA()
	if !r.in.Cluster.DRA {
		return nil
	}
	if err := r.addDeviceClasses(); err != nil {
		return err
	}
	image := r.in.Cluster.ownImage(deployments.DRADriver, spec.ImageSpec)
	data, err := deployments.DRADriver.Render(deployments.AgentData{Namespace: r.in.Cluster.Namespace, Image: image})
	if err != nil {
		return err
	}
	d, err := decode(data)
	if err != nil {
		return err
	}
	c := container(d, "dra-driver")
	r.moveKubelet(d, c, "pod-resources", "", "pod-resources", "POD_RESOURCES_SOCKET")
	if r.moveKubelet(d, c, "registry", "", "plugins_registry", "") && r.moveKubelet(d, c, "plugin", "", "plugins/gpu.nvidia.com", "") {
		setEnv(c, v1.EnvVar{Name: "KUBELET_DIR", Value: r.path("hostPaths.kubeletRootDir", r.spec.HostPaths.KubeletRootDir)})
	}
	r.overlay("draDriver", c, spec.ContainerSpec)
	d.Spec.Template.Spec.ImagePullSecrets = r.secrets(spec.ImageSpec)
	r.setPlacement(d, label.DRAOperand, nil)
	r.applyPodFields(progress.DRADriver, d, podFields{"draDriver", &spec.PodSpec})
	r.setUpdateStrategy(d)
	if u := d.Spec.UpdateStrategy.RollingUpdate; u != nil && u.MaxUnavailable != nil && u.MaxUnavailable.String() != "0" {
		// Two of its pods may run on a node, so that no claim waits for an update.
		none := intstr.FromInt32(0)
		u.MaxSurge, u.MaxUnavailable = u.MaxUnavailable, &none
	}
	return r.add(progress.DRADriver, d)
}

// reportDRA reports why the DRA driver cannot run, or cannot offer GPUs.
func (r *renderer) reportDRA() {
	spec := r.spec
	switch {
	case !r.in.Cluster.DRA:
		r.problem(progress.DRADriver, DRAUnsupported, "draDriver: the API server does not serve resource.k8s.io/v1, which Kubernetes has from 1.34 on; upgrade it, or remove resource.k8s.io/v1=false from its --runtime-config, or set draDriver.enabled to false")
	case !spec.DevicePlugin.IsEnabled():
		r.problem(progress.DRADriver, DRAIncomplete, "draDriver: the device plugin finds the GPUs for it; set devicePlugin.enabled to true, and draDriver.serve to dra if pods shall have them by ResourceClaims alone")
	case !spec.CDI.IsEnabled():
		r.problem(progress.DRADriver, DRAIncomplete, "draDriver: claims give containers their GPUs by CDI; set cdi.enabled to true")
	}
}

// addDeviceClasses adds the DeviceClasses, except those of others, which are used as they are.
func (r *renderer) addDeviceClasses() error {
	for _, text := range deployments.DeviceClasses() {
		var class resourcev1.DeviceClass
		if err := yaml.UnmarshalStrict(text, &class); err != nil {
			return err
		}
		if slices.Contains(r.in.DeviceClasses, class.Name) {
			r.unserved("DeviceClass " + class.Name + " is not the operator's and is used as it is: no action is needed if it selects devices of gpu.nvidia.com; to have the operator's, delete it")
			continue
		}
		if err := r.add(progress.DRADriver, &class); err != nil {
			return err
		}
	}
	return nil
}
