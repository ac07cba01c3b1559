package workload

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuready/gpuready/validator/check"
)

func TestAPodEndedByOthersIsNoRefusal(t *testing.T) {
	because := func(reason, message string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, reason, message
		}
	}
	for _, c := range []struct {
		name    string
		timeout time.Duration
		pod     func(*corev1.Pod)
		says    string
	}{
		{"kubectl delete", time.Minute, func(p *corev1.Pod) {
			ended(corev1.PodFailed, 143, "")(p)
			p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		}, "deleted by somebody else"},
		{"preempted", time.Minute, func(p *corev1.Pod) {
			ended(corev1.PodFailed, 143, "")(p)
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "PreemptionByScheduler", Message: "to make room"}}
		}, "PreemptionByScheduler: to make room"},
		{"evicted", time.Minute, because("Evicted", "The node was low on resource: memory"), "WorkloadEndedByOthers: pod gpuready/nvidia-device-plugin-validation-n1 was ended by others: Evicted: The node was low on resource"},
		{"no CPU left", time.Minute, because("OutOfcpu", "Node didn't have enough resource: cpu"), "OutOfcpu"},
		{"somebody was faster", time.Minute, because("OutOfnvidia.com/gpu", "Node didn't have enough resource"), "OutOfnvidia.com/gpu"},
		{"the node goes down", time.Minute, because("NodeShutdown", "Pod was rejected"), "NodeShutdown"},
		{"a node that is full", time.Minute, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/2 nodes are available: 1 Insufficient cpu, 1 Too many pods."}}
		}, "NodeFull: there is no place on this node for pod gpuready/nvidia-device-plugin-validation-n1: Unschedulable: 0/2 nodes are available: 1 Insufficient cpu"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t, c.timeout)
			s.server.OnPod(c.pod)
			s.run()
			s.prove(offered)
			o := s.waitForNews()
			require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
			require.True(t, o.Retry)
			require.Contains(t, o.Notes[0], c.says)
		})
	}
}

func TestAnotherPodOfTheNameProvesNothing(t *testing.T) {
	s := newStage(t, time.Minute)
	s.run()
	s.prove(offered)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, s.server.Wait(ctx, func() bool { return s.server.Pod(key) != nil }))
	s.server.Update(key, func(p *corev1.Pod) {
		p.UID = types.UID("another")
		ended(corev1.PodSucceeded, 0, good(0))(p)
	})
	o := s.waitForNews()
	require.True(t, o.Retry)
	require.Contains(t, o.Notes[0], "deleted by somebody else")
}

func TestAPodThatRanWhileThePluginWasAwayProvesNothing(t *testing.T) {
	s := newStage(t, time.Minute)
	s.run()
	s.prove(offered)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, s.server.Wait(ctx, func() bool { return s.server.Pod(key) != nil }))
	before := s.server.Pod(key).UID
	s.runner.Forget()
	require.Equal(t, check.Pending, s.prove(offered).Kind)
	s.server.Update(key, ended(corev1.PodSucceeded, 0, good(0)))
	require.Equal(t, check.Pending, s.waitForNews().Kind)
	require.NoError(t, s.server.Wait(ctx, func() bool { p := s.server.Pod(key); return p != nil && p.UID != before }))
	s.server.Update(key, ended(corev1.PodSucceeded, 0, good(0)))
	require.Equal(t, check.Passed, s.waitForNews().Kind)
}
