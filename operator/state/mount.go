package state

import (
	"fmt"
	"path"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

// moveVolume makes a volume show the directory dir of the host, joined with more, and mounts it at
// the same path below prefix in the containers. It returns that directory. It returns "" and
// changes nothing if the field does not name a usable directory, or if the pod has another mount
// at that path.
func (r *renderer) moveVolume(d *appsv1.DaemonSet, field, volume, prefix string, dir v1.HostPath, more ...string) string {
	at := r.path(field, dir)
	if at == "" {
		return ""
	}
	at = path.Join(append([]string{at}, more...)...)
	if at == "/" || !remountVolume(d, volume, prefix, at) {
		r.reportInvalid(field, fmt.Sprintf("%q, where something else is mounted,", at), "the default is used")
		return ""
	}
	return at
}

// kubeletRoot is the kubelet's root directory by default.
const kubeletRoot = "/var/lib/kubelet"

// moveKubelet moves a volume of one of the kubelet's directories below the kubelet's root directory
// that the policy names. It sets the variable socket, unless it is "", to the path of kubelet.sock in
// it, and reports whether it has moved the volume.
func (r *renderer) moveKubelet(d *appsv1.DaemonSet, c *corev1.Container, volume, prefix, directory, socket string) bool {
	root := r.spec.HostPaths.KubeletRootDir
	if path.Clean(string(root)) == kubeletRoot {
		return false
	}
	at := r.moveVolume(d, "hostPaths.kubeletRootDir", volume, prefix, root, directory)
	if at != "" && socket != "" {
		setEnv(c, v1.EnvVar{Name: socket, Value: at + "/kubelet.sock"})
	}
	return at != ""
}

// remountVolume makes a volume show dir, and mounts it there below prefix. It changes nothing and
// reports false if another volume is mounted there.
func remountVolume(d *appsv1.DaemonSet, volume, prefix, dir string) bool {
	pod, target := &d.Spec.Template.Spec, path.Join("/", prefix, dir)
	var mounts []*corev1.VolumeMount
	for _, list := range [][]corev1.Container{pod.Containers, pod.InitContainers} {
		for i := range list {
			for j := range list[i].VolumeMounts {
				if m := &list[i].VolumeMounts[j]; m.Name == volume {
					mounts = append(mounts, m)
				} else if m.MountPath == target {
					return false
				}
			}
		}
	}
	for _, m := range mounts {
		m.MountPath = target
	}
	for i := range pod.Volumes {
		if pod.Volumes[i].Name == volume {
			pod.Volumes[i].HostPath.Path = dir
		}
	}
	return true
}

// mountVolume mounts a volume, unless something is mounted there already. It reports whether it did.
func mountVolume(d *appsv1.DaemonSet, c *corev1.Container, at string, readOnly bool, v corev1.Volume) bool {
	if hasMount(c, at) {
		return false
	}
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: at, ReadOnly: readOnly})
	d.Spec.Template.Spec.Volumes = append(d.Spec.Template.Spec.Volumes, v)
	return true
}

func hasMount(c *corev1.Container, at string) bool {
	return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == at })
}

// mountFile mounts one file of a volume, unless something is mounted there already.
func mountFile(c *corev1.Container, at, volume, file string) {
	if !hasMount(c, at) {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: at, SubPath: file, ReadOnly: true})
	}
}

// hostDirectory returns a volume of a directory of the host, which is created if missing.
func hostDirectory(name, dir string) corev1.Volume {
	kind := corev1.HostPathDirectoryOrCreate
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir, Type: &kind}}}
}
