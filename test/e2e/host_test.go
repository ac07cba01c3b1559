package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
)

const foreign = `cdiVersion: "0.6.0"
kind: nvidia.com/gpu
devices:
- name: all
  containerEdits:
    env: ["SOMEBODY=else"]
`

// hostFilesStay checks that a node with its own CDI spec for nvidia.com/gpu keeps it, byte for
// byte, and that pods still get GPUs.
func hostFilesStay(t *testing.T, s *Suite) {
	const node, path = "n1", "/etc/cdi/nvidia.yaml"
	writes := func(kinds ...string) func() error {
		return func() error {
			var have []string
			for _, spec := range s.State(t, node, nodestate.Toolkit).Toolkit.Specs {
				have = append(have, spec.Kind)
			}
			if slices.Sort(have); !slices.Equal(have, kinds) {
				return fmt.Errorf("it writes %v", have)
			}
			return nil
		}
	}
	const agents, pods, people, switches = "management.gpuready.io/gpu", "k8s.gpuready.io/gpu", "nvidia.com/gpu", "nvidia.com/nvswitch"
	s.World.Until(t, "the toolkit writes nvidia.com/gpu where nobody else does", writes(pods, agents, people, switches))
	s.WriteFile(t, node, path, foreign)
	s.World.Until(t, "the toolkit leaves nvidia.com/gpu to the other", writes(pods, agents, switches))
	s.RequireFree(t, node, 2)
	require.Equal(t, foreign, s.ReadFile(t, node, path))
	s.RemoveFile(t, node, path)
	s.World.Until(t, "the toolkit writes nvidia.com/gpu again", writes(pods, agents, people, switches))
}

// uninstallLeavesWhatTheDocsName follows the docs and checks that nothing else is left.
func uninstallLeavesWhatTheDocsName(t *testing.T, s *Suite, bare, unmarked []string) {
	const node, namespace = "n1", "gpuready-uninstall"
	s.Kubectl(t, "-n", Namespace, "delete", "daemonset/nvidia-operator-validator", "--cascade=foreground", "--timeout=120s")
	s.Delete(t, "gpuready.yaml", "simulated-driver.yaml", "validation-job.yaml")
	n, err := s.World.Client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	require.NoError(t, err)
	for _, c := range n.Status.Conditions {
		if c.Type == "GPUReady" || c.Type == "GPUHealthy" {
			require.Equal(t, "Unknown ValidatorStopped", string(c.Status)+" "+c.Reason, "%s", c.Type)
		}
	}
	s.Apply(t, "uninstall.yaml")
	s.Kubectl(t, "-n", namespace, "rollout", "status", "daemonset/gpuready-uninstall", "--timeout=120s")
	s.Delete(t, "uninstall.yaml")
	var left []string
	for _, path := range s.Files(t, node) {
		if !slices.Contains(bare, path) && !stays(path) {
			left = append(left, path)
		}
	}
	require.Empty(t, left)
	require.Empty(t, s.World.Pods(Namespace, ""))

	listed := s.cleanUpNodes(t)
	require.Contains(t, listed, "GPUReady")
	require.Contains(t, s.cleanUpNodes(t), "GPUReady", "a list removes nothing")
	s.cleanUpNodes(t, "--yes")
	s.World.Until(t, "nothing of gpuready is on the Node", func() error {
		marks := slices.DeleteFunc(s.marks(t, node), func(m string) bool { return slices.Contains(unmarked, m) })
		if len(marks) > 0 {
			return fmt.Errorf("%s", strings.Join(marks, "\n"))
		}
		return nil
	})
}

// cleanUpNodes runs kubectl gpu cleanup, and returns what it prints.
func (s *Suite) cleanUpNodes(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(os.Getenv("GPUREADY_E2E"), "kubectl-gpu"), append([]string{"cleanup"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig)
	out, err := cmd.CombinedOutput()
	require.NoErrorf(t, err, "%s", out)
	return withoutLog(string(out))
}

// marks returns the sorted labels, annotations, taints and conditions of a Node.
func (s *Suite) marks(t *testing.T, node string) (all []string) {
	t.Helper()
	n, err := s.World.Client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	require.NoError(t, err)
	for k, v := range n.Labels {
		all = append(all, "label "+k+"="+v)
	}
	for k := range n.Annotations {
		all = append(all, "annotation "+k)
	}
	for _, taint := range n.Spec.Taints {
		all = append(all, "taint "+taint.ToString())
	}
	for _, c := range n.Status.Conditions {
		all = append(all, "condition "+string(c.Type))
	}
	slices.Sort(all)
	return all
}

// stays reports whether docs/install.md names a path as one that remains, or the kubelet
// created it for itself.
func stays(path string) bool {
	switch path {
	case "/etc/cdi", "/run/cdi", "/usr/local/nvidia", "/usr/local/nvidia/gpuready", "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint":
		return true
	}
	return path == "/run/nvidia" || strings.HasPrefix(path, "/run/nvidia/")
}

// aNodeWithoutAGPUStaysQuiet checks that everything is ready, nothing is restarted and no GPU
// is offered.
func aNodeWithoutAGPUStaysQuiet(t *testing.T, s *Suite) {
	s.Apply(t, "gpuready.yaml")
	s.World.WaitDaemonSets(t, Namespace, daemonsets[1:]...)
	s.World.WaitAllocatable(t, 0, "n1", "n2")
	for _, node := range []string{"n1", "n2"} {
		s.World.Until(t, "the condition says that there is no GPU", func() error {
			if c := s.World.Condition(node, "GPUReady"); c == nil || c.Reason != "NoGPU" {
				return fmt.Errorf("%+v", c)
			}
			return nil
		})
	}
	for _, p := range s.World.Pods(Namespace, "") {
		for _, c := range p.Status.ContainerStatuses {
			require.Zerof(t, c.RestartCount, "%s of %s was restarted: %+v", c.Name, p.Name, c.LastTerminationState.Terminated)
		}
		require.Equal(t, corev1.PodRunning, p.Status.Phase, p.Name)
	}
}

// whereNFDRunsOnlyGPUNodesHaveAgents checks the effect of NFD's labels, which the manifests use
// but do not require.
func whereNFDRunsOnlyGPUNodesHaveAgents(t *testing.T, s *Suite) {
	const node = "n2"
	pods := func(want int) func() error {
		return func() error {
			for _, ds := range daemonsets[1:] { // the simulated driver avoids nodes on which NFD finds real GPUs
				n := 0
				for _, p := range s.World.Pods(Namespace, "app="+ds) {
					if p.Spec.NodeName == node && (want == 0 || p.Status.Phase == corev1.PodRunning) {
						n++
					}
				}
				if n != want {
					return fmt.Errorf("it has %d of %s", n, ds)
				}
			}
			return nil
		}
	}
	const here, gpu = "feature.node.kubernetes.io/kernel-version.full", "feature.node.kubernetes.io/pci-10de.present"
	s.Kubectl(t, "label", "node", node, here+"=6.1.0")
	s.World.Until(t, "NFD's node without a GPU has no agent", pods(0))
	s.Kubectl(t, "label", "node", node, gpu+"=true")
	s.World.Until(t, "NFD's node with a GPU has one of each", pods(1))
	s.Kubectl(t, "label", "node", node, here+"-", gpu+"-")
	s.World.WaitDaemonSets(t, Namespace, daemonsets...)
	s.World.WaitAllocatable(t, 8, node)
}
