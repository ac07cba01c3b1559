package workload

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/kube/kubetest"
)

const driverKey = "gpuready/nvidia-driver-validation-n1"

// driverPod starts a DriverPod in the cluster of a stage.
func (s *stage) driverPod() *DriverPod {
	s.t.Helper()
	w := NewDriverPod(s.runner.Config, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	w.wait = time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	s.t.Cleanup(func() { cancel(); require.ErrorIs(s.t, <-ended, context.Canceled) })
	return w
}

// until waits until cond holds on the server.
func (s *stage) until(cond func() bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	require.NoError(s.t, s.server.Wait(ctx, cond))
}

func await(t *testing.T, w *DriverPod) check.Outcome {
	t.Helper()
	select {
	case <-w.Updates():
	case <-time.After(time.Minute):
		require.Fail(t, "no pod came to an end")
	}
	o := w.Result()
	require.NotNil(t, o)
	return *o
}

func ranOn(n int) string { return fmt.Sprintf(`{"passed":true,"simulated":false,"ran":%d}`, n) }

func TestTheDriversPodGetsAllGPUsAndRequestsNone(t *testing.T) {
	s := newStage(t, 90*time.Second)
	w := NewDriverPod(s.runner.Config, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	p := w.buildPod(job{driver: s.driver})
	require.Equal(t, "nvidia-driver-validation-n1", p.Name)
	require.Equal(t, "nvidia-driver-validation", p.Labels["app"])
	require.Equal(t, map[string]string{"gpuready.io/management": "true"}, p.Annotations)
	c := p.Spec.Containers[0]
	require.Equal(t, []corev1.EnvVar{{Name: "GPUREADY_INJECTION", Value: "expected"}}, c.Env)
	require.Len(t, c.Resources.Limits, 1, "memory alone")
	require.Equal(t, []string{"/usr/bin/gpu-validator", "run-sample",
		fmt.Sprintf("%s=%s", gputest.GPU(0), check.Name(s.driver.GPUs[0])), fmt.Sprintf("%s=%s", gputest.GPU(1), check.Name(s.driver.GPUs[1]))}, c.Command)
	require.Equal(t, int64(100), *p.Spec.ActiveDeadlineSeconds, "five seconds for each GPU more")
	plugin := s.runner.buildPod(job{resource: offered})
	require.Equal(t, plugin.Spec.SecurityContext, p.Spec.SecurityContext)
	require.Equal(t, plugin.Spec.Containers[0].SecurityContext, c.SecurityContext)
	require.Equal(t, plugin.Spec.PriorityClassName, p.Spec.PriorityClassName)
	require.Equal(t, plugin.OwnerReferences, p.OwnerReferences)
}

func TestTheDriversPodRunsOncePerProof(t *testing.T) {
	s := newStage(t, time.Minute)
	s.server.OnPod(ended(corev1.PodSucceeded, 0, ranOn(2)))
	w := s.driverPod()
	require.Nil(t, w.Result())
	w.Proven(s.driver)
	require.Equal(t, check.Passed, await(t, w).Kind)
	first := s.server.Pod(driverKey).UID
	w.Proven(s.driver)
	require.Equal(t, first, s.server.Pod(driverKey).UID)
	require.NotNil(t, w.Result(), "it holds")

	w.Withdraw()
	require.Nil(t, w.Result())
	require.NotNil(t, s.server.Pod(driverKey), "the last validation stays to be read")
	w.Proven(s.driver)
	require.Equal(t, check.Passed, await(t, w).Kind)
	require.NotEqual(t, first, s.server.Pod(driverKey).UID, "proven anew, shown anew")

	s.server.OnPod(ended(corev1.PodSucceeded, 0, ranOn(3)))
	s.driver.GPUs = gputest.Node("t4", 3).Devices
	w.Proven(s.driver)
	require.Equal(t, check.Passed, await(t, w).Kind)
}

func TestTheDriversPodWaitsForGPUsInUse(t *testing.T) {
	s := newStage(t, time.Minute)
	s.server.OnPod(ended(corev1.PodSucceeded, 0, ranOn(2)))
	asked := 0
	s.runner.InUse = func(_ context.Context, d check.Driver) string {
		require.Len(t, d.GPUs, 2)
		if asked++; asked < 3 {
			return "GPU 0: held by pod default/job"
		}
		return ""
	}
	w := s.driverPod()
	w.Proven(s.driver)
	o := await(t, w)
	require.Equal(t, check.Pending, o.Kind, "no failure")
	require.Equal(t, ReasonInUse, o.NotReady.Reason)
	require.Contains(t, o.NotReady.Message, "held by pod default/job")
	s.until(func() bool { return s.server.Pod(driverKey) != nil })
	require.Equal(t, 3, asked, "no pod before they are free")
}

func TestWithdrawCancelsARunningPod(t *testing.T) {
	s := newStage(t, time.Minute)
	w := s.driverPod()
	w.Proven(s.driver)
	s.until(func() bool { return s.server.Pod(driverKey) != nil })
	w.Withdraw()
	s.until(func() bool { return s.server.Pod(driverKey) == nil })
	require.Nil(t, w.Result())
}

func TestTheDriversPodsResultIsReported(t *testing.T) {
	for _, c := range []struct {
		name, reason, says string
		kind               check.Kind
		pod                func(*corev1.Pod)
	}{
		{"a wrong sum", "WorkloadFailed", "vectorAdd in the pod nvidia-driver-validation ended with 3: GPU 1: element 7", check.Failed,
			ended(corev1.PodFailed, 3, `{"passed":false,"error":"GPU 1: element 7","devices":2}`)},
		{"not on all GPUs", "WorkloadFailed", "the sample passed on 1 of 2 GPUs and MIG devices", check.Failed, ended(corev1.PodSucceeded, 0, ranOn(1))},
		{"passed by", "InjectionMissing", "the pod nvidia-driver-validation was given no GPU", check.Failed,
			ended(corev1.PodFailed, 1, `{"passed":false,"error":"libcuda.so.1: no such file","devices":0}`)},
		{"evicted", "WorkloadEndedByOthers", "was ended by others: Evicted", check.Pending,
			func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Evicted" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t, time.Minute)
			s.server.OnPod(c.pod)
			w := s.driverPod()
			w.Proven(s.driver)
			o := await(t, w)
			require.Equal(t, c.kind, o.Kind)
			require.Equal(t, c.reason, string(o.NotReady.Reason))
			require.Contains(t, o.NotReady.Message, c.says)
			require.NotEmpty(t, o.NotReady.Action)
			require.NotNil(t, s.server.Pod(driverKey), "its log is evidence")
		})
	}
}

func TestAFailedDriversPodIsRetried(t *testing.T) {
	s := newStage(t, time.Minute)
	s.server.Fail(func(r *http.Request) *kubetest.Fault {
		if r.Method == http.MethodPost {
			return &kubetest.Fault{Status: 403, Message: "denied by policy"}
		}
		return nil
	})
	w := s.driverPod()
	w.Proven(s.driver)
	o := await(t, w)
	require.Equal(t, check.Pending, o.Kind)
	require.Equal(t, ReasonForbidden, o.NotReady.Reason)
	s.server.Fail(nil)
	s.server.OnPod(ended(corev1.PodSucceeded, 0, ranOn(2)))
	require.Equal(t, check.Passed, await(t, w).Kind)
}
