package explain

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The golden files of validator/report show whole reports.

var now = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func node(status corev1.ConditionStatus, reason, message string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
		{Type: readyCondition, Status: status, Reason: reason, Message: message, LastHeartbeatTime: metav1.NewTime(now)},
	}}}
}

func TestTheEndOfTheRoadIsReadFromTheCondition(t *testing.T) {
	for _, c := range []struct {
		status          corev1.ConditionStatus
		reason, message string
		end             Stage
	}{
		{"False", "Broken", "cuda: one; two; next: do this; and that", Stage{Name: "cuda", State: Broken, Reason: "Broken", Message: "one; two", Action: "do this; and that"}},
		{"False", "Broken", "cuda: of an earlier version; do this", Stage{Name: "cuda", State: Broken, Reason: "Broken", Message: "of an earlier version", Action: "do this"}},
		{"False", "NoUsableGPU", "driver: no GPU; next: see dmesg; the driver says Failed: X: y", Stage{Name: "driver", State: Broken, Reason: "NoUsableGPU", Message: "no GPU", Action: "see dmesg", Notes: []string{"driver says Failed: X: y"}}},
		{"False", "PlatformNotServed", "driver: it is a guest of Windows (WSL2); next: use it there; label the node", Stage{Name: "driver", State: Broken, Reason: "PlatformNotServed", Message: "it is a guest of Windows (WSL2)", Action: "use it there; label the node"}},
		{"False", "DriverStarting", "driver: no driver is loaded: it is being built", Stage{Name: "driver", State: Waiting, Reason: "DriverStarting", Message: "no driver is loaded: it is being built"}},
		{"Unknown", "Proving", "plugin: a pod runs", Stage{Name: Pod, State: Waiting, Reason: Running, Message: "a pod runs"}},
		{"Unknown", "Proving", "toolkit: it is checked", Stage{Name: "toolkit", State: Waiting, Reason: "Proving", Message: "it is checked"}},
	} {
		n := node(c.status, c.reason, c.message)
		n.Status.Capacity = corev1.ResourceList{"nvidia.com/gpu": {}}
		r := FromCluster(Cluster{Node: n, PodsErr: errors.New("forbidden")}, now)
		require.Equal(t, &c.end, r.End(), c.message)
		require.Equal(t, []string{"the agents' pods cannot be listed: forbidden"}, r.Notes)
	}
}

func TestATrueConditionWithAnotherReasonIsNamed(t *testing.T) {
	r := FromCluster(Cluster{Node: node("True", "StateNotWritable", "8 of 8 GPUs ready; write /run/x: no space left")}, now)
	require.Contains(t, r.Stage("plugin").Notes, "StateNotWritable: 8 of 8 GPUs ready; write /run/x: no space left")
	require.Equal(t, OK, r.Stage("plugin").State)
}

func TestOnlyTheAgentsPodsOnTheNodeCount(t *testing.T) {
	pod := func(app, node string, labels map[string]string) corev1.Pod {
		labels["app"] = app
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: app, Labels: labels}, Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodFailed}}
	}
	ours := func() map[string]string { return map[string]string{partOf: product} }
	r := FromCluster(Cluster{Node: node("True", "Ready", "1 of 1 GPUs ready"), Pods: []corev1.Pod{
		pod("nvidia-container-toolkit-daemonset", "n1", ours()),
		pod("nvidia-device-plugin-daemonset", "n1", map[string]string{}),
		pod("nvidia-operator-validator", "n2", ours()),
	}}, now)
	var text bytes.Buffer
	require.NoError(t, r.Text(&text, Style{Width: 200}))
	require.Contains(t, text.String(), "pod x/nvidia-container-toolkit-daemonset: Failed")
	require.Contains(t, text.String(), "no pod of DaemonSet nvidia-device-plugin-daemonset is on this node")
	require.Contains(t, text.String(), "no pod of DaemonSet nvidia-operator-validator is on this node")
}

func TestReasonsReachNoTerminalUncleaned(t *testing.T) {
	events := []corev1.Event{{Source: corev1.EventSource{Component: eventSource}, Reason: "a\x1b]0;title\a", Message: "m"}}
	r := FromCluster(Cluster{Node: node("False", "b\x1b[2J", "cuda: x"), Events: events}, now)
	var text bytes.Buffer
	require.NoError(t, r.Text(&text, Style{Width: 200}))
	require.NotContains(t, text.String(), "\x1b")
	require.NotContains(t, text.String(), "\a")
}
