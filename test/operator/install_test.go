package operator

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// chart returns the path of the chart that make chart builds.
func chart() string {
	return program("charts/gpuready-" + strings.TrimPrefix(e2e.Version(), "v") + ".tgz")
}

// chartFolder is the chart as a clone of the repository has it.
const chartFolder = "../../deployments/helm/gpuready"

// simulated are the chart's values for a cluster without GPUs.
var simulated = []string{"--set", "driver.simulated.enabled=true", "--set", "driver.simulated.profile=h100-sxm"}

// TestInstall installs the GPU stack with one resource while nodes join, break and leave.
func TestInstall(t *testing.T) {
	t.Parallel()
	s := up(t, cluster.Config{Nodes: 2})
	s.preparePCI(t)
	s.installNFD(t)
	before, marks := s.objects(t), s.marks(t)
	s.play(t,
		scenario{"Helm", plain((*suite).helmInstalls)},
		scenario{"TheNodeWithAGPU", plain((*suite).nodeWithAGPU)},
		scenario{"PeopleReadIt", plain((*suite).peopleReadIt)},
		scenario{"AnOperandDeletedByHand", plain((*suite).operandDeleted)},
		scenario{"NodesGoAndCome", plain((*suite).nodesGoAndCome)},
		scenario{"AlertsNameWhatIsShown", plain((*suite).alertsNameWhatIsShown)},
		scenario{"ANodesGPUGoesAndComes", plain((*suite).gpuGoesAndComes)},
		scenario{"ALabelKeepsOperandsAway", plain((*suite).keptAway)},
		scenario{"TheAPIServerIsRestarted", plain((*suite).apiServerRestarts)},
		scenario{"TwoPolicies", plain((*suite).twoPolicies)},
		scenario{"BesideNVIDIAsOperator", plain((*suite).besideTheirs)},
		scenario{"Uninstall", func(t *testing.T, s *suite) { s.helmUninstalls(t, before, marks) }},
	)
}

// helmInstalls installs the chart's folder with Helm while no node has a GPU, and checks that this is reported.
func (s *suite) helmInstalls(t *testing.T) {
	args := append([]string{"install", "gpuready", chartFolder, "--set", "nfd.enabled=false",
		"--namespace", namespace, "--create-namespace", "--wait", "--timeout", "3m"}, simulated...)
	s.helm(t, args...)
	s.until(t, "the policy is in force, and says that there is no GPU node", func() error {
		return s.condition(t, policy, "Ready", "True", "NoGPUNodes")
	})
}

// nodeWithAGPU makes NFD find a GPU on both nodes.
func (s *suite) nodeWithAGPU(t *testing.T) {
	for _, n := range s.Nodes {
		s.plugGPU(t, n.Name)
	}
	s.until(t, "NFD has labelled both nodes", func() error {
		for _, n := range s.Nodes {
			if s.World.Node(n.Name).Labels["feature.node.kubernetes.io/pci-10de.present"] != "true" {
				return fmt.Errorf("%s has no label: %v", n.Name, s.World.Node(n.Name).Labels)
			}
		}
		return nil
	})
	took := s.proven(t)
	t.Logf("%.1f s from the label to proven, both nodes", took.Seconds())
}

// proven waits until every node is proven and the policy reports it.
func (s *suite) proven(t *testing.T) time.Duration {
	t.Helper()
	return s.until(t, "the policy is Ready, and so is each node", func() error {
		for _, n := range s.Nodes {
			if c := s.World.Condition(n.Name, "GPUReady"); c == nil || c.Status != corev1.ConditionTrue {
				return fmt.Errorf("%s: %+v, labels %v", n.Name, c, gpuLabels(s.World.Node(n.Name)))
			}
		}
		p, err := s.policy(t, policy)
		if err != nil {
			return err
		}
		if p.Status.Nodes["ready"] != len(s.Nodes) {
			return fmt.Errorf("the policy says %v", p.Status.Nodes)
		}
		return s.condition(t, policy, "Ready", "True", "")
	})
}

// gpuLabels returns a Node's labels of NFD and of the operator that say whether it gets operands.
func gpuLabels(n *corev1.Node) map[string]string {
	all := maps.Clone(n.Labels)
	maps.DeleteFunc(all, func(key, _ string) bool {
		return !strings.Contains(key, "pci-10de") && key != "nvidia.com/gpu.present" && !strings.HasPrefix(key, "nvidia.com/gpu.deploy.")
	})
	return all
}

// peopleReadIt runs the commands with which people follow the progress.
func (s *suite) peopleReadIt(t *testing.T) {
	out := s.Kubectl(t, "get", "clusterpolicy")
	assert.Regexp(t, `(?m)^NAME +STATUS.*AGE`, out)
	assert.Regexp(t, `(?m)^`+policy+` +ready`, out)
	for _, n := range s.Nodes {
		for _, pod := range []string{"nvidia-driver-validation-", "nvidia-device-plugin-validation-"} {
			name := pod + n.Name
			s.until(t, name+" has completed", func() error {
				p := s.World.Pod(namespace, name)
				if p == nil || p.Status.Phase != corev1.PodSucceeded {
					return fmt.Errorf("it has not: %+v", p)
				}
				return nil
			})
			logs := s.Kubectl(t, "-n", namespace, "logs", name)
			for _, line := range []string{"[Vector addition of 50000 elements]", "Copy input data from the host memory to the CUDA device",
				"CUDA kernel launch with 196 blocks of 256 threads", "Copy output data from the CUDA device to the host memory", "Test PASSED", "Done"} {
				assert.Contains(t, logs, line, name)
			}
		}
	}
	for _, args := range [][]string{{"status"}, {"explain", s.Nodes[0].Name}, {"timers"}} {
		out, err := s.run(t, "kubectl-gpu", args...)
		t.Logf("kubectl gpu %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	out, err := s.run(t, "kubectl-gpu", "status")
	require.NoError(t, err, out)
	assert.Contains(t, out, policy)
}

// operandDeleted deletes the operator's objects, which must come back. A new device plugin
// must advertise GPUs, and a new validator must prove each node with a new pod.
func (s *suite) operandDeleted(t *testing.T) {
	s.deleted(t, "nvidia-device-plugin-daemonset")
	for _, n := range s.Nodes {
		out, phase := s.Result(t, e2e.Job{Name: "after-deletion-" + n.Name, Node: n.Name, GPUs: 1, Command: []string{"vectoradd"}})
		require.Equal(t, corev1.PodSucceeded, phase, out)
		require.Contains(t, out, "Test PASSED", n.Name)
	}
	s.deleted(t, "nvidia-operator-validator")
	for _, n := range s.Nodes {
		s.until(t, "the new validator has proven "+n.Name, func() error { return s.proof(n.Name) })
	}
	s.proven(t)
}

// deleted deletes a DaemonSet, then waits until a new one of its name runs on every node and
// the old pods are gone. Before that, the old state still looks healthy.
func (s *suite) deleted(t *testing.T, name string) {
	t.Helper()
	before := types.UID(strings.TrimSpace(s.Kubectl(t, "-n", namespace, "get", "daemonset", name, "-o", "jsonpath={.metadata.uid}")))
	s.Kubectl(t, "-n", namespace, "delete", "daemonset", name)
	s.until(t, "another "+name+" has a pod on each node", func() error {
		pods := s.World.Pods(namespace, "app="+name)
		for _, p := range pods {
			if of := metav1.GetControllerOf(p); of == nil || of.UID == before {
				return fmt.Errorf("pod %s is of before", p.Name)
			}
		}
		if len(pods) != len(s.Nodes) {
			return fmt.Errorf("%d pods are there", len(pods))
		}
		return nil
	})
	s.World.WaitDaemonSets(t, namespace, name)
}

// proof returns an error unless a pod with a GPU has passed for the validator that runs on
// the node now. That validator owns the pod, so the pod is deleted with it.
func (s *suite) proof(node string) error {
	p := s.World.Pod(namespace, "nvidia-device-plugin-validation-"+node)
	if p == nil || p.Status.Phase != corev1.PodSucceeded || p.DeletionTimestamp != nil {
		return fmt.Errorf("no pod proves %s", node)
	}
	for _, v := range s.World.Pods(namespace, "app=nvidia-operator-validator") {
		if v.Spec.NodeName == node && v.DeletionTimestamp == nil && len(p.OwnerReferences) == 1 && p.OwnerReferences[0].UID == v.UID {
			return nil
		}
	}
	return fmt.Errorf("what proves %s is of another validator than runs there: %v", node, p.OwnerReferences)
}

// nodesGoAndCome deletes a Node; its kubelet registers it again later.
func (s *suite) nodesGoAndCome(t *testing.T) {
	s.Kubectl(t, "delete", "node", "n2")
	s.until(t, "the policy counts one node", func() error { return s.counts(t, "total", 1) })
	s.KillKubelet(t, "n2")
	s.until(t, "the policy counts two nodes", func() error { return s.counts(t, "total", 2) })
	s.proven(t)
}

// counts returns an error unless the policy reports n nodes in that state.
func (s *suite) counts(t *testing.T, which string, n int) error {
	t.Helper()
	p, err := s.policy(t, policy)
	if err == nil && p.Status.Nodes[which] != n {
		err = fmt.Errorf("the policy says %v", p.Status.Nodes)
	}
	return err
}

// gpuGoesAndComes unplugs a node's GPU, so that NFD removes its label, and plugs it in again.
func (s *suite) gpuGoesAndComes(t *testing.T) {
	s.unplugGPU(t, "n2")
	s.until(t, "n2 has no operands and no label of the operator's", func() error { return s.bare(t, "n2") })
	s.plugGPU(t, "n2")
	s.proven(t)
}

// bare returns an error while a node has operands, or labels that select it for some.
func (s *suite) bare(t *testing.T, node string) error {
	t.Helper()
	for key := range s.World.Node(node).Labels {
		if strings.HasPrefix(key, "nvidia.com/gpu.deploy.") || key == "nvidia.com/gpu.present" {
			return fmt.Errorf("%s has label %s", node, key)
		}
	}
	for _, p := range s.World.Pods(namespace, "app.kubernetes.io/part-of=gpuready") {
		if p.Spec.NodeName == node && p.OwnerReferences != nil && p.OwnerReferences[0].Kind == "DaemonSet" {
			return fmt.Errorf("pod %s runs on %s", p.Name, node)
		}
	}
	return nil
}

// keptAway has a person exclude a node from all operands.
func (s *suite) keptAway(t *testing.T) {
	s.Kubectl(t, "label", "node", "n2", "nvidia.com/gpu.deploy.operands=false")
	s.until(t, "n2 has no operands", func() error {
		for _, p := range s.World.Pods(namespace, "app.kubernetes.io/part-of=gpuready") {
			if p.Spec.NodeName == "n2" && p.OwnerReferences != nil && p.OwnerReferences[0].Kind == "DaemonSet" {
				return fmt.Errorf("pod %s runs", p.Name)
			}
		}
		return s.counts(t, "excluded", 1)
	})
	s.Kubectl(t, "label", "node", "n2", "nvidia.com/gpu.deploy.operands-")
	s.proven(t)
}

// apiServerRestarts kills the API server, then checks that the operator still acts.
func (s *suite) apiServerRestarts(t *testing.T) {
	require.NoError(t, s.RestartAPIServer(t.Context()))
	s.restartNFD(t)
	s.unplugGPU(t, "n2")
	s.until(t, "n2 has no operands", func() error { return s.bare(t, "n2") })
	s.plugGPU(t, "n2")
	s.proven(t)
}

// twoPolicies applies a second one.
func (s *suite) twoPolicies(t *testing.T) {
	s.ApplyText(t, "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: { name: another }\nspec: {}\n")
	s.until(t, "the second says that it is ignored, and by which", func() error {
		return s.condition(t, "another", "Ready", "False", "Ignored", policy)
	})
	require.NoError(t, s.condition(t, policy, "Ready", "True", ""))
	s.Kubectl(t, "delete", "clusterpolicy", "another")
}

// helmUninstalls checks that uninstalling leaves nothing behind.
func (s *suite) helmUninstalls(t *testing.T, before, marks map[string]bool) {
	s.helm(t, "uninstall", "gpuready", "--namespace", namespace, "--wait", "--timeout", "3m")
	for _, n := range s.Nodes {
		s.unplugGPU(t, n.Name) // NFD owns its label
	}
	s.leavesNothing(t, before, marks)
}

// leavesNothing waits until the cluster is as it was before. Two things remain until it
// deletes them: the namespace, which Helm keeps, and the CRDs, which hold users' objects.
func (s *suite) leavesNothing(t *testing.T, before, marks map[string]bool) {
	t.Helper()
	s.TryKubectl(t, "delete", "namespace", namespace, "--ignore-not-found", "--timeout=120s")                                         //nolint:errcheck // what is left shows below
	s.TryKubectl(t, "delete", "crd", "clusterpolicies.nvidia.com", "nvidiadrivers.nvidia.com", "--ignore-not-found", "--timeout=60s") //nolint:errcheck // the same
	s.until(t, "nothing is left of objects, labels, annotations, taints and conditions", func() error {
		if left := beyond(s.objects(t), before); len(left) > 0 {
			return fmt.Errorf("objects:\n%s", strings.Join(left, "\n"))
		}
		if left := beyond(s.marks(t), marks); len(left) > 0 {
			return fmt.Errorf("marks of nodes:\n%s", strings.Join(left, "\n"))
		}
		return nil
	})
}
