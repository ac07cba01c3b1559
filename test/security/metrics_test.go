package security

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// unfinished opens 400 connections to a port, sends 1 MB of a header that does not end
// on each, and waits until the server ends them.
const unfinished = `i=0
while [ $i -lt 400 ]; do
  { printf 'GET /metrics HTTP/1.1\r\nX-Filler: '; dd if=/dev/zero bs=1024 count=1024; sleep 20; } 2>/dev/null | nc %s %d >/dev/null 2>&1 &
  i=$((i+1))
done
wait
echo done`

// metricsPortsAreFlooded opens more connections to the agents' metrics ports than they serve. No agent
// may restart, each must still answer its probes, and all GPUs must stay.
func metricsPortsAreFlooded(t *testing.T, n *node) {
	agent := func(app string) *corev1.Pod {
		pods, err := n.World.Client.CoreV1().Pods(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
		require.NoError(t, err)
		require.Len(t, pods.Items, 1, app)
		return &pods.Items[0]
	}
	for app, port := range map[string]int{"nvidia-device-plugin-daemonset": 9402, "nvidia-operator-validator": 9404} {
		t.Run(app, func(t *testing.T) {
			before := agent(app)
			out, phase := n.output(t, n.shellPod("flood-"+app, fmt.Sprintf(unfinished, before.Status.PodIP, port)))
			require.Equal(t, corev1.PodSucceeded, phase, out)
			n.World.WaitAllocatable(t, 8, n.name)
			after := agent(app)
			require.Equal(t, before.UID, after.UID)
			require.Equal(t, before.Status.ContainerStatuses[0].RestartCount, after.Status.ContainerStatuses[0].RestartCount, "%+v", after.Status.ContainerStatuses[0])
			require.True(t, after.Status.ContainerStatuses[0].Ready)
		})
	}
}
