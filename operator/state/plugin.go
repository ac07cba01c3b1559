package state

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/deployments"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
)

const (
	configVolume = "config"
	configDir    = "/etc/gpuready/configs"
)

// plugins adds the DaemonSets of the device plugin, one for each injection, and that of the MPS
// control daemons.
func (r *renderer) plugins() error {
	spec := r.spec.DevicePlugin
	if !spec.IsEnabled() {
		return nil
	}
	image := r.in.Cluster.ownImage(deployments.DevicePlugin, spec.ImageSpec)
	for _, i := range r.injections {
		d, err := r.newAgent(deployments.DevicePlugin, image, i, false)
		if err != nil {
			return err
		}
		c := container(d, "device-plugin")
		setEnv(c, v1.EnvVar{Name: strategyVariable, Value: r.deviceListStrategy(i)})
		if strategy := r.spec.MIG.Strategy; strategy != "" {
			setEnv(c, v1.EnvVar{Name: "MIG_STRATEGY", Value: strategy})
		}
		r.setMPSRoot(d, c)
		r.mountPluginConfigs(d, c)
		r.setHostPaths(d, c)
		r.moveKubelet(d, c, "kubelet", hostPrefix(i), "device-plugins", "KUBELET_SOCKET")
		r.moveKubelet(d, c, "pod-resources", hostPrefix(i), "pod-resources", "POD_RESOURCES_SOCKET")
		r.overlay("devicePlugin", c, spec.ContainerSpec)
		r.completeListStrategies(c, i)
		if err := r.finish(progress.DevicePlugin, d, operandPlugin, i, podFields{"devicePlugin", &spec.PodSpec}, spec.ImageSpec); err != nil {
			return err
		}
	}
	return r.mps(image)
}

// deviceListStrategy returns the strategy by which the device plugin passes GPUs to containers on
// nodes with an injection.
func (r *renderer) deviceListStrategy(i fleet.Injection) string {
	switch {
	case r.needsToolkitHandler(i):
		return "volume-mounts" // an image cannot set these, unlike the variable that envvar uses
	case i == fleet.Annotations:
		return "cdi-annotations" // kubelet or runtime does not support CDI names in Allocate
	}
	return "cdi-cri"
}

// strategyVariable is the device plugin's variable that lists the device list strategies.
const strategyVariable = "DEVICE_LIST_STRATEGY"

// completeListStrategies adds the strategy for nodes with an injection to the strategies that the
// policy lists. A policy has one list for all nodes, and the device plugin uses the best strategy
// in it that its node serves. A policy without our toolkit keeps its list, since something else has
// to serve it.
func (r *renderer) completeListStrategies(c *corev1.Container, i fleet.Injection) {
	own, listed := r.deviceListStrategy(i), ""
	for _, e := range r.spec.DevicePlugin.Env {
		if e.Name == strategyVariable {
			listed = strings.Trim(e.Value, " ,")
		}
	}
	if listed == "" {
		setEnv(c, v1.EnvVar{Name: strategyVariable, Value: own})
		return
	}
	served := false // one of the listed strategies works on these nodes
	for strategy := range strings.SplitSeq(listed, ",") {
		switch strategy = strings.TrimSpace(strategy); strategy {
		case own:
			return
		case "cdi-cri":
			served = served || i == fleet.NRI || i == fleet.CDI
		case "cdi-annotations":
			served = served || i != fleet.Handler
		default: // envvar or volume-mounts
			served = served || r.offersToolkitHandler(i)
		}
	}
	if !r.spec.Toolkit.IsEnabled() {
		return
	}
	setEnv(c, v1.EnvVar{Name: strategyVariable, Value: listed + "," + own})
	if !served {
		r.unserved(fmt.Sprintf("devicePlugin.env %s=%s: nodes with gpuready.io/injection=%s serve none of it; %s is used there: remove the variable",
			strategyVariable, listed, i, own))
	}
}

// setMPSRoot sets the host's directory for MPS. The control daemons mount it. The device plugin
// only has to know it, because it passes the directory on to containers.
func (r *renderer) setMPSRoot(d *appsv1.DaemonSet, c *corev1.Container) {
	mps := r.spec.DevicePlugin.MPS
	if mps == nil {
		return
	}
	if root := r.moveVolume(d, "devicePlugin.mps.root", "mps", "/host", mps.Root); root != "" {
		setEnv(c, v1.EnvVar{Name: "MPS_ROOT", Value: root})
	}
}

// mountPluginConfigs mounts the ConfigMap of the plugin's configurations. Each node's label chooses
// one of them.
func (r *renderer) mountPluginConfigs(d *appsv1.DaemonSet, c *corev1.Container) {
	config := r.spec.DevicePlugin.Config
	if config == nil || config.Name == "" {
		return
	}
	setEnv(c, v1.EnvVar{Name: "CONFIG_FILE_SRCDIR", Value: configDir})
	if config.Default != "" {
		setEnv(c, v1.EnvVar{Name: "DEFAULT_CONFIG", Value: config.Default})
	}
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: configVolume, MountPath: configDir, ReadOnly: true})
	d.Spec.Template.Spec.Volumes = append(d.Spec.Template.Spec.Volumes, corev1.Volume{
		Name: configVolume, VolumeSource: configMapSource(config.Name),
	})
}

// mps adds the DaemonSet of the MPS control daemons. It runs on nodes whose label shows that the
// plugin's configuration there shares GPUs by MPS. Without a ConfigMap of configurations it is not
// added.
func (r *renderer) mps(image string) error {
	spec := r.spec.DevicePlugin
	if spec.Config == nil || spec.Config.Name == "" {
		return nil
	}
	data, err := deployments.MPS.Render(deployments.AgentData{Namespace: r.in.Cluster.Namespace, Image: image, Privileged: true})
	if err != nil {
		return err
	}
	d, err := decode(data)
	if err != nil {
		return err
	}
	c := container(d, "mps-daemon")
	dropVolume(d, c, configVolume)
	setEnv(c, v1.EnvVar{Name: "CONFIG_FILE", Value: ""})
	r.setMPSRoot(d, c)
	r.mountPluginConfigs(d, c)
	r.setHostPaths(d, c)
	c.ImagePullPolicy = spec.PullPolicy()
	replaceEnv(c, r.env("devicePlugin", spec.Env)...)
	d.Spec.Template.Spec.ImagePullSecrets = r.secrets(spec.ImageSpec)
	r.setPlacement(d, operandPlugin, map[string]string{label.MPSCapable: "true"})
	pod := spec.PodSpec
	// In the host's network, the device plugin would already use the same port for its metrics.
	pod.HostNetwork = nil
	r.applyPodFields(progress.DevicePlugin, d, podFields{"devicePlugin", &pod})
	r.setUpdateStrategy(d)
	return r.add(progress.DevicePlugin, d)
}

// dropVolume removes a volume and its mount.
func dropVolume(d *appsv1.DaemonSet, c *corev1.Container, name string) {
	pod := &d.Spec.Template.Spec
	var volumes []corev1.Volume
	for _, v := range pod.Volumes {
		if v.Name != name {
			volumes = append(volumes, v)
		}
	}
	var mounts []corev1.VolumeMount
	for _, m := range c.VolumeMounts {
		if m.Name != name {
			mounts = append(mounts, m)
		}
	}
	pod.Volumes, c.VolumeMounts = volumes, mounts
}

// configMapSource returns a ConfigMap as a volume's source. If keys are given, the volume has only
// those.
func configMapSource(name string, keys ...string) corev1.VolumeSource {
	return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: name}, Items: items(keys),
	}}
}

// items puts each key into a file of the same name.
func items(keys []string) []corev1.KeyToPath {
	var items []corev1.KeyToPath
	for _, key := range keys {
		items = append(items, corev1.KeyToPath{Key: key, Path: key})
	}
	return items
}
