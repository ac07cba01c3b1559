package operator

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/binaries"
)

// theirs imitates NVIDIA's operator as far as ours can detect it: a Deployment of that name
// that is not ours, in the namespace of NVIDIA's documentation, with write access to Nodes.
const theirs = `
apiVersion: v1
kind: Namespace
metadata: { name: gpu-operator }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: { name: theirs }
rules: [{ apiGroups: [""], resources: [nodes], verbs: [get, list, watch, update] }]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: { name: theirs }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: theirs }
subjects: [{ kind: ServiceAccount, namespace: gpu-operator, name: gpu-operator }]
---
apiVersion: v1
kind: ServiceAccount
metadata: { name: gpu-operator, namespace: gpu-operator }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: gpu-operator, namespace: gpu-operator, labels: { app: gpu-operator } }
spec:
  selector: { matchLabels: { app: gpu-operator } }
  template:
    metadata: { labels: { app: gpu-operator } }
    spec:
      serviceAccountName: gpu-operator
      terminationGracePeriodSeconds: 0
      containers: [{ name: gpu-operator, image: %q }]
`

// theirLabels are the labels by which both NVIDIA's operator and ours place their operands.
var theirLabels = []string{"nvidia.com/gpu.deploy.driver", "nvidia.com/gpu.deploy.container-toolkit", "nvidia.com/gpu.deploy.device-plugin", "nvidia.com/gpu.deploy.operator-validator"}

// besideTheirs installs NVIDIA's operator, hands a node over to it, and uninstalls it.
func (s *suite) besideTheirs(t *testing.T) {
	s.besideTenants(t)
	s.ApplyText(t, fmt.Sprintf(theirs, binaries.PauseName))
	s.Kubectl(t, "-n", "gpu-operator", "rollout", "status", "deployment/gpu-operator", "--timeout=60s")
	s.until(t, "an Event says that NVIDIA's runs, and what to do", func() error {
		out := s.Kubectl(t, "-n", "default", "get", "events", "--field-selector=reason=OtherOperatorRuns", "-o", "jsonpath={range .items[*]}{.message}{end}")
		if !strings.Contains(out, "Deployment gpu-operator/gpu-operator") || !strings.Contains(out, "gpuready.io/operator=gpuready") {
			return fmt.Errorf("it says %q", out)
		}
		return nil
	})
	s.showsFailure(t, "gpuready_operator_beside_nvidia", `deployment="gpu-operator/gpu-operator"`)
	version := func() string {
		return s.Kubectl(t, "get", "clusterpolicy", policy, "-o", "jsonpath={.metadata.resourceVersion}")
	}
	written := version()
	for _, n := range s.Nodes {
		s.until(t, n.Name+" is left to NVIDIA's", func() error { return s.left(n.Name) }) // with the pods that proved it
	}
	for _, key := range theirLabels {
		s.Kubectl(t, "label", "node", "n2", key+"=true")
	}
	was := s.marksOf(t, "n2")

	s.Kubectl(t, "label", "node", "n1", "nvidia.com/gpu.deploy.operands=false", "gpuready.io/operator=gpuready")
	s.until(t, "n1 is served and proven", func() error {
		if c := s.World.Condition("n1", "GPUReady"); c == nil || c.Status != corev1.ConditionTrue {
			return fmt.Errorf("%+v", c)
		}
		return s.proof("n1")
	})
	out, phase := s.Result(t, e2e.Job{Name: "handed-over", Node: "n1", GPUs: 1, Command: []string{"vectoradd"}})
	assert.Equal(t, corev1.PodSucceeded, phase, out)
	assert.Equal(t, was, s.marksOf(t, "n2"), "n2 is NVIDIA's still")
	require.NoError(t, s.left("n2", theirLabels...))
	s.showsFailure(t, "gpuready_operator_nodes", `state="done",status="ready"`)
	assert.Equal(t, written, version(), "the policy is left to NVIDIA's")

	s.Kubectl(t, "delete", "clusterrolebinding,clusterrole", "theirs")
	s.Kubectl(t, "delete", "namespace", "gpu-operator", "--timeout=60s")
	s.until(t, "n2 is served again", func() error {
		if labels := s.World.Node("n2").Labels; labels["gpuready.io/driver"] == "" {
			return fmt.Errorf("its labels are %v", labels)
		}
		return nil
	})
	s.proven(t)
	s.Kubectl(t, "label", "node", "n1", "nvidia.com/gpu.deploy.operands-", "gpuready.io/operator-")
	// The labels NVIDIA's operator left stay until somebody removes them; then they are ours.
	for _, key := range theirLabels {
		s.Kubectl(t, "label", "node", "n2", key+"-")
	}
	s.until(t, "n2 has the labels again, as ours", func() error {
		for _, key := range theirLabels {
			if value := s.World.Node("n2").Labels[key]; value != "true" {
				return fmt.Errorf("%s is %q", key, value)
			}
		}
		return nil
	})
	s.proven(t)
}

// tenants can be applied by anybody who has all rights in one namespace.
const tenants = `
apiVersion: v1
kind: Namespace
metadata: { name: team-a }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: gpu-operator, namespace: team-a, labels: { app: gpu-operator } }
spec:
  selector: { matchLabels: { app: gpu-operator } }
  template:
    metadata: { labels: { app: gpu-operator } }
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{ name: gpu-operator, image: %q }]
`

// besideTenants has a tenant create a Deployment with the name of NVIDIA's operator.
func (s *suite) besideTenants(t *testing.T) {
	s.ApplyText(t, fmt.Sprintf(tenants, binaries.PauseName))
	s.Kubectl(t, "-n", "team-a", "rollout", "status", "deployment/gpu-operator", "--timeout=60s")
	require.NoError(t, s.condition(t, policy, "Ready", "True", ""))
	s.proven(t)
	s.Kubectl(t, "delete", "namespace", "team-a", "--timeout=60s")
}

// left returns an error while a node has our operands, or any of our labels other than
// the given ones. The label that reports a GPU stays.
func (s *suite) left(node string, labels ...string) error {
	n := s.World.Node(node)
	for key, value := range n.Labels {
		placed := strings.HasPrefix(key, "nvidia.com/gpu.deploy.") && !slices.Contains(labels, key)
		if placed || key == "gpuready.io/driver" || key == "gpuready.io/injection" || key == "nvidia.com/gpu.product" {
			return fmt.Errorf("%s has label %s=%s", node, key, value)
		}
	}
	for _, p := range s.World.Pods(namespace, "app.kubernetes.io/part-of=gpuready") {
		if p.Spec.NodeName == node && p.Labels["app"] != "gpuready-operator" {
			return fmt.Errorf("pod %s runs on %s", p.Name, node)
		}
	}
	if !n.Spec.Unschedulable && len(n.Spec.Taints) == 0 {
		return nil
	}
	return fmt.Errorf("%s is cordoned or has taints: %v", node, n.Spec.Taints)
}

// marksOf returns the marks of one node.
func (s *suite) marksOf(t *testing.T, node string) (all []string) {
	t.Helper()
	for mark := range s.marks(t) {
		if strings.HasPrefix(mark, node+" ") {
			all = append(all, mark)
		}
	}
	slices.Sort(all)
	return all
}
