package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/test/cluster"
)

// TestRoad is two nodes with 8 simulated GPUs each, from the first manifest to
// the last file that is removed.
func TestRoad(t *testing.T) {
	t.Parallel()
	s := Up(t, cluster.Config{Nodes: 2})
	bare := s.Files(t, "n1")
	s.play(t,
		scenario{"a node without a GPU stays quiet", aNodeWithoutAGPUStaysQuiet},
		scenario{"two manifests make 16 GPUs", twoManifestsMakeGPUs},
		scenario{"what proves a node can be read", whatProvesANodeCanBeRead},
		scenario{"the host's own driver is told", theHostsOwnDriverIsTold},
		scenario{"a pod gets exactly the GPUs it asks for", aPodGetsExactlyTheGPUsItAsksFor},
		scenario{"the examples run", theExamplesRun},
		scenario{"too many GPUs stay pending", tooManyGPUsStayPending},
		scenario{"who asks for none sees none", whoAsksForNoneSeesNone},
		scenario{"a broken GPU is taken out and said to be", aBrokenGPUIsTakenOutAndSaidToBe},
		scenario{"the validation Job passes on a good node", theValidationJobPassesOnAGoodNode},
		scenario{"the validation Job fails with a reason on a bad one", theValidationJobFailsWithAReasonOnABadOne},
		scenario{"what the host had stays", whatTheHostHadStays},
		scenario{"where NFD runs only GPU nodes have agents", whereNFDRunsOnlyGPUNodesHaveAgents},
		scenario{"a token is good for its own node only", aTokenIsGoodForItsOwnNodeOnly},
		scenario{"an agent without injection says so", anAgentWithoutInjectionSaysSo},
		scenario{"uninstalling leaves what the docs name", func(t *testing.T, s *Suite) { uninstallLeavesWhatTheDocsName(t, s, bare) }},
	)
}

func twoManifestsMakeGPUs(t *testing.T, s *Suite) {
	s.Apply(t, "simulated-driver.yaml")
	s.World.Ready(t, Namespace, daemonsets...)
	s.World.Offers(t, 8, "n1", "n2")
	for _, node := range []string{"n1", "n2"} {
		s.World.Until(t, "the condition of "+node+" says that its GPUs are ready", func() error {
			if c := s.World.Condition(node, "GPUReady"); c == nil || c.Status != corev1.ConditionTrue {
				return fmt.Errorf("%+v", c)
			}
			return nil
		})
	}
}
