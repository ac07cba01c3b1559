package security

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/binaries"
)

// greedyImage is an image that requests another vendor's device in addition to a GPU.
const greedyImage = "docker.io/library/greedy:v1"

func greedy() binaries.Image {
	return binaries.Image{Name: greedyImage, Env: []string{"PATH=/bin", "NVIDIA_VISIBLE_DEVICES=0,vendor.example/agent=root", "NVIDIA_NVSWITCH=enabled"}}
}

// vendorSpec is the CDI specification of another vendor's agent.
const vendorSpec = `cdiVersion: 0.5.0
kind: vendor.example/agent
devices:
- name: root
  containerEdits:
    deviceNodes: [{path: /dev/stolen, hostPath: /dev/full}]
`

// workloadsGetGPUsAlone checks that in a namespace that may request GPUs, neither an image nor a pod
// gets another device, all GPUs by another spelling, or more than the kubelet has allocated.
func workloadsGetGPUsAlone(t *testing.T, n *node) {
	const (
		toolkit = "nvidia-container-toolkit-daemonset"
		specAt  = "/etc/cdi/vendor.yaml"
	)
	n.WriteFile(t, n.name, specAt, vendorSpec)
	allow := func(value string) {
		before := n.State(t, n.name, nodestate.Toolkit).Time
		n.Kubectl(t, "-n", e2e.Namespace, "set", "env", "daemonset/"+toolkit, "GPUREADY_NRI_WORKLOAD_NAMESPACES"+value)
		n.World.WaitDaemonSets(t, e2e.Namespace, toolkit)
		n.World.Until(t, "the toolkit injects", func() error {
			if s := n.State(t, n.name, nodestate.Toolkit); !s.Time.After(before) || s.Toolkit == nil || s.Toolkit.Injection == nil || !s.Toolkit.Injection.Working {
				return errors.New("it does not")
			}
			return nil
		})
	}
	allow("=default")
	defer func() {
		n.RemoveFile(t, n.name, specAt)
		allow("-")
		n.World.WaitAllocatable(t, 8, n.name)
	}()

	const list = "for d in /dev/*; do echo $d; done"
	asking := func(name, visible string) *corev1.Pod {
		pod := n.shellPod(name, list)
		pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "NVIDIA_VISIBLE_DEVICES", Value: visible}}
		return pod
	}
	annotated := func(name, value string) *corev1.Pod {
		pod := n.shellPod(name, list)
		pod.Annotations = map[string]string{"cdi.k8s.io/x": value}
		return pod
	}

	out, phase := n.output(t, asking("cdi-index", "1"))
	require.Equal(t, corev1.PodSucceeded, phase, out)
	require.Equal(t, []string{"/dev/nvidia1"}, gpuNodes(out), "what may be asked for is given")

	image := n.shellPod("cdi-image", list)
	image.Spec.Containers[0].Image = greedyImage
	var long strings.Builder
	for i := 0; long.Len() < 5<<10; i++ {
		fmt.Fprintf(&long, "nvidia.com/gpu=%d,", 100+i)
	}
	for _, refused := range []*corev1.Pod{
		image, asking("cdi-vendor", "vendor.example/agent=root"), asking("cdi-management", "management.gpuready.io/gpu=all"),
		asking("cdi-among-others", "0,all"), annotated("cdi-long", long.String()),
	} {
		n.create(t, refused)
		status := n.starts(t, refused).Status.ContainerStatuses[0]
		require.NotNil(t, status.State.Waiting, refused.Name)
		require.Contains(t, status.State.Waiting.Message, "gpu-toolkit: container main of pod default/"+refused.Name)
		require.LessOrEqual(t, len(status.State.Waiting.Message), 2000, refused.Name)
	}

	for _, started := range []*corev1.Pod{
		asking("cdi-all", "nvidia.com/gpu=all"), asking("cdi-all-letters", "ALL"), asking("cdi-all-ours", "k8s.gpuready.io/gpu=all"),
		annotated("cdi-annotation", "management.gpuready.io/gpu=all,vendor.example/agent=root"),
	} {
		out, phase := n.output(t, started)
		require.Equal(t, corev1.PodSucceeded, phase, out)
		require.Empty(t, gpuNodes(out), started.Name)
		require.NotContains(t, out, "stolen", started.Name)
	}

	out, phase = n.output(t, withGPUs(annotated("cdi-more", "nvidia.com/gpu=all"), 1))
	require.Equal(t, corev1.PodSucceeded, phase, out)
	require.Len(t, gpuNodes(out), 1, "the kubelet has decided")
}

// gpuNodes returns the device nodes of GPUs, and the management nodes, in a list.
func gpuNodes(list string) (nodes []string) {
	for line := range strings.FieldsSeq(list) {
		if strings.HasPrefix(line, "/dev/nvidia") && line != "/dev/nvidiactl" && !strings.HasPrefix(line, "/dev/nvidia-uvm") && line != "/dev/nvidia-modeset" {
			nodes = append(nodes, line)
		}
	}
	return nodes
}
