package state

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/deployments"
	"github.com/gpuready/gpuready/internal/nvidia"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

// ownOperands are the operands of this product that NVIDIA's operator has under the same field.
var ownOperands = []struct {
	field string
	image func(*v1.ClusterPolicySpec) v1.ImageSpec
	agent deployments.Agent
}{
	{"devicePlugin", func(s *v1.ClusterPolicySpec) v1.ImageSpec { return s.DevicePlugin.ImageSpec }, deployments.DevicePlugin},
	{"draDriver", func(s *v1.ClusterPolicySpec) v1.ImageSpec { return s.DRADriver.ImageSpec }, deployments.DRADriver},
	{"toolkit", func(s *v1.ClusterPolicySpec) v1.ImageSpec { return s.Toolkit.ImageSpec }, deployments.Toolkit},
	{"validator", func(s *v1.ClusterPolicySpec) v1.ImageSpec { return s.Validator.ImageSpec }, deployments.Validator},
}

// Image returns the default of one of our images.
func (c Cluster) Image(name string) v1.ImageSpec {
	if pinned, is := c.Pinned[name]; is {
		return pinned
	}
	return v1.ImageSpec{Repository: c.ImageRepository, Image: name, Version: c.ImageVersion}
}

// ownImage returns the image of one of our agents. A policy that was written for NVIDIA's
// operator gets ours; see Replaced.
func (c Cluster) ownImage(a deployments.Agent, spec v1.ImageSpec) string {
	if c.isNVIDIAs(spec) {
		return v1.ImageSpec{}.Ref(c.Image(a.Image))
	}
	byDefault := c.Image(a.Image)
	if spec.IsRenamed(byDefault) {
		byDefault.Version = c.ImageVersion
	}
	return spec.Ref(byDefault)
}

// isNVIDIAs reports whether an image of one of our agents is NVIDIA's.
func (c Cluster) isNVIDIAs(i v1.ImageSpec) bool {
	return nvidia.IsCounterpart(nvidia.Image{Repository: i.Repository, Image: i.Image, Version: i.Version}, c.ImageVersion)
}

// Replaced tells which of the policy's images are NVIDIA's and have ours in their place, a line
// each, as in status.unserved.
func Replaced(spec *v1.ClusterPolicySpec, c Cluster) (lines []string) {
	for _, o := range ownOperands {
		image := o.image(spec)
		if !c.isNVIDIAs(image) {
			continue
		}
		field, value := ".image", image.Image
		if value == "" {
			field, value = ".version", image.Version
		}
		lines = append(lines, fmt.Sprintf("%s%s: %s is NVIDIA's, which is started in another way; %s is used. No action is needed; to name an image of ours, set repository, image and version",
			o.field, field, value, c.ownImage(o.agent, image)))
	}
	return lines
}

// nvidiaImage returns the image of an operand of NVIDIA's, by default that of the release.
func (r *renderer) nvidiaImage(field string, spec v1.ImageSpec) string {
	return spec.Ref(r.in.Cluster.NVIDIA[field])
}

// overlay overlays the policy's fields of a container on the template's.
func (r *renderer) overlay(field string, c *corev1.Container, spec v1.ContainerSpec) {
	c.ImagePullPolicy = spec.PullPolicy()
	c.Args = append(c.Args, spec.Args...)
	r.setResources(field, c, spec.Resources)
	replaceEnv(c, r.env(field, spec.Env)...)
}

// setEnv sets environment variables to values, replacing earlier ones.
func setEnv(c *corev1.Container, vars ...v1.EnvVar) {
	for _, v := range vars {
		replaceEnv(c, corev1.EnvVar{Name: v.Name, Value: v.Value})
	}
}

// replaceEnv sets environment variables, replacing earlier ones.
func replaceEnv(c *corev1.Container, vars ...corev1.EnvVar) {
	for _, entry := range vars {
		if i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == entry.Name }); i >= 0 {
			c.Env[i] = entry
		} else {
			c.Env = append(c.Env, entry)
		}
	}
}

// secrets returns sorted references to pull secrets, without duplicates.
func (r *renderer) secrets(specs ...v1.ImageSpec) []corev1.LocalObjectReference {
	var names []string
	for _, s := range specs {
		for _, secret := range s.ImagePullSecrets {
			if name := r.name("*.imagePullSecrets", secret, ""); name != "" {
				names = append(names, name)
			}
		}
	}
	var refs []corev1.LocalObjectReference
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		refs = append(refs, corev1.LocalObjectReference{Name: name})
	}
	return refs
}
