package driver

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/nvidia"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

// Variables of the driver container that configure where modules that its image lacks come from
// and where they are pushed to (docs/driver.md).
const (
	envImage       = "DRIVER_IMAGE"          // the container's own image, which may have modules
	EnvVersion     = "DRIVER_VERSION"        // of the driver, in the tags of module images
	EnvOSTag       = "DRIVER_OS_TAG"         // of the node, in these tags
	envRepository  = "PREBUILD_REPOSITORY"   // of module images
	envInsecure    = "PREBUILD_INSECURE"     // its registry, if it is used by plain HTTP
	envRegistry    = "DOCKER_CONFIG"         // the folder of the credentials to push with
	envKey         = "SIGN_KEY_FILE"         // signs modules
	envCertificate = "SIGN_CERTIFICATE_FILE" // of that key
	envCache       = "BUILD_CACHE"           // the folder of modules that were built on the node
	EnvRHCOS       = "RHCOS_VERSION"         // of the node, by which the Driver Toolkit is chosen
	envNoToolkit   = "RHCOS_IMAGE_MISSING"   // why there is no Driver Toolkit for it
)

// IsModuleVariable reports whether a variable is one of those above. A change of such a variable does not
// require reloading modules: gpu-driver compares the loaded modules with those that it downloads or
// builds.
func IsModuleVariable(e corev1.EnvVar) bool {
	return slices.Contains([]string{envImage, EnvVersion, EnvOSTag, envRepository, envInsecure, envRegistry, envKey, envCertificate, envCache, EnvRHCOS, envNoToolkit}, e.Name)
}

// PodParts are the parts of a pod that a container needs to use the repository of modules, or to sign
// modules.
type PodParts struct {
	Env     []v1.EnvVar
	Mounts  []corev1.VolumeMount
	Volumes []corev1.Volume
}

// RepositoryParts returns the parts for the repository of modules that a policy names. They are empty
// if it names none.
func RepositoryParts(spec *v1.DriverSpec) PodParts {
	var o PodParts
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

// SigningParts returns the parts for the key that signs a policy's modules. They are empty if modules
// are not signed.
func SigningParts(spec *v1.DriverSpec) PodParts {
	var o PodParts
	if secret := spec.SigningSecret(); secret != "" {
		const at = "/etc/gpuready/signing"
		o.Env = []v1.EnvVar{{Name: envKey, Value: at + "/" + corev1.TLSPrivateKeyKey}, {Name: envCertificate, Value: at + "/" + corev1.TLSCertKey}}
		o.mount("module-signing", at, secret)
	}
	return o
}

func (o *PodParts) mount(volume, at, secret string, items ...corev1.KeyToPath) {
	mode := int32(0o440)
	o.Mounts = append(o.Mounts, corev1.VolumeMount{Name: volume, MountPath: at, ReadOnly: true})
	o.Volumes = append(o.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
		Secret: &corev1.SecretVolumeSource{SecretName: secret, Items: items, DefaultMode: &mode},
	}})
}

// prebuiltImage returns the reference of the image that holds the modules for a kernel.
func prebuiltImage(repository, version, kernel, osTag string) (string, error) {
	tag, err := nvidia.DriverTag(version, kernel, osTag)
	return repository + ":" + tag, err
}
