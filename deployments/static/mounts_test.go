package static

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// hostFolders lists what each container may mount of the host: path, mode, propagation.
// The flag read-only holds for one file system. So a container that is not privileged
// mounts a folder in which nothing is mounted, without propagation; it never mounts the
// host's root, /dev, /proc, /sys, /run, a driver's root or a folder above one. A container
// that does is privileged anyway, or runs as user nobody.
var hostFolders = map[string][]string{
	// Root without capabilities.
	"device-plugin": {
		"/var/lib/kubelet/device-plugins rw", "/run/nvidia/gpuready/deviceplugin rw",
		"/run/nvidia/gpuready/toolkit ro", "/run/nvidia/gpuready/mps ro", "/run/nvidia/gpuready/validator ro", "/run/nvidia/gpuready/dra-driver ro", "/var/lib/kubelet/pod-resources ro",
	},
	"validator": {
		"/run/nvidia/validations rw", "/run/nvidia/gpuready/validator rw", "/run/nvidia/gpuready ro",
		"/var/lib/kubelet/pod-resources ro", "/var/run/cdi ro", "/etc/cdi ro",
	},
	"dra-driver": {
		"/var/lib/kubelet/plugins/gpu.nvidia.com rw", "/var/lib/kubelet/plugins_registry rw", "/var/lib/kubelet/pod-resources ro",
		"/run/nvidia/gpuready/dra-driver rw", "/run/nvidia/gpuready/deviceplugin ro", "/run/nvidia/gpuready/toolkit ro", "/var/run/cdi ro",
	},
	"wait": {"/run/nvidia/gpuready/toolkit ro", "/run/nvidia/gpuready ro", "/run/nvidia/validations ro"},
	// User nobody: it reads, once, what any user may read.
	"host-driver (nobody)": {"/ ro HostToContainer"},
	// Privileged. The toolkit itself makes mounts below the host's root read-only.
	"toolkit (privileged)": {
		"/ ro HostToContainer", "/dev rw", "/run/cdi rw", "/run/nvidia/gpuready/toolkit rw", "/usr/local/nvidia/gpuready rw", "/etc/containerd rw", "/etc/crio rw",
	},
	"device-plugin (privileged)": {"/ ro HostToContainer", "/var/lib/kubelet/device-plugins rw", "/run/nvidia/gpuready/deviceplugin rw"},
	"validator (privileged)":     {"/ ro HostToContainer", "/run/nvidia/validations rw", "/run/nvidia/gpuready/validator rw"},
	"shadow (privileged)":        {"/ ro HostToContainer"},
	"mps-daemon (privileged)":    {"/ ro HostToContainer", "/run/nvidia/mps rw Bidirectional", "/run/nvidia/gpuready/mps rw", "/run/cdi rw"},
	"mps-uninstall (privileged)": {"/run rw Bidirectional"},
	"uninstall (privileged)":     {"/ rw HostToContainer", "/ rw"},
	"driver (privileged)":        {"/run/nvidia rw Bidirectional"},
	// NVIDIA's, as NVIDIA's operator runs them. The driver's container has one name, whoever
	// made its image; ours mounts /lib/modules and the node's module store, the
	// others only /run/nvidia.
	"nvidia-dcgm-exporter (privileged)": {"/var/lib/kubelet/pod-resources ro"},
	// With a policy's securityContext and hpcJobMapping.directory.
	"nvidia-dcgm-exporter (with capabilities)": {"/var/lib/kubelet/pod-resources ro", "/var/lib/jobs ro"},
	"nvidia-mig-manager (privileged)":          {"/sys rw", "/ rw HostToContainer"},
	"nvidia-peermem-ctr (privileged)":          {"/run/nvidia rw Bidirectional", "/var/log rw", "/run/mellanox/drivers rw HostToContainer"},
	"nvidia-driver-ctr (privileged)": {
		"/run/nvidia rw Bidirectional", "/lib/modules ro", "/var/lib/gpuready/driver rw", "/run/nvidia-fabricmanager rw", "/run/nvidia-topologyd rw", "/var/log rw", "/etc/os-release ro",
		"/run/mellanox/drivers rw HostToContainer", "/run/mellanox/drivers/usr/src rw HostToContainer", "/usr/src rw HostToContainer",
		"/sys/devices/system/memory/auto_online_blocks rw", "/sys/module/firmware_class/parameters/path rw", "/run/nvidia/driver/lib/firmware rw",
		"/etc/zypp/credentials.d ro", "/etc/SUSEConnect ro", "/etc/pki/entitlement ro", "/etc/rhsm ro", "/etc/yum.repos.d/redhat.repo ro",
	},
	"openshift-driver-toolkit-ctr (privileged)": {
		"/var/log rw", "/etc/os-release ro", "/sys/module/firmware_class/parameters/path rw", "/run/nvidia/driver/lib/firmware rw",
		"/run/mellanox/drivers rw HostToContainer", "/run/mellanox/drivers/usr/src rw HostToContainer", "/usr/src rw HostToContainer",
	},
}

// TestHostFoldersAreThoseOfTheList walks the manifests for users and those that the
// operator renders from policies. A new folder must be added to the list, with its
// reason.
func TestHostFoldersAreThoseOfTheList(t *testing.T) {
	for _, w := range everyWorkload(t) {
		folders := map[string]string{}
		for _, v := range w.pod.Spec.Volumes {
			if v.HostPath != nil {
				folders[v.Name] = filepath.Clean(v.HostPath.Path)
			}
		}
		for _, c := range w.containers() {
			who, privileged := containerName(c)
			for _, m := range c.VolumeMounts {
				folder, is := folders[m.Name]
				if !is {
					continue
				}
				if w.file == "everything.yaml" { // where that policy says that the root is, and the kubelet's
					if folder == "/host-root" {
						folder = "/"
					}
					folder = strings.Replace(folder, "/data/kubelet/", "/var/lib/kubelet/", 1)
				}
				mount := folder + " rw"
				if m.ReadOnly {
					mount = folder + " ro"
				}
				if m.MountPropagation != nil && *m.MountPropagation != corev1.MountPropagationNone {
					mount += " " + string(*m.MountPropagation)
				}
				at := w.String() + "/" + c.Name
				if w.file == "everything.yaml" && privileged { // its policy has folders of its own
					continue
				}
				assert.Contains(t, hostFolders[who], mount, "%s (%s) mounts a folder of the host that is not on the list in mounts_test.go", at, who)
				require.Truef(t, privileged || m.MountPropagation == nil || who == "host-driver (nobody)", "%s: %s: what is mounted later is writable", at, mount)
			}
		}
	}
	for who, mounts := range hostFolders {
		if strings.Contains(who, "(") {
			continue
		}
		for _, m := range mounts {
			folder, _, _ := strings.Cut(m, " ")
			for _, mounted := range []string{"/proc/sys", "/sys/kernel", "/dev/shm", "/run/nvidia/driver/proc", "/run/nvidia/mps/shm", "/var/lib/kubelet/pods"} {
				require.Falsef(t, strings.HasPrefix(mounted, strings.TrimSuffix(folder, "/")+"/"), "%s has %s, in which there are file systems that read-only does not hold for", who, folder)
			}
		}
	}
}

// everyWorkload returns the workloads of the manifests, and those that the operator renders.
func everyWorkload(t *testing.T) []workload {
	t.Helper()
	all := workloads(t)
	for _, file := range operands(t) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for part := range strings.SplitSeq(string(text), "\n---\n") {
			var d appsv1.DaemonSet
			require.NoError(t, yaml.Unmarshal([]byte(strings.TrimPrefix(part, "---\n")), &d), file)
			if d.Kind == "DaemonSet" {
				all = append(all, workload{document: document{file: filepath.Base(file), name: d.Name}, pod: d.Spec.Template})
			}
		}
	}
	return all
}

// Without the annotation, kubectl logs and exec print which container they take.
func TestPodsWithSeveralContainersNameTheirDefault(t *testing.T) {
	for _, w := range everyWorkload(t) {
		named := w.pod.Annotations["kubectl.kubernetes.io/default-container"]
		names := func(c corev1.Container) bool { return c.Name == named }
		if containers := w.containers(); len(containers) > 1 || named != "" {
			require.True(t, slices.ContainsFunc(containers, names), "%s names %q as its container for kubectl", w, named)
		}
	}
}

// containerName returns a container's name in the list, and whether it is privileged.
func containerName(c corev1.Container) (name string, privileged bool) {
	s := c.SecurityContext
	switch {
	case s == nil:
		return c.Name + " (unconfined)", false
	case s.Privileged != nil && *s.Privileged:
		return c.Name + " (privileged)", true
	case s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0:
		return c.Name + " (with capabilities)", false
	case s.RunAsNonRoot != nil && *s.RunAsNonRoot && s.RunAsUser != nil && *s.RunAsUser == 65534:
		return c.Name + " (nobody)", false
	}
	return c.Name, false
}
