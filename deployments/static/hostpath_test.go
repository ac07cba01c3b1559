package static

import (
	"bytes"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// writable lists the host's folders that a container of ours may write to, by the
// container's name. Everything else of the host is read-only for it.
var writable = map[string][]string{
	"toolkit": {
		"/dev", // a driver's device nodes
		"/run/cdi", "/run/nvidia/gpuready/toolkit", "/usr/local/nvidia/gpuready", "/opt/nvidia/gpuready",
		"/etc/containerd", "/etc/crio", "/var/lib/rancher/k3s/agent/etc/containerd", // where a handler is wanted
	},
	"device-plugin": {"/run/nvidia/gpuready/deviceplugin", "/var/lib/kubelet/device-plugins", "/data/kubelet/device-plugins"}, // the last as a policy's hostPaths.kubeletRootDir
	"dra-driver":    {"/var/lib/kubelet/plugins/gpu.nvidia.com", "/var/lib/kubelet/plugins_registry", "/run/nvidia/gpuready/dra-driver"},
	"mps-daemon":    {"/run/nvidia/gpuready/mps", "/run/cdi", "/run/nvidia/mps", "/var/lib/mps"}, // the last as a policy's mps.root
	"validator":     {"/run/nvidia/gpuready/validator", "/run/nvidia/validations"},
	"driver":        {"/run/nvidia"}, // the simulated one
	"uninstall":     {"/"},
	"mps-uninstall": {"/run"},
	// NVIDIA's operands, as NVIDIA's operator mounts for them.
	"nvidia-driver-ctr": {
		"/run/nvidia", "/run/nvidia-fabricmanager", "/var/lib/gpuready/driver", "/run/nvidia-topologyd", "/run/nvidia/driver/lib/firmware", "/run/mellanox/drivers",
		"/sys/devices/system/memory/auto_online_blocks", "/sys/module/firmware_class/parameters/path", "/usr/src", "/var/log",
	},
	"nvidia-peermem-ctr":           {"/run/mellanox/drivers", "/run/nvidia", "/var/log"},
	"openshift-driver-toolkit-ctr": {"/run/nvidia/driver/lib/firmware", "/sys/module/firmware_class/parameters/path", "/var/log"},
	"nvidia-mig-manager":           {"/", "/sys"},
}

// worldWritable lists the host's folders in which any user may create what others then
// mount by its path: nothing is mounted from there, not even to be read.
var worldWritable = []string{"/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock", "/var/lock", "/run/user"}

// TestManifestsWriteToListedHostPathsOnly walks every manifest that is installed by hand,
// and every one that the operator has rendered for its tests.
func TestManifestsWriteToListedHostPathsOnly(t *testing.T) {
	files := operands(t)
	for _, pattern := range []string{"*.yaml", "examples/*.yaml"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		files = append(files, found...)
	}
	used := map[string]bool{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		for document := range bytes.SplitSeq(data, []byte("\n---\n")) {
			var object any
			require.NoError(t, yaml.Unmarshal(document, &object), file)
			for _, pod := range podSpecs(t, object) {
				checkHostPaths(t, file, pod, used)
			}
		}
	}
	for container, paths := range writable {
		for _, p := range paths {
			require.True(t, used[container+p], "no manifest lets %s write to %s any more: take it from the list", container, p)
		}
	}
}

var rendered string // the folder of the files of operands

func TestMain(m *testing.M) {
	code := m.Run()
	if rendered != "" {
		_ = os.RemoveAll(rendered)
	}
	os.Exit(code)
}

// operands returns files with what the operator renders in all cases of its golden files,
// which hold differences.
func operands(t *testing.T) []string {
	t.Helper()
	if rendered == "" {
		renderOperands(t)
	}
	files, err := filepath.Glob(filepath.Join(rendered, "*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return files
}

func renderOperands(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("", "operands")
	require.NoError(t, err)
	rendered = dir
	out, err := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-count=1", "-run=^TestRenderMatchesGoldenFiles$",
		"github.com/gpuready/gpuready/operator/state", "-args", "-rendered="+dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func checkHostPaths(t *testing.T, file string, pod corev1.PodSpec, used map[string]bool) {
	t.Helper()
	from := map[string]string{}
	for _, v := range pod.Volumes {
		if v.HostPath != nil {
			from[v.Name] = v.HostPath.Path
		}
	}
	for _, c := range append(slices.Clone(pod.InitContainers), pod.Containers...) {
		for _, m := range c.VolumeMounts {
			p, isHost := from[m.Name]
			if !isHost {
				continue
			}
			p = path.Join(p, m.SubPath)
			for _, dir := range worldWritable {
				require.Falsef(t, p == dir || strings.HasPrefix(p, dir+"/"), "%s: container %s mounts %s: everybody may write to %s", file, c.Name, p, dir)
			}
			if !m.ReadOnly {
				require.Containsf(t, writable[c.Name], p, "%s: container %s may write to it", file, c.Name)
				used[c.Name+p] = true
			}
		}
	}
}

// podSpecs returns everything below an object that has containers.
func podSpecs(t *testing.T, object any) (all []corev1.PodSpec) {
	t.Helper()
	switch o := object.(type) {
	case map[string]any:
		if _, is := o["containers"].([]any); is {
			data, err := yaml.Marshal(o)
			require.NoError(t, err)
			var pod corev1.PodSpec
			require.NoError(t, yaml.Unmarshal(data, &pod))
			all = append(all, pod)
		}
		for _, v := range o {
			all = append(all, podSpecs(t, v)...)
		}
	case []any:
		for _, v := range o {
			all = append(all, podSpecs(t, v)...)
		}
	}
	return all
}
