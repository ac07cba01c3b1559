package nri

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/node"
)

// hostileSpecs are CDI specifications of a node: ours for two GPUs and for agents, and
// those of other vendors. The first GPU has two MIG devices.
var hostileSpecs = []string{
	`cdiVersion: 0.5.0
kind: nvidia.com/gpu
containerEdits: {deviceNodes: [{path: /dev/nvidiactl}]}
devices:
- {name: "0", containerEdits: {deviceNodes: [{path: /dev/nvidia0}, {path: /dev/nvidia-caps/nvidia-cap3}, {path: /dev/nvidia-caps/nvidia-cap4}]}}
- {name: "0:0", containerEdits: {deviceNodes: [{path: /dev/nvidia0}, {path: /dev/nvidia-caps/nvidia-cap3}]}}
- {name: "0:1", containerEdits: {deviceNodes: [{path: /dev/nvidia0}, {path: /dev/nvidia-caps/nvidia-cap4}]}}
- {name: "1", containerEdits: {deviceNodes: [{path: /dev/nvidia1}]}}
- {name: readonly, containerEdits: {deviceNodes: [{path: /dev/nvidia1, permissions: r}]}}
- {name: every, containerEdits: {deviceNodes: [{path: /dev/nvidia0}, {path: /dev/nvidia1}]}}
- {name: all, containerEdits: {deviceNodes: [{path: /dev/nvidia0}, {path: /dev/nvidia1}]}}
`, `cdiVersion: 0.5.0
kind: k8s.gpuready.io/gpu
devices:
- {name: GPU-a, containerEdits: {deviceNodes: [{path: /dev/nvidia1}]}}
- {name: MIG-b, containerEdits: {deviceNodes: [{path: /dev/nvidia0}, {path: /dev/nvidia-caps/nvidia-cap3}]}}
`, `cdiVersion: 0.5.0
kind: management.gpuready.io/gpu
devices:
- {name: all, containerEdits: {deviceNodes: [{path: /dev/nvidia0}, {path: /dev/nvidia1}, {path: /dev/nvidia-caps/nvidia-cap1}]}}
`, `cdiVersion: 0.5.0
kind: vendor.example/agent
devices:
- {name: root, containerEdits: {deviceNodes: [{path: /dev/mem}]}}
`, `cdiVersion: 0.5.0
kind: nvidia.com/nvswitch
devices:
- {name: all, containerEdits: {deviceNodes: [{path: /dev/nvidia-nvswitchctl}]}}
`,
}

// nodesOf maps the name of each single device to its device nodes, without /dev/nvidia.
var nodesOf = map[string]string{
	"0": "0 -caps/nvidia-cap3 -caps/nvidia-cap4", "0:0": "0 -caps/nvidia-cap3", "0:1": "0 -caps/nvidia-cap4", "1": "1",
	"GPU-a": "1", "MIG-b": "0 -caps/nvidia-cap3",
}

func hostileTable(t *testing.T) (*host.Root, *Table) {
	t.Helper()
	root := newHost(t)
	require.NoError(t, os.Mkdir(root.Path("/dev/nvidia-caps"), 0o755))
	for i, p := range []string{
		"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap3",
		"/dev/nvidia-caps/nvidia-cap4", "/dev/mem", "/dev/nvidia-nvswitchctl",
	} {
		mknod(t, root, p, i)
	}
	var files []cdi.File
	for _, text := range hostileSpecs {
		parsed, err := cdi.Parse([]byte(text))
		require.NoError(t, err)
		files = append(files, cdi.File{Path: "/etc/cdi/" + parsed.Kind, Kind: parsed.Kind, Spec: parsed})
	}
	return root, NewTable(root, files)
}

// applyTo applies an adjustment to a container.
func applyTo(c *api.Container, a *api.ContainerAdjustment) {
	c.Linux = &api.LinuxContainer{Devices: slices.Clone(a.GetLinux().GetDevices())}
}

func TestImagesGetNoOtherDevicesThanGPUs(t *testing.T) {
	_, table := hostileTable(t)
	for _, visible := range []string{
		"management.gpuready.io/gpu=all", "vendor.example/agent=root", "nvidia.com/nvswitch=all", "0,vendor.example/agent=root", "1,management.gpuready.io/gpu=all",
		"nvidia.com/gpu=all", "0,all", "ALL", "all", "k8s.gpuready.io/gpu=all", "every", "nvidia.com/gpu=every",
	} {
		pod, container := workload("NVIDIA_VISIBLE_DEVICES="+visible, "NVIDIA_NVSWITCH=enabled")
		adjust, asked, err := Workloads{Namespaces: []string{"team"}}.Resolve(table, pod, container)
		require.Nil(t, adjust, visible)
		require.True(t, err != nil || len(asked.Warnings) > 0, "it is said why: %s", visible)
	}
	// The users of the namespace request all GPUs, and get nothing else either.
	pod, container := workload()
	pod.Annotations = map[string]string{"cdi.k8s.io/a": "nvidia.com/gpu=all,management.gpuready.io/gpu=all", "cdi.k8s.io/b": "vendor.example/agent=root"}
	adjust, asked, err := Workloads{Namespaces: []string{"team"}}.Resolve(table, pod, container)
	require.NoError(t, err)
	require.Equal(t, "ctl 0 1", devices(adjust))
	require.Len(t, asked.Warnings, 1)
}

// The two MIG devices of a GPU share its node.
func TestAContainerWithAMIGDeviceGetsNoOther(t *testing.T) {
	_, table := hostileTable(t)
	for _, asks := range []string{"0:1", "0", "1", "0:0,0:1", "0:1,0:0", "GPU-a", "nvidia.com/gpu=0:1", "nvidia.com/gpu=0", "all", "0,1"} {
		for _, byPod := range []bool{false, true} {
			pod, first := workload("NVIDIA_VISIBLE_DEVICES=0:0")
			held, _, err := Workloads{Namespaces: []string{"team"}}.Resolve(table, pod, first)
			require.NoError(t, err)
			pod, container := workload("NVIDIA_VISIBLE_DEVICES=" + asks)
			if byPod {
				container.Env, pod.Annotations = nil, map[string]string{"cdi.k8s.io/a": asks}
			}
			applyTo(container, held)
			adjust, asked, err := Workloads{Namespaces: []string{"team"}, AcceptEnvvar: true}.Resolve(table, pod, container)
			require.NoError(t, err)
			require.Nil(t, adjust, asks)
			require.Contains(t, strings.Join(asked.Warnings, ""), "it gets no more", asks)
		}
	}
}

func TestPermissionsThatNRICannotExpressAreNotWidened(t *testing.T) {
	root, table := hostileTable(t)
	pod, container := workload("NVIDIA_VISIBLE_DEVICES=readonly")
	adjust, _, err := Workloads{Namespaces: []string{"team"}}.Resolve(table, pod, container)
	require.ErrorContains(t, err, `/dev/nvidia1 has the permissions "r"`)
	require.Nil(t, adjust)
	for _, permissions := range []string{"r", "w", "m", "rm", "none"} {
		_, err := NewOffer(root, []byte(strings.Replace(hostileSpecs[2], "/dev/nvidia1}", "/dev/nvidia1, permissions: "+permissions+"}", 1)), node.Caps{})
		require.ErrorContains(t, err, "has the permissions", permissions)
	}
	for _, permissions := range []string{"rw", "wr", "rwm", `""`} {
		_, err := NewOffer(root, []byte(strings.Replace(hostileSpecs[2], "/dev/nvidia1}", "/dev/nvidia1, permissions: "+permissions+"}", 1)), node.Caps{})
		require.NoError(t, err, permissions)
	}
}

func TestErrorsOfHostileContainersAreShort(t *testing.T) {
	_, table := hostileTable(t)
	for _, unit := range []string{"x", "9,", "nvidia.com/gpu=9,", "GPU-b,", "vendor.example/agent=root,"} {
		var list strings.Builder
		for i := 0; list.Len() < 5<<10; i++ {
			list.WriteString(strings.Repeat("y", i%7) + unit)
		}
		for _, byPod := range []bool{false, true} {
			pod, container := workload("NVIDIA_VISIBLE_DEVICES=" + list.String())
			if byPod {
				container.Env, pod.Annotations = nil, map[string]string{"cdi.k8s.io/a": list.String()}
			}
			adjust, asked, err := Workloads{Namespaces: []string{"team"}}.Resolve(table, pod, container)
			require.Nil(t, adjust)
			short(t, err, asked.Warnings)
		}
	}
}

func short(t require.TestingT, err error, warnings []string) {
	if err != nil {
		warnings = append(slices.Clone(warnings), err.Error())
	}
	require.LessOrEqual(t, len(warnings), 8)
	for _, text := range warnings {
		require.LessOrEqual(t, len(text), 1000)
		require.NotContains(t, text, "\n")
	}
}

// For any image and pod, a container only gets the nodes of the GPUs that it named, and
// one that has GPUs gets no others.
func TestContainersGetTheGPUsThatTheyNamedAndNoOthers(t *testing.T) {
	_, table := hostileTable(t)
	names := []string{
		"0", "1", "0:0", "0:1", "GPU-a", "MIG-b", "nvidia.com/gpu=0", "nvidia.com/gpu=0:1", "k8s.gpuready.io/gpu=GPU-a", "all", "ALL", "none", "void", "every",
		"nvidia.com/gpu=all", "nvidia.com/gpu=every", "k8s.gpuready.io/gpu=all", "management.gpuready.io/gpu=all", "vendor.example/agent=root",
		"nvidia.com/nvswitch=all", "=", ",", " ", "nvidia.com/gpu",
	}
	rapid.Check(t, func(r *rapid.T) {
		list := strings.Join(rapid.SliceOfN(rapid.OneOf(rapid.SampledFrom(names), rapid.StringN(0, 4, 16)), 0, 5).Draw(r, "list"), rapid.SampledFrom([]string{",", "", " ,"}).Draw(r, "between"))
		pod, container := workload("NVIDIA_VISIBLE_DEVICES="+list, "NVIDIA_NVSWITCH=enabled", "NVIDIA_IMEX_CHANNELS="+list)
		may := map[string]bool{"ctl": true}
		for word := range strings.SplitSeq(list, ",") {
			word = strings.TrimSpace(word)
			for _, kind := range []string{"nvidia.com/gpu=", "k8s.gpuready.io/gpu="} {
				word = strings.TrimPrefix(word, kind)
			}
			for node := range strings.FieldsSeq(nodesOf[word]) {
				may[node] = true
			}
		}
		w := Workloads{Namespaces: []string{"team"}}
		adjust, asked, err := w.Resolve(table, pod, container)
		short(r, err, asked.Warnings)
		for node := range strings.FieldsSeq(devices(adjust)) {
			require.True(r, may[node], "%q gives %s", list, node)
		}

		// The kubelet has given it a MIG device.
		_, first := workload("NVIDIA_VISIBLE_DEVICES=0:0")
		held, _, err := w.Resolve(table, pod, first)
		require.NoError(r, err)
		applyTo(container, held)
		pod.Annotations = map[string]string{"cdi.k8s.io/a": rapid.SampledFrom(names).Draw(r, "annotation")}
		w.AcceptEnvvar = rapid.Bool().Draw(r, "accept")
		adjust, asked, err = w.Resolve(table, pod, container)
		short(r, err, asked.Warnings)
		require.Empty(r, devices(adjust), "%q gives more than the kubelet", list)
	})
}
