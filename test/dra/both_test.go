package dra

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// classicDeployment has pods that request nvidia.com/gpu, on whatever node.
const classicDeployment = `apiVersion: apps/v1
kind: Deployment
metadata: { name: classic }
spec:
  replicas: 12
  selector: { matchLabels: { app: classic } }
  template:
    metadata: { labels: { app: classic } }
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: main
          image: %s
          imagePullPolicy: IfNotPresent
          command: [vectoradd, --for, 1h, --every, 1s, --elements, "1000"]
          resources: { limits: { nvidia.com/gpu: 1 } }
`

// TestBothSides has one node serve its 8 GPUs by the device plugin and another by DRA. Pods of one
// Deployment use all of them, and none knows the difference.
func TestBothSides(t *testing.T) {
	s := &suite{e2e.Up(t, cluster.Config{Nodes: 2})}
	s.Apply(t, "gpuready.yaml", "dra-driver.yaml", "simulated-driver.yaml")
	s.Kubectl(t, "label", "node", "n2", "nvidia.com/gpu.serve=dra")
	s.World.WaitDaemonSets(t, e2e.Namespace, "nvidia-driver-daemonset", "nvidia-container-toolkit-daemonset", "nvidia-device-plugin-daemonset", "gpu-dra-driver", "nvidia-operator-validator")
	s.World.WaitAllocatable(t, 8, "n1")
	s.WaitPublished(t, "n1", 0)
	s.WaitPublished(t, "n2", 8)
	require.Zero(t, s.World.Allocatable("n2"))
	s.Apply(t, "examples/extended-resource.yaml")
	s.ApplyText(t, fmt.Sprintf(classicDeployment, s.Image("cuda-samples")))
	s.waitSpread(t, 12)
	s.Kubectl(t, "scale", "deployment/classic", "--replicas=16")
	require.Equal(t, map[string]int{"n1": 8, "n2": 8}, s.waitSpread(t, 16))
	for _, n := range []string{"n1", "n2"} {
		require.Lenf(t, s.requireNoneTwice(t, n), 8, "GPUs in use on %s", n)
	}
	s.Kubectl(t, "delete", "deployment/classic", "--timeout=60s")
}

// waitSpread waits until all pods of the Deployment run, and returns how many run on each node.
func (s *suite) waitSpread(t *testing.T, pods int) map[string]int {
	t.Helper()
	var nodes map[string]int
	s.World.Until(t, fmt.Sprintf("%d pods run", pods), func() error {
		nodes = map[string]int{}
		running := 0
		for _, p := range s.World.Pods("default", "app=classic") {
			if p.Status.Phase == corev1.PodRunning {
				nodes[p.Spec.NodeName]++
				running++
			}
		}
		if running != pods {
			return fmt.Errorf("%d run: %v", running, nodes)
		}
		return nil
	})
	t.Logf("%d pods run: %v", pods, nodes)
	require.LessOrEqual(t, nodes["n1"], 8)
	require.LessOrEqual(t, nodes["n2"], 8)
	return nodes
}
