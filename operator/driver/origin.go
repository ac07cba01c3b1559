package driver

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/drivertag"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

// Variables of the driver container that configure where modules that its image lacks come from
// and where they are pushed to (docs/driver.md).
const (
	envImage       = "DRIVER_IMAGE"
	EnvVersion     = "DRIVER_VERSION"
	EnvOSTag       = "DRIVER_OS_TAG"
	envRepository  = "PREBUILD_REPOSITORY"
	envInsecure    = "PREBUILD_INSECURE"
	envRegistry    = "DOCKER_CONFIG"
	envKey         = "SIGN_KEY_FILE"
	envCertificate = "SIGN_CERTIFICATE_FILE"
	envCache       = "BUILD_CACHE"
	EnvRHCOS       = "RHCOS_VERSION"
	envNoToolkit   = "RHCOS_IMAGE_MISSING"
)

// IsOrigin reports whether a variable is one of those above. A change of such a variable does not
// require reloading modules: gpu-driver compares the loaded modules with those it gets.
func IsOrigin(e corev1.EnvVar) bool {
	return slices.Contains([]string{envImage, EnvVersion, EnvOSTag, envRepository, envInsecure, envRegistry, envKey, envCertificate, envCache, EnvRHCOS, envNoToolkit}, e.Name)
}

// Origin holds what a container needs for the repository, or for signing.
type Origin struct {
	Env     []v1.EnvVar
	Mounts  []corev1.VolumeMount
	Volumes []corev1.Volume
}

// RepositoryOrigin returns the Origin for the repository in which a policy stores modules. It is
// empty if there is none.
func RepositoryOrigin(spec *v1.DriverSpec) Origin {
	var o Origin
	if spec.PrebuildRepository() == "" {
		return o
	}
	o.Env = []v1.EnvVar{{Name: envRepository, Value: spec.PrebuildRepository()}}
	if registry := spec.PrebuildInsecure(); registry != "" {
		o.Env = append(o.Env, v1.EnvVar{Name: envInsecure, Value: registry})
	}
	if secret := spec.PrebuildSecret(); secret != "" {
		const at = "/etc/gpuready/registry"
		o.Env = append(o.Env, v1.EnvVar{Name: envRegistry, Value: at})
		o.mount("prebuild-registry", at, secret, corev1.KeyToPath{Key: corev1.DockerConfigJsonKey, Path: "config.json"})
		// A node builds its modules even if the Secret is missing.
		o.Volumes[0].Secret.Optional = new(true)
	}
	return o
}

// SigningOrigin returns the Origin for the key that signs a policy's modules. It is empty if they
// are not signed.
func SigningOrigin(spec *v1.DriverSpec) Origin {
	var o Origin
	if secret := spec.SigningSecret(); secret != "" {
		const at = "/etc/gpuready/signing"
		o.Env = []v1.EnvVar{{Name: envKey, Value: at + "/" + corev1.TLSPrivateKeyKey}, {Name: envCertificate, Value: at + "/" + corev1.TLSCertKey}}
		o.mount("module-signing", at, secret)
	}
	return o
}

func (o *Origin) mount(volume, at, secret string, items ...corev1.KeyToPath) {
	mode := int32(0o440)
	o.Mounts = append(o.Mounts, corev1.VolumeMount{Name: volume, MountPath: at, ReadOnly: true})
	o.Volumes = append(o.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
		Secret: &corev1.SecretVolumeSource{SecretName: secret, Items: items, DefaultMode: &mode},
	}})
}

// prebuiltImage returns the image with the modules of a kernel.
func prebuiltImage(repository, version, kernel, osTag string) (string, error) {
	tag, err := drivertag.Tag(version, kernel, osTag)
	return repository + ":" + tag, err
}
