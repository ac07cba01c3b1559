package operator

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// Versions of the simulated driver's image.
var (
	oldDriver = e2e.Version()
	newDriver = e2e.NextVersion()
)

// TestUpgrade changes drivers node by node, whatever else happens meanwhile.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	s := up(t, cluster.Config{Nodes: 3, Images: e2e.NextImages(t)})
	s.play(t,
		scenario{"Install", plain((*suite).installForUpgrades)},
		scenario{"Walkthrough", plain((*suite).walkthrough)},
		scenario{"NodeAfterNode", plain((*suite).nodeAfterNode)},
		scenario{"EditedInTheMiddle", plain((*suite).editedInTheMiddle)},
		scenario{"AFailureStopsIt", plain((*suite).failureStops)},
		scenario{"Killed", plain((*suite).killed)},
		scenario{"StandsBy", plain((*suite).standsBy)},
	)
}

// installForUpgrades installs with the static manifest; nodes with GPUs are labelled by hand.
func (s *suite) installForUpgrades(t *testing.T) {
	for _, n := range s.Nodes {
		s.Kubectl(t, "label", "node", n.Name, "nvidia.com/gpu.present=true")
	}
	s.Kubectl(t, "apply", "--server-side", "-f", "../../deployments/static/operator.yaml")
	s.simulate(t, oldDriver)
	s.proven(t)
}

// walkthrough does what docs/walkthroughs.md says, and goes back to the old driver.
func (s *suite) walkthrough(t *testing.T) {
	s.Walkthrough(t, "Upgrade of a pool")
	s.simulate(t, oldDriver)
	s.waitUpgraded(t, oldDriver)
}

// simulate applies a policy with a version of the simulated driver.
func (s *suite) simulate(t *testing.T, version string) {
	t.Helper()
	s.simulateMany(t, version, 1)
}

// simulateMany is like simulate, but up to most nodes may be unavailable at once.
func (s *suite) simulateMany(t *testing.T, version string, most int) {
	t.Helper()
	s.ApplyText(t, fmt.Sprintf(`
apiVersion: nvidia.com/v1
kind: ClusterPolicy
metadata: { name: %s }
spec:
  driver:
    simulated: { enabled: true, profile: h100-sxm, version: %s }
    upgradePolicy: { autoUpgrade: true, maxParallelUpgrades: %d, maxUnavailable: %d, drain: { enable: false } }
`, policy, version, most, most))
}

// waitUpgraded waits until all nodes have a driver pod of that version and are proven, and
// exactly the given nodes are cordoned.
func (s *suite) waitUpgraded(t *testing.T, version string, cordoned ...string) {
	t.Helper()
	s.until(t, fmt.Sprintf("all nodes run %s and %v are cordoned", version, cordoned), func() error {
		n := 0
		for _, p := range s.World.Pods(namespace, "app=nvidia-driver-daemonset") {
			if p.DeletionTimestamp != nil || !strings.HasSuffix(p.Spec.Containers[0].Image, ":"+version) {
				return fmt.Errorf("%s on %s is of %s", p.Name, p.Spec.NodeName, p.Spec.Containers[0].Image)
			}
			n++
		}
		for _, node := range s.World.Nodes() {
			if node.Spec.Unschedulable != slices.Contains(cordoned, node.Name) {
				return fmt.Errorf("%s: cordoned %v, %v", node.Name, node.Spec.Unschedulable, node.Labels["nvidia.com/gpu-driver-upgrade-state"])
			}
		}
		if n != len(s.Nodes) {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
	s.proven(t)
}

// atMost fails if more than most nodes were cordoned at once since a time.
func (s *suite) atMost(t *testing.T, most int, since time.Time) {
	t.Helper()
	cordoned := map[string]bool{}
	worst := 0
	for _, c := range s.World.Since(since) {
		if c.Node != nil {
			cordoned[c.Node.Name] = c.Node.Spec.Unschedulable
		}
		n := 0
		for _, is := range cordoned {
			if is {
				n++
			}
		}
		worst = max(worst, n)
	}
	assert.LessOrEqual(t, worst, most, "nodes cordoned at once")
	assert.Positive(t, worst, "a roll that cordons nobody")
}

// nodeAfterNode upgrades while a job holds a GPU of the second node. The job is evicted when
// its budget allows it.
func (s *suite) nodeAfterNode(t *testing.T) {
	job := s.train(t, "n2")
	began := time.Now()
	s.simulate(t, newDriver)
	s.heldUp(t, job, oldDriver, newDriver)
	s.allowEviction(t)
	s.waitUpgraded(t, newDriver)
	s.atMost(t, 1, began)
	s.evicted(t, job)
	t.Log(s.Kubectl(t, "get", "events", "-A", "--field-selector=involvedObject.kind=Node"))
	out, err := s.run(t, "kubectl-gpu", "status")
	require.NoError(t, err, out)
	t.Log(out)
}

// editedInTheMiddle reverts the change when the first node is done.
func (s *suite) editedInTheMiddle(t *testing.T) {
	s.simulate(t, oldDriver)
	s.until(t, "a node runs "+oldDriver, func() error {
		for _, p := range s.World.Pods(namespace, "app=nvidia-driver-daemonset") {
			if strings.HasSuffix(p.Spec.Containers[0].Image, ":"+oldDriver) {
				return nil
			}
		}
		return fmt.Errorf("none does")
	})
	s.simulate(t, newDriver)
	s.waitUpgraded(t, newDriver)
}

// failureStops applies a version that cannot be pulled; only one node may be affected.
func (s *suite) failureStops(t *testing.T) {
	s.Kubectl(t, "cordon", "n3")
	s.simulate(t, "v9.9.9")
	s.until(t, "the policy says that the upgrade failed, and where", func() error {
		p, err := s.policy(t, policy)
		if err != nil {
			return err
		}
		for _, c := range p.Status.Conditions {
			if c.Type == "Degraded" && c.Status == "True" && strings.Contains(c.Message, "v9.9.9") {
				return nil
			}
		}
		return fmt.Errorf("%+v", p.Status.Conditions)
	})
	s.showsFailure(t, "gpuready_operator_upgrade_nodes", `state="upgrade-failed"`)
	s.showsFailure(t, "gpuready_operator_nodes_since_timestamp_seconds", `status="failed"`)
	old := 0
	for _, p := range s.World.Pods(namespace, "app=nvidia-driver-daemonset") {
		if strings.HasSuffix(p.Spec.Containers[0].Image, ":"+newDriver) {
			old++
		}
	}
	assert.Equal(t, 2, old, "nodes that go on with what they have")
	s.simulate(t, newDriver)
	s.until(t, "all run "+newDriver+" again, and n3 is still cordoned, it alone", func() error {
		for _, node := range s.World.Nodes() {
			if node.Spec.Unschedulable != (node.Name == "n3") {
				return fmt.Errorf("%s: cordoned %v, %s", node.Name, node.Spec.Unschedulable, node.Labels["nvidia.com/gpu-driver-upgrade-state"])
			}
		}
		for _, p := range s.World.Pods(namespace, "app=nvidia-driver-daemonset") {
			if p.DeletionTimestamp != nil || !strings.HasSuffix(p.Spec.Containers[0].Image, ":"+newDriver) {
				return fmt.Errorf("%s has %s", p.Name, p.Spec.Containers[0].Image)
			}
		}
		return nil
	})
	s.proven(t)
	s.Kubectl(t, "uncordon", "n3")
}

// TestSingleNode runs everything on a single node, which has the control plane and the GPUs.
func TestSingleNode(t *testing.T) {
	t.Parallel()
	s := up(t, cluster.Config{Images: e2e.NextImages(t)})
	before, marks := s.objects(t), s.marks(t)
	files := s.Files(t, "n1")
	s.Kubectl(t, "label", "node", "n1", "nvidia.com/gpu.present=true")
	s.Kubectl(t, "taint", "node", "n1", "nvidia.com/gpu-not-ready:NoSchedule")
	s.Kubectl(t, "apply", "--server-side", "-f", "../../deployments/static/operator.yaml")
	s.simulate(t, oldDriver)
	s.proven(t)
	s.until(t, "the startup taint is gone", func() error {
		for _, taint := range s.World.Node("n1").Spec.Taints {
			if strings.HasPrefix(taint.Key, "nvidia.com/") {
				return fmt.Errorf("%v", taint)
			}
		}
		return nil
	})
	t.Run("Job", func(t *testing.T) {
		out, phase := s.Result(t, e2e.Job{Name: "job", GPUs: 1, Command: []string{"vectoradd"}})
		assert.Equal(t, corev1.PodSucceeded, phase, out)
	})
	s.Kubectl(t, "delete", "clusterpolicy", policy)
	s.until(t, "the operands and labels are gone", func() error {
		if pods := s.World.Pods(namespace, "app.kubernetes.io/managed-by=gpu-operator"); len(pods) > 0 {
			return fmt.Errorf("%s is there", pods[0].Name)
		}
		for key := range s.World.Node("n1").Labels {
			if strings.HasPrefix(key, "nvidia.com/gpu.deploy.") {
				return fmt.Errorf("label %s is there", key)
			}
		}
		return nil
	})
	s.Kubectl(t, "delete", "-f", "../../deployments/static/operator.yaml", "--timeout=120s")
	s.cleansConditions(t, "n1")
	s.Kubectl(t, "label", "node", "n1", "nvidia.com/gpu.present-")
	s.leavesNothing(t, before, marks)
	s.cleansNodes(t, files)
	s.release(t, before, marks)
}

// cleansConditions runs `gpu-operator cleanup` by hand, as for an operator that was removed
// without the chart and its Job. It checks that the node's conditions are removed.
func (s *suite) cleansConditions(t *testing.T, node string) {
	t.Helper()
	out, err := s.run(t, "gpu-operator", "cleanup", "--kubeconfig", s.Kubeconfig, "--namespace", namespace)
	require.NoError(t, err, out)
	require.Contains(t, out, "remove the conditions GPUReady and GPUHealthy of node "+node)
	n, err := s.World.Client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	require.NoError(t, err)
	for _, c := range n.Status.Conditions {
		require.NotContains(t, c.Type, "GPU")
	}
}
