package state

import (
	"fmt"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/progress"
)

// ConfigMaps returns the names of the ConfigMaps in the operands' namespace whose keys Render
// needs. Each file is mounted separately, so that it does not hide the image's other files.
func ConfigMaps(spec *v1.DriverSpec) []string {
	var names []string
	for _, c := range []string{repoConfig(spec), certConfig(spec), moduleConfig(spec)} {
		if c != "" && !slices.Contains(names, c) {
			names = append(names, c)
		}
	}
	return names
}

func repoConfig(spec *v1.DriverSpec) string {
	if spec.RepoConfig == nil {
		return ""
	}
	return spec.RepoConfig.ConfigMapName
}

func certConfig(spec *v1.DriverSpec) string {
	if spec.CertConfig == nil {
		return ""
	}
	return spec.CertConfig.Name
}

func moduleConfig(spec *v1.DriverSpec) string {
	if spec.KernelModuleConfig == nil {
		return ""
	}
	return spec.KernelModuleConfig.Name
}

// configDirs are the distributions' directories of package repositories and certificate
// authorities, by prefix of the OS tag.
var configDirs = []struct{ os, repositories, certificates string }{
	{"ubuntu", "/etc/apt/sources.list.d", "/usr/local/share/ca-certificates"},
	{"debian", "/etc/apt/sources.list.d", "/usr/local/share/ca-certificates"},
	{"rhcos", "/etc/yum.repos.d", "/etc/pki/ca-trust/extracted/pem"},
	{"rhel", "/etc/yum.repos.d", "/etc/pki/ca-trust/extracted/pem"},
	{"rocky", "/etc/yum.repos.d", "/etc/pki/ca-trust/extracted/pem"},
	{"centos", "/etc/yum.repos.d", "/etc/pki/ca-trust/extracted/pem"},
}

// configure mounts the files that the policy names for drivers. It reports whether the driver may be
// deployed: not without a ConfigMap that the policy names, or when the directories of its files are
// unknown.
func (r *renderer) configure(d *appsv1.DaemonSet, ctr *corev1.Container, c driver.Choice) bool {
	spec, pod := &r.spec.Driver, &d.Spec.Template.Spec
	good := r.mountFiles(pod, ctr, "driver.kernelModuleConfig.name", moduleConfig(spec), "/drivers")
	installs := c.Variant != driver.Precompiled && !c.Ours // packages; only such containers read these files
	if installs {
		repositories, certificates := "", ""
		for _, f := range configDirs {
			if strings.HasPrefix(c.Pool.OS, f.os) {
				repositories, certificates = f.repositories, f.certificates
			}
		}
		if repositories == "" && repoConfig(spec)+certConfig(spec) != "" {
			r.problem(progress.Driver, OSUnknown, fmt.Sprintf("the directories of package repositories and certificates of %q are unknown: the driver of these nodes is not deployed. "+
				"Remove spec.driver.repoConfig and certConfig, or give the image these files", c.Pool.OS))
			return false
		}
		if spec.RepoConfig != nil {
			if dir := r.path("driver.repoConfig.destinationDir", v1.HostPath(spec.RepoConfig.DestinationDir)); dir != "" {
				repositories = dir
			}
		}
		good = r.mountFiles(pod, ctr, "driver.repoConfig.configMapName", repoConfig(spec), repositories) && good
		good = r.mountFiles(pod, ctr, "driver.certConfig.name", certConfig(spec), certificates) && good
		mountSubscriptions(pod, ctr, c)
	}
	if repoConfig(spec) != "" && !installs { // certConfig also serves the search for images
		r.reportUnserved("driver.repoConfig", "driver containers of gpuready's own and precompiled ones install no packages: remove the field")
	}
	if secret := r.name("driver.secretEnv", spec.SecretEnv, ""); secret != "" {
		ctr.EnvFrom = append(ctr.EnvFrom, corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: secret},
		}})
	}
	mountLicense(pod, ctr, spec)
	return good
}

// mountFiles mounts each file of the ConfigMap into a directory.
func (r *renderer) mountFiles(pod *corev1.PodSpec, c *corev1.Container, field, name, folder string) bool {
	if name == "" {
		return true
	}
	keys, ok := r.in.Keys[name]
	if !ok {
		r.problem(progress.Driver, ConfigMapMissing, fmt.Sprintf("spec.%s names ConfigMap %s/%s, which does not exist: drivers are left as they are. Create it",
			field, r.in.Cluster.Namespace, name))
		return false
	}
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	volume := volumeName(field)
	for _, key := range keys {
		mountFile(c, path.Join(folder, key), volume, key)
	}
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: volume, VolumeSource: configMapSource(name, keys...)})
	return true
}

// volumeName returns a volume's name for a field: "repo-config" for
// driver.repoConfig.configMapName. A ConfigMap's own name may be longer than a volume's.
func volumeName(field string) string {
	return map[string]string{
		"driver.kernelModuleConfig.name":  "kernel-module-config",
		"driver.repoConfig.configMapName": "repo-config",
		"driver.certConfig.name":          "cert-config",
	}[field]
}

// mountSubscriptions mounts the host's subscriptions if a distribution's packages need one. On
// OpenShift none is needed, since drivers are built with the Driver Toolkit's contents.
func mountSubscriptions(pod *corev1.PodSpec, ctr *corev1.Container, c driver.Choice) {
	var paths []struct{ host, mount string }
	switch {
	case strings.HasPrefix(c.Pool.OS, "sles"), strings.HasPrefix(c.Pool.OS, "sl-micro"):
		paths = []struct{ host, mount string }{
			{"/etc/zypp/credentials.d", "/etc/zypp/credentials.d"}, {"/etc/SUSEConnect", "/etc/SUSEConnect"},
		}
	case strings.HasPrefix(c.Pool.OS, "rhel") && !c.Pool.CoreOS:
		paths = []struct{ host, mount string }{
			{"/etc/pki/entitlement", "/run/secrets/etc-pki-entitlement"}, {"/etc/rhsm", "/run/secrets/rhsm"},
			{"/etc/yum.repos.d/redhat.repo", "/run/secrets/redhat.repo"},
		}
	}
	for i, p := range paths {
		name := fmt.Sprintf("subscription-%d", i)
		ctr.VolumeMounts = append(ctr.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: p.mount, ReadOnly: true})
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: name,
			VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: p.host}}})
	}
}

// mountLicense mounts the licence files of a vGPU driver.
func mountLicense(pod *corev1.PodSpec, c *corev1.Container, spec *v1.DriverSpec) {
	if l := spec.LicensingConfig; l != nil && l.SecretName+l.ConfigMapName != "" {
		const volume, conf, token = "licensing-config", "gridd.conf", "client_configuration_token.tok"
		keys := []string{conf}
		mountFile(c, "/drivers/"+conf, volume, conf)
		if l.NLSEnabled != nil && *l.NLSEnabled {
			keys = append(keys, token)
			mountFile(c, "/drivers/ClientConfigToken/"+token, volume, token)
		}
		source := configMapSource(l.ConfigMapName, keys...)
		if l.SecretName != "" {
			source = corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: l.SecretName, Items: items(keys)}}
		}
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: volume, VolumeSource: source})
	}
	if t := spec.VirtualTopology; t != nil && t.Config != "" {
		const volume, conf = "topology-config", "nvidia-topologyd.conf"
		mountFile(c, "/etc/nvidia/"+conf, volume, conf)
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: volume, VolumeSource: configMapSource(t.Config, conf)})
	}
}
