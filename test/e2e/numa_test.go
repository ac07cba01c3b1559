package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// TestDevicePluginNUMA uses a node with two NUMA nodes and a kubelet that aligns strictly. A
// request that fits into one NUMA node is served from it, and any other is refused. The agents
// are those for a runtime without NRI.
func TestDevicePluginNUMA(t *testing.T) {
	t.Parallel()
	s := Up(t, cluster.Config{Nodes: 1, NUMA: true})
	s.Apply(t, "gpuready-privileged.yaml", "simulated-driver.yaml")
	s.World.WaitAllocatable(t, 8, "n1")
	s.play(t,
		scenario{"a fitting request comes from one NUMA node", aFittingRequestIsAligned},
		scenario{"an unaligned request is refused", anUnalignedRequestIsRefused},
	)
}

func aFittingRequestIsAligned(t *testing.T, s *Suite) {
	numa := map[string]int{}
	for _, r := range s.State(t, "n1", nodestate.DevicePlugin).DevicePlugin.Resources {
		for _, d := range r.Devices {
			require.NotNil(t, d.NUMANode, d.ID)
			numa[string(d.GPU)] = *d.NUMANode
		}
	}
	list, phase := s.Result(t, Job{Name: "four", GPUs: 4, Command: []string{"nvidia-smi", "-L"}})
	require.Equal(t, corev1.PodSucceeded, phase, list)
	on := map[int]int{}
	for _, id := range uuids(list) {
		on[numa[id]]++
	}
	require.Len(t, on, 1, "GPUs by NUMA node")
	for _, n := range on {
		require.Equal(t, 4, n)
	}
}

func anUnalignedRequestIsRefused(t *testing.T, s *Suite) {
	s.Run(t, Job{Name: "five", GPUs: 5})
	s.World.Until(t, "the kubelet refuses what spans NUMA nodes", func() error {
		if p := s.World.Pod("default", "five"); p.Status.Reason != "TopologyAffinityError" {
			return fmt.Errorf("it is %s: %s: %s", p.Status.Phase, p.Status.Reason, p.Status.Message)
		}
		return nil
	})
}
