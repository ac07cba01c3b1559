package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/test/lab/cluster"
)

// TestRoad goes from the first manifest to the last removed file, on two nodes with 8 simulated
// GPUs each.
func TestRoad(t *testing.T) {
	t.Parallel()
	s := Up(t, cluster.Config{Nodes: 2})
	bare, unmarked := s.Files(t, "n1"), s.marks(t, "n1")
	s.play(t,
		scenario{"a node without a GPU stays quiet", aNodeWithoutAGPUStaysQuiet},
		scenario{"two manifests provide 16 GPUs", twoManifestsProvideGPUs},
		scenario{"the pods that prove a node stay readable", proofPodsStayReadable},
		scenario{"the host's own driver is reported", theHostsOwnDriverIsReported},
		scenario{"a pod gets exactly the GPUs it requests", aPodGetsExactlyTheGPUsItRequests},
		scenario{"the examples run", theExamplesRun},
		scenario{"too many GPUs stay pending", tooManyGPUsStayPending},
		scenario{"a pod without GPUs sees none", aPodWithoutGPUsSeesNone},
		scenario{"a broken GPU is taken out and reported", aBrokenGPUIsTakenOutAndReported},
		scenario{"the validation Job passes on a good node", theValidationJobPassesOnAGoodNode},
		scenario{"the validation Job fails with a reason on a bad one", theValidationJobFailsWithAReasonOnABadOne},
		scenario{"the host's files stay", hostFilesStay},
		scenario{"where NFD runs only GPU nodes have agents", whereNFDRunsOnlyGPUNodesHaveAgents},
		scenario{"a token is good for its own node only", aTokenIsGoodForItsOwnNodeOnly},
		scenario{"an agent without injection reports it", anAgentWithoutInjectionReportsIt},
		scenario{"uninstalling leaves what the docs name", func(t *testing.T, s *Suite) { uninstallLeavesWhatTheDocsName(t, s, bare, unmarked) }},
	)
}

func twoManifestsProvideGPUs(t *testing.T, s *Suite) {
	s.Apply(t, "simulated-driver.yaml")
	s.World.WaitDaemonSets(t, Namespace, daemonsets...)
	s.World.WaitAllocatable(t, 8, "n1", "n2")
	for _, node := range []string{"n1", "n2"} {
		s.World.Until(t, "the condition of "+node+" says that its GPUs are ready", func() error {
			if c := s.World.Condition(node, "GPUReady"); c == nil || c.Status != corev1.ConditionTrue {
				return fmt.Errorf("%+v", c)
			}
			return nil
		})
	}
}
