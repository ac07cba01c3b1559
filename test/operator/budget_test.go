package operator

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// trainer is a job that holds a GPU of a node until it is evicted, and a disruption budget
// that forbids the eviction.
const trainer = `
apiVersion: apps/v1
kind: Deployment
metadata: { name: trainer, namespace: default }
spec:
  selector: { matchLabels: { app: trainer } }
  template:
    metadata: { labels: { app: trainer } }
    spec:
      nodeSelector: { kubernetes.io/hostname: %s }
      terminationGracePeriodSeconds: 0
      automountServiceAccountToken: false
      containers:
        - name: main
          image: %s
          imagePullPolicy: IfNotPresent
          command: [vectoradd, --for, 1h, --every, 1s, --elements, "1000"]
          resources: { limits: { nvidia.com/gpu: 1 } }
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: { name: trainer, namespace: default }
spec: { minAvailable: 1, selector: { matchLabels: { app: trainer } } }
`

// train starts the trainer job.
func (s *suite) train(t *testing.T, node string) *corev1.Pod {
	t.Helper()
	s.ApplyText(t, fmt.Sprintf(trainer, node, s.Image("cuda-samples")))
	s.Kubectl(t, "wait", "--for=jsonpath={.status.currentHealthy}=1", "--timeout=60s", "pdb/trainer")
	pods := s.World.Pods("default", "app=trainer")
	require.Len(t, pods, 1)
	return pods[0]
}

// heldUp waits until the upgrade of the job's node reports that it waits for the budget and
// for nothing else, and checks that the node lost nothing.
func (s *suite) heldUp(t *testing.T, job *corev1.Pod, from, to string) {
	t.Helper()
	node, why := job.Spec.NodeName, "pod default/"+job.Name+" cannot be evicted: The disruption budget trainer needs 1 healthy pods"
	s.until(t, "the policy says what the upgrade of "+node+" waits for", func() error {
		return s.condition(t, policy, "Progressing", "True", "DriverUpgrade", node+": "+why)
	})
	for _, c := range []struct {
		args []string
		says string
	}{{[]string{"status"}, node + ": " + why}, {[]string{"explain", node}, ", waits: " + why}} {
		out, err := s.run(t, "kubectl-gpu", c.args...)
		require.NoError(t, err, out)
		assert.Contains(t, strings.Join(strings.Fields(out), " "), c.says, "kubectl gpu %v", c.args)
		t.Log(out)
	}
	now := s.World.Pod("default", job.Name)
	if assert.NotNil(t, now, "the job") {
		assert.Equal(t, job.UID, now.UID, "the job")
		assert.Nil(t, now.DeletionTimestamp, "the job")
	}
	assert.True(t, s.World.Node(node).Spec.Unschedulable, "%s gets no more jobs", node)
	for _, p := range s.World.Pods(namespace, "app=nvidia-driver-daemonset") {
		want := from // the node itself, and those whose turn has not come
		if p.Spec.NodeName < node {
			want = to
		}
		assert.Truef(t, strings.HasSuffix(p.Spec.Containers[0].Image, ":"+want) && p.DeletionTimestamp == nil, "%s on %s has %s", p.Name, p.Spec.NodeName, p.Spec.Containers[0].Image)
	}
}

// allowEviction changes the budget so that it allows the eviction.
func (s *suite) allowEviction(t *testing.T) {
	t.Helper()
	s.Kubectl(t, "patch", "pdb", "trainer", "--type=merge", "-p", `{"spec": {"minAvailable": 0}}`)
}

// evicted checks that the job was evicted and runs again, then deletes it.
func (s *suite) evicted(t *testing.T, job *corev1.Pod) {
	t.Helper()
	s.until(t, "the job runs again", func() error {
		pods := s.World.Pods("default", "app=trainer")
		if len(pods) != 1 {
			return fmt.Errorf("%d pods are there", len(pods))
		}
		for _, p := range pods {
			if p.UID == job.UID || p.Status.Phase != corev1.PodRunning {
				return fmt.Errorf("%s is %s", p.Name, p.Status.Phase)
			}
		}
		return nil
	})
	s.Kubectl(t, "delete", "deployment/trainer", "pdb/trainer")
	s.until(t, "the job is gone", func() error {
		if pods := s.World.Pods("default", "app=trainer"); len(pods) > 0 {
			return fmt.Errorf("%s is there", pods[0].Name)
		}
		return nil
	})
}
