package v1

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// EnvVar is an environment variable of a container.
type EnvVar struct {
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
	// The source of the value: a key of a ConfigMap or Secret, or a field of the pod.
	ValueFrom *Object `json:"valueFrom,omitempty"`
}

// ImageSpec is an image, and how it is pulled.
type ImageSpec struct {
	// Registry and path, without the image's own name: "nvcr.io/nvidia".
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches(r'^([a-zA-Z0-9][a-zA-Z0-9._/:-]*|\\[[0-9a-fA-F:]+\\][a-zA-Z0-9._/:-]*)?$')",message="repository is a registry and a path, without the image's name: nvcr.io/nvidia"
	Repository string `json:"repository,omitempty"`
	// The image's name. With neither repository nor version it may be a whole reference.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches(r'^([a-zA-Z0-9][a-zA-Z0-9._/:@-]*)?$')",message="image is an image's name: driver; or, with neither repository nor version, a whole reference"
	Image string `json:"image,omitempty"`
	// A tag, or a digest: "sha256:" and 64 hexadecimal digits.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches(r'^([a-zA-Z0-9_][a-zA-Z0-9._-]*|sha256:[0-9a-f]{64})?$')",message="version is a tag, of letters, digits, -, _ and ., or a digest, sha256: and 64 hexadecimal digits"
	Version string `json:"version,omitempty"`
	// When the kubelet pulls the image; IfNotPresent by default.
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never;""
	ImagePullPolicy string `json:"imagePullPolicy,omitempty"`
	// Names of pull Secrets in the operands' namespace.
	ImagePullSecrets []string `json:"imagePullSecrets,omitempty"`
}

// Ref returns the image's reference, with fallback for the fields that are empty. It returns ""
// if neither names an image.
func (i ImageSpec) Ref(fallback ImageSpec) string {
	if i.Image != "" && i.Repository == "" && i.Version == "" && strings.ContainsAny(i.Image, "/:@") {
		return i.Image
	}
	first := func(a, b string) string {
		if a != "" {
			return a
		}
		return b
	}
	repository, image, version := first(i.Repository, fallback.Repository), first(i.Image, fallback.Image), first(i.Version, fallback.Version)
	if image == "" {
		return ""
	}
	if repository != "" {
		image = strings.TrimSuffix(repository, "/") + "/" + image
	}
	switch {
	case version == "":
		return image
	case strings.HasPrefix(version, "sha256:"):
		return image + "@" + version
	}
	return image + ":" + version
}

// IsRenamed reports whether i names another image than fallback, and no version: if fallback's version
// is a digest, it is none of that image.
func (i ImageSpec) IsRenamed(fallback ImageSpec) bool {
	return i.Version == "" && i.Image != "" && i.Image != fallback.Image
}

// fullName matches a repository, a name, and a tag, a digest or both.
var fullName = regexp.MustCompile(`^([a-zA-Z0-9[][a-zA-Z0-9._/:[\]-]{0,511})/([a-z0-9][a-z0-9._-]{0,254})(?::([a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}))?(?:@(sha256:[0-9a-f]{64}))?$`)

// ParseImage parses an image's full name: "registry.example.com/gpuready/toolkit@sha256:…", or with a
// tag. A digest counts more than a tag.
func ParseImage(ref string) (ImageSpec, error) {
	m := fullName.FindStringSubmatch(ref)
	if m == nil || m[3]+m[4] == "" {
		return ImageSpec{}, fmt.Errorf("%.200q is not repository/name@sha256:… or repository/name:tag", ref)
	}
	return ImageSpec{Repository: m[1], Image: m[2], Version: cmp.Or(m[4], m[3])}, nil
}

// PullPolicy returns ImagePullPolicy as the type of pods, with its default.
func (i ImageSpec) PullPolicy() corev1.PullPolicy {
	if i.ImagePullPolicy == "" {
		return corev1.PullIfNotPresent
	}
	return corev1.PullPolicy(i.ImagePullPolicy)
}

// ContainerSpec configures an operand's container.
type ContainerSpec struct {
	ImageSpec `json:",inline"`

	// The container's requests and limits.
	Resources *ResourceRequirements `json:"resources,omitempty"`
	// Arguments in addition to the operator's own.
	Args []string `json:"args,omitempty"`
	// Environment variables in addition to the operator's own, which they override. Of two with one
	// name the last counts.
	Env []EnvVar `json:"env,omitempty"`
}

// PodSpec configures the pods of an operand.
type PodSpec struct {
	// Labels of its pods, in addition to daemonsets.labels.
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations of its pods, in addition to daemonsets.annotations.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Labels of the nodes that it runs on, in addition to those that the operator requires and to
	// daemonsets.nodeSelector.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// The affinity of its pods, in addition to daemonsets.affinity and to what the operator requires.
	Affinity *Object `json:"affinity,omitempty"`
	// Tolerations of its pods, in addition to daemonsets.tolerations.
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// Priority of its pods; daemonsets.priorityClassName by default.
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// The security context of its pods, in addition to daemonsets.podSecurityContext.
	PodSecurityContext *Object `json:"podSecurityContext,omitempty"`
	// The security context of its container.
	SecurityContext *Object `json:"securityContext,omitempty"`
	// Use the host's network.
	HostNetwork *bool `json:"hostNetwork,omitempty"`
}

// UsesHostNetwork reports whether the pods use the host's network.
func (p *PodSpec) UsesHostNetwork() bool { return valueOr(p.HostNetwork, false) }

// OperandSpec is an operand that is enabled by default. A type that embeds it may have another
// default, and then has its own IsEnabled.
type OperandSpec struct {
	// Whether the operator deploys it; true by default.
	Enabled *bool `json:"enabled,omitempty"`

	ContainerSpec `json:",inline"`
	PodSpec       `json:",inline"`
}

// IsEnabled reports whether the operator deploys the operand.
func (o OperandSpec) IsEnabled() bool { return valueOr(o.Enabled, true) }

// OptionalSpec is an operand that is disabled by default.
type OptionalSpec struct {
	// Whether the operator deploys it; false by default.
	Enabled *bool `json:"enabled,omitempty"`

	ContainerSpec `json:",inline"`
}

// IsEnabled reports whether the operand is wanted.
func (o OptionalSpec) IsEnabled() bool { return valueOr(o.Enabled, false) }

// UnservedSpec is an operand that only NVIDIA's operator deploys.
type UnservedSpec struct {
	OptionalSpec `json:",inline"`

	// Use the host's network.
	HostNetwork *bool `json:"hostNetwork,omitempty"`
	// The security context of its container.
	SecurityContext *Object `json:"securityContext,omitempty"`
}

// valueOr returns the value that p points to, or the default if p is nil.
func valueOr[T any](p *T, byDefault T) T {
	if p == nil {
		return byDefault
	}
	return *p
}
