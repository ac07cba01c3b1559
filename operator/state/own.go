package state

import (
	"fmt"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/deployments"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/label"
)

// ownDriver returns the DaemonSet of our driver container: that of the static manifests, with
// the policy applied and the labels of NVIDIA's driver containers. It returns nil if a
// configuration that the policy names does not exist.
func (r *renderer) ownDriver(c driver.Choice) (*appsv1.DaemonSet, error) {
	data, err := deployments.Driver.Render(deployments.AgentData{
		Namespace: r.in.Cluster.Namespace, Image: c.Image, DriverToolkit: c.Variant == driver.DriverToolkit, ToolkitImage: c.Sidecar,
	})
	if err != nil {
		return nil, err
	}
	d, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", deployments.Driver.Name, err)
	}
	precompiled := strconv.FormatBool(c.Variant == driver.Precompiled)
	d.Labels[label.DriverContainer], d.Labels[label.Precompiled] = label.Product, precompiled
	pod := &d.Spec.Template
	pod.Labels[label.DriverContainer] = label.Product
	pod.Labels["app.kubernetes.io/component"], pod.Labels[label.Precompiled] = "nvidia-driver", precompiled
	if c.Variant == driver.DriverToolkit {
		d.Labels[label.DriverToolkit], d.Labels[label.DriverToolkit+".rhcos"] = "true", c.Pool.RHCOS
		pod.Labels[label.DriverToolkit] = "true"
	}

	spec, ctr := &r.spec.Driver, container(d, "nvidia-driver-ctr")
	r.setModules(ctr)
	r.setOrigins(d, ctr, c)
	before := len(pod.Spec.Volumes)
	r.overlay("driver", ctr, spec.ContainerSpec)
	r.setResources("driver", container(d, "openshift-driver-toolkit-ctr"), spec.Resources)
	container(d, "share").ImagePullPolicy = spec.PullPolicy()
	overlayProbes(ctr, spec)
	pod.Spec.ImagePullSecrets = r.secrets(spec.ImageSpec, r.spec.Validator.ImageSpec)
	if !r.configure(d, ctr, c) {
		return nil, nil
	}
	digest, err := configDigest(ctr, pod.Spec.Volumes[before:])
	if err != nil {
		return nil, err
	}
	setEnv(ctr, v1.EnvVar{Name: "DRIVER_CONFIG_DIGEST", Value: digest})
	return d, nil
}

// configDigest returns the digest of the driver's configuration. If it has changed, gpu-driver
// reloads the modules; otherwise it adopts the loaded ones. It excludes the image and the
// other sources of modules, since gpu-driver compares the modules themselves.
func configDigest(c *corev1.Container, files []corev1.Volume) (string, error) {
	env := slices.DeleteFunc(slices.Clone(c.Env), driver.IsModuleVariable)
	digest, err := digestOf([]any{c.Args[1:], env, c.EnvFrom, files})
	if err != nil {
		return "", err
	}
	return digest[:32], nil
}
