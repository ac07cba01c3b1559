package state

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/deployments/agents"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
)

const (
	configVolume = "config"
	configDir    = "/etc/gpuready/configs"
)

func (r *renderer) plugins() error {
	spec := r.spec.DevicePlugin
	if !spec.IsEnabled() {
		return nil
	}
	image := r.in.Cluster.ownImage(agents.DevicePlugin, spec.ImageSpec)
	for _, i := range r.injections {
		d, err := r.newAgent(agents.DevicePlugin, image, i, false)
		if err != nil {
			return err
		}
		c := container(d, "device-plugin")
		setEnv(c, v1.EnvVar{Name: listVariable, Value: r.deviceListStrategy(i)})
		if strategy := r.spec.MIG.Strategy; strategy != "" {
			setEnv(c, v1.EnvVar{Name: "MIG_STRATEGY", Value: strategy})
		}
		r.pluginConfig(d, c)
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

// deviceListStrategy returns how the device plugin passes GPUs to containers.
func (r *renderer) deviceListStrategy(i fleet.Injection) string {
	switch {
	case r.usesHandler(i):
		return "volume-mounts" // unlike environment variables, an image cannot set them
	case i == fleet.Annotations:
		return "cdi-annotations" // the kubelet would drop CDI names
	}
	return "cdi-cri"
}

// listVariable is the device plugin's variable with the ways to pass GPUs to containers.
const listVariable = "DEVICE_LIST_STRATEGY"

// completeListStrategies adds the nodes' own way to the policy's list of ways to pass GPUs to
// containers. A policy has one list for all nodes; of the ways in it, the device plugin uses the
// best one that its node serves. Without our toolkit, others serve what the policy lists.
func (r *renderer) completeListStrategies(c *corev1.Container, i fleet.Injection) {
	own, listed := r.deviceListStrategy(i), ""
	for _, e := range r.spec.DevicePlugin.Env {
		if e.Name == listVariable {
			listed = strings.Trim(e.Value, " ,")
		}
	}
	if listed == "" {
		setEnv(c, v1.EnvVar{Name: listVariable, Value: own})
		return
	}
	serves := false
	for way := range strings.SplitSeq(listed, ",") {
		switch way = strings.TrimSpace(way); way {
		case own:
			return
		case "cdi-cri":
			serves = serves || i == fleet.NRI || i == fleet.CDI
		case "cdi-annotations":
			serves = serves || i != fleet.Handler
		default:
			serves = serves || r.hasHandler(i)
		}
	}
	if !r.spec.Toolkit.IsEnabled() {
		return
	}
	setEnv(c, v1.EnvVar{Name: listVariable, Value: listed + "," + own})
	if !serves {
		r.unserved(fmt.Sprintf("devicePlugin.env %s=%s: nodes with gpuready.io/injection=%s serve none of it; %s is used there: remove the variable",
			listVariable, listed, i, own))
	}
}

// pluginConfig mounts the configurations among which a node's label chooses.
func (r *renderer) pluginConfig(d *appsv1.DaemonSet, c *corev1.Container) {
	if mps := r.spec.DevicePlugin.MPS; mps != nil {
		// The plugin has no such volume, only the setting: it passes the directory on to others.
		if root := r.moveVolume(d, "devicePlugin.mps.root", "mps", "/host", mps.Root); root != "" {
			setEnv(c, v1.EnvVar{Name: "MPS_ROOT", Value: root})
		}
	}
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

// mps adds the DaemonSet of the MPS control daemons. It runs on nodes whose label shows that
// their configuration of the plugin shares GPUs by MPS.
func (r *renderer) mps(image string) error {
	spec := r.spec.DevicePlugin
	if spec.Config == nil || spec.Config.Name == "" {
		return nil
	}
	data, err := agents.Render(agents.MPS, agents.Data{Namespace: r.in.Cluster.Namespace, Image: image, Privileged: true})
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
	r.pluginConfig(d, c)
	r.setHostPaths(d, c)
	c.ImagePullPolicy = spec.PullPolicy()
	replaceEnv(c, r.env("devicePlugin", spec.Env)...)
	d.Spec.Template.Spec.ImagePullSecrets = r.secrets(spec.ImageSpec)
	r.setPlacement(d, operandPlugin, map[string]string{label.MPSCapable: "true"})
	pod := spec.PodSpec
	pod.HostNetwork = nil // its port is the device plugin's
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

// configMapSource returns a ConfigMap as a volume's source, limited to keys if there are any.
func configMapSource(name string, keys ...string) corev1.VolumeSource {
	return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: name}, Items: items(keys),
	}}
}

func items(keys []string) []corev1.KeyToPath {
	var items []corev1.KeyToPath
	for _, key := range keys {
		items = append(items, corev1.KeyToPath{Key: key, Path: key})
	}
	return items
}
