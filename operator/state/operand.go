package state

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/deployments/agents"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/progress"
)

// nvidiaImages are the names of NVIDIA's images for operands that are ours here. Their entry
// points differ: a policy that was written for NVIDIA's operator and names them gets our images.
var nvidiaImages = []string{"container-toolkit", "k8s-device-plugin", "gpu-feature-discovery", "gpu-operator-validator", "gpu-operator"}

// ownImage returns the image of one of our agents.
func (r *renderer) ownImage(s progress.State, field string, a agents.Agent, spec v1.ImageSpec) string {
	byDefault := v1.ImageSpec{Repository: r.in.Cluster.ImageRepository, Image: a.Image, Version: r.in.Cluster.ImageVersion}
	ref := spec.Ref(byDefault)
	name, _, _ := strings.Cut(path.Base(spec.Image), "@")
	name, _, _ = strings.Cut(name, ":")
	if !slices.Contains(nvidiaImages, name) {
		return ref
	}
	own := v1.ImageSpec{}.Ref(byDefault)
	r.problem(s, ImageForeign, fmt.Sprintf("spec.%s names %s, NVIDIA's image, which has another entry point than ours: %s is used. "+
		"Remove repository, image and version of spec.%[1]s", field, ref, own))
	return own
}

// foreignImage returns the image of an operand that is not ours. If the policy names none, it
// returns "" and adds a problem.
func (r *renderer) foreignImage(s progress.State, field string, spec v1.ImageSpec) string {
	ref := spec.Ref(v1.ImageSpec{})
	if ref == "" || spec.Repository == "" && ref == spec.Image && !strings.ContainsAny(ref, "/:@") {
		r.problem(s, ImageMissing, fmt.Sprintf("spec.%s is enabled and names no image: set its repository, image and version, or enabled: false", field))
		return ""
	}
	return ref
}

// overlay overlays the policy's fields of a container on the template's.
func (r *renderer) overlay(field string, c *corev1.Container, spec v1.ContainerSpec) {
	c.ImagePullPolicy = spec.PullPolicy()
	c.Args = append(c.Args, spec.Args...)
	r.setResources(field, c, spec.Resources)
	setEnv(c, r.env(field, spec.Env)...)
}

// setEnv sets environment variables, replacing earlier values.
func setEnv(c *corev1.Container, vars ...v1.EnvVar) {
	for _, v := range vars {
		entry := corev1.EnvVar{Name: v.Name, Value: v.Value}
		if i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == v.Name }); i >= 0 {
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
