package workload

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/nodestate"
)

func TestAnAllocatedButAbsentGPUIsNamed(t *testing.T) {
	off, on := false, true
	for _, c := range []struct {
		name         string
		known        NodeRuntime
		says, advice string
	}{
		{"an old kubelet", NodeRuntime{Kubelet: "v1.27.16+k3s1", Runtime: &nodestate.Runtime{CDI: &on}}, "the kubelet v1.27.16+k3s1 drops the CDI names of device plugins", "use Kubernetes 1.29 or newer, or hand GPUs out by --device-list-strategy=cdi-annotations"},
		{"a runtime with CDI off", NodeRuntime{Kubelet: "v1.31.2", Runtime: &nodestate.Runtime{Name: "containerd", Version: "1.7.24", CDI: &off}}, "the runtime containerd 1.7.24 has CDI off", "turn CDI on in the runtime's configuration and restart it, or hand GPUs out by --device-list-strategy=volume-mounts"},
		{"nobody knows why", NodeRuntime{}, "found no GPU in its container: cuInit: 100", "DevicePluginCDIDevices"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t, time.Minute)
			s.runner.NodeRuntime = func() NodeRuntime { return c.known }
			s.runner.Allocated = func(_ context.Context, pod string) ([]string, error) {
				require.Equal(t, key, pod)
				return []string{string(gputest.GPU(1))}, nil
			}
			s.server.OnPod(func(p *corev1.Pod) {
				ended(corev1.PodFailed, 1, `{"passed":false,"error":"cuInit: 100","devices":0}`)(p)
				p.Spec.NodeName = "n1"
			})
			s.run()
			s.prove(offered)
			o := s.waitForNews()
			require.Equal(t, ReasonAbsent, o.NotReady.Reason)
			require.Contains(t, o.NotReady.Message, "a pod was allocated "+string(gputest.GPU(1))+" (PodResources API) and found no GPU")
			require.Contains(t, o.NotReady.Message, c.says)
			require.Contains(t, o.NotReady.Action, c.advice)
			require.Len(t, s.server.Pods(), 1, "its log is evidence")
		})
	}
}

// The Node's allocatable follows the kubelet some seconds later, so the scheduler gets more
// time where devices are missing. Once the pod is scheduled no timer runs.
func TestALateScheduledPodIsNotCancelled(t *testing.T) {
	var gave []error
	w := place{cancel: func(err error) { gave = append(gave, err) }}
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{offered: {}}}}}}}
	says := func(message string) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: message}}
		w.observe(p)
	}
	says("1 Insufficient cpu")
	require.False(t, w.devices)
	says("1 Insufficient nvidia.com/gpu")
	require.True(t, w.devices)
	require.NotNil(t, w.timer)
	p.Status.Conditions = nil
	w.observe(p)
	require.Nil(t, w.timer)
	require.Empty(t, gave)
}
