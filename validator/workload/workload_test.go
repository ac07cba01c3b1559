package workload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/test/lab/leak"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/kube"
	"github.com/gpuready/gpuready/validator/kube/kubetest"
)

func TestMain(m *testing.M) { leak.Main(m) }

const (
	offered = "nvidia.com/gpu"
	key     = "gpuready/nvidia-device-plugin-validation-n1"
)

// stage is a cluster with one node, and a Runner on it.
type stage struct {
	t      *testing.T
	server *kubetest.Server
	runner *Runner
	driver check.Driver
}

// overdue is the timeout of a run that is to end by it: long enough for one reading of the
// pod on a busy machine.
const overdue = time.Second

func newStage(t *testing.T, timeout time.Duration) *stage {
	t.Helper()
	s := &stage{t: t, server: kubetest.Start("n1"), driver: check.Driver{Info: nodestate.DriverInfo{Root: "/", Version: "580.95.05"}, GPUs: gputest.Node("t4", 2).Devices}}
	t.Cleanup(s.server.Stop)
	client, err := kube.New(s.server.Config())
	require.NoError(t, err)
	t.Cleanup(client.Close)
	s.runner = New(Config{
		Client: client, Node: "n1", BootID: "00000000-0000-4000-8000-000000000000", Namespace: "gpuready", Image: "gpuready/validator:v1.2.3",
		Timeout: timeout, Keep: true, OwnerName: "nvidia-operator-validator-x", OwnerUID: "uid",
	}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	return s
}

func (s *stage) run() {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.runner.Run(ctx) }()
	s.t.Cleanup(func() { cancel(); require.ErrorIs(s.t, <-ended, context.Canceled) })
}

func accounts() check.Outcome {
	return check.NewPass(readiness.Proof{Driver: &nodestate.DriverInfo{}, Resources: map[string]int{offered: 2}, Summary: "2 allocatable"})
}

func (s *stage) prove(free string) check.Outcome { return s.runner.Prove(s.driver, accounts(), free) }

// waitForNews waits for the end of a pod and returns the outcome then.
func (s *stage) waitForNews() check.Outcome {
	s.t.Helper()
	select {
	case <-s.runner.Updates():
	case <-time.After(time.Minute):
		require.Fail(s.t, "no pod came to an end", "%q", s.server.Requests())
	}
	return s.prove(offered)
}

func ended(phase corev1.PodPhase, code int32, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Phase = phase
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: message, Reason: "Completed"},
		}}}
	}
}

func good(i int) string {
	return fmt.Sprintf(`{"passed":true,"simulated":false,"uuid":%q}`, gputest.GPU(i))
}

func TestAPodThatRanIsTheProof(t *testing.T) {
	s := newStage(t, time.Minute)
	s.server.OnPod(ended(corev1.PodSucceeded, 0, good(1)))
	s.run()
	o := s.prove(offered)
	require.Equal(t, check.Pending, o.Kind)
	require.Contains(t, o.NotReady.Message, key)
	o = s.waitForNews()
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
	require.Contains(t, o.Proof.Summary, "2 allocatable; vectorAdd passed in a pod")
	require.Equal(t, []string{key}, s.server.Pods(), "it stays until the next")
	first := s.server.Pod(key).UID

	created := func() (n int) {
		for _, r := range s.server.Requests() {
			if strings.HasPrefix(r, "POST") {
				n++
			}
		}
		return n
	}
	require.Equal(t, check.Passed, s.prove("").Kind, "it holds also while others use all GPUs")
	require.Equal(t, 1, created())
	s.runner.Forget()
	require.Equal(t, check.Pending, s.prove(offered).Kind, "the plugin was away")
	require.Equal(t, check.Passed, s.waitForNews().Kind)
	require.NotEqual(t, first, s.server.Pod(key).UID, "made anew")
	s.driver.GPUs = gputest.Node("t4", 3).Devices
	require.Equal(t, check.Pending, s.prove(offered).Kind, "a GPU more")
	require.Equal(t, check.Passed, s.waitForNews().Kind)
	require.Equal(t, 3, created())
}

func TestThePodIsRestrictedAndForThisNodeOnly(t *testing.T) {
	p := newStage(t, 90*time.Second).runner.buildPod(job{resource: offered})
	require.Empty(t, p.Spec.NodeName, "the scheduler accounts for it")
	require.Equal(t, []string{"n1"}, p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values)
	require.Equal(t, int64(90), *p.Spec.ActiveDeadlineSeconds)
	require.Equal(t, PriorityClass, p.Spec.PriorityClassName, "whoever waits for a GPU is first")
	require.False(t, *p.Spec.AutomountServiceAccountToken)
	require.True(t, *p.Spec.SecurityContext.RunAsNonRoot)
	require.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, p.Spec.SecurityContext.SeccompProfile.Type)
	c := p.Spec.Containers[0]
	require.False(t, *c.SecurityContext.AllowPrivilegeEscalation)
	require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem)
	require.Equal(t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop)
	one := c.Resources.Limits[offered]
	require.Equal(t, "1", one.String())
	require.Equal(t, []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "nvidia-operator-validator-x", UID: "uid"}}, p.OwnerReferences)
	require.Equal(t, map[string]string{"app": "nvidia-device-plugin-validation", "app.kubernetes.io/name": "nvidia-device-plugin-validation", LabelBoot: "00000000-0000-4000-8000-000000000000"}, p.Labels)
	require.Empty(t, p.Annotations, "it is given what it requests")
	for _, r := range []Role{DevicePlugin, Driver} {
		require.LessOrEqual(t, len(Config{role: r, Node: strings.Repeat("n", 221)}.podName()), 253)
		require.Equal(t, string(r)+"-"+strings.Repeat("n", 221), Config{role: r, Node: strings.Repeat("n", 221)}.podName())
		require.Regexp(t, "^"+string(r)+"-[0-9a-f]{32}$", Config{role: r, Node: strings.Repeat("n", 222)}.podName())
	}
}

func TestThePodsFailureIsTheReason(t *testing.T) {
	waiting := func(reason, message string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.NodeName = "n1"
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
		}
	}
	for _, c := range []struct {
		name    string
		timeout time.Duration
		pod     func(*corev1.Pod)
		reason  string
		says    string
	}{
		{"a wrong sum", time.Minute, ended(corev1.PodFailed, 3, `{"passed":false,"error":"element 7 is wrong"}`), "WorkloadFailed", "ended with 3: element 7 is wrong"},
		{"killed without an answer", time.Minute, ended(corev1.PodFailed, 139, "line one\nSegmentation fault"), "WorkloadFailed", "ended with 139: Segmentation fault"},
		{"no words at all", time.Minute, ended(corev1.PodFailed, 137, ""), "WorkloadFailed", "ended with 137: Completed"},
		{"an exit of 0 that proves nothing", time.Minute, ended(corev1.PodSucceeded, 0, ""), "WorkloadFailed", "ended with 0 and no result"},
		{"says that it did not pass", time.Minute, ended(corev1.PodSucceeded, 0, `{"passed":false}`), "WorkloadFailed", "did not pass"},
		{"another node's GPU", time.Minute, ended(corev1.PodSucceeded, 0, `{"passed":true,"uuid":"GPU-x"}`), "WorkloadFailed", `ran on "GPU-x", which is none of this node's`},
		{"another driver", time.Minute, ended(corev1.PodSucceeded, 0, `{"passed":true,"simulated":true}`), "WorkloadFailed", "simulated is true in the pod, false on the node"},
		{"not admitted", time.Minute, func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "UnexpectedAdmissionError", "Allocate failed"
		}, "WorkloadNotAdmitted", "UnexpectedAdmissionError: Allocate failed"},
		{"the runtime cannot", time.Minute, waiting("CreateContainerError", "unresolvable CDI devices"), "WorkloadNotStarted", "CreateContainerError: unresolvable CDI devices"},
		{"no image", time.Minute, waiting("ErrImagePull", "not found"), "WorkloadImageMissing", "the image gpuready/validator:v1.2.3 of a pod that requests a GPU is not on this node and cannot be pulled: ErrImagePull: not found"},
		{"a runtime that cannot start it", time.Minute, func(p *corev1.Pod) {
			ended(corev1.PodFailed, 128, "error running createContainer hook")(p)
			p.Status.ContainerStatuses[0].State.Terminated.Reason = "StartError"
		}, "WorkloadNotStarted", "StartError: error running createContainer hook"},
		{"no GPU in the container", time.Minute, ended(corev1.PodFailed, 1, `{"passed":false,"error":"libcuda.so.1: cannot open shared object file","devices":0}`), "AllocatedButAbsent",
			"a pod was admitted with a GPU and found none in its container: libcuda.so.1: cannot open"},
		{"a GPU in the container, and no CUDA", time.Minute, ended(corev1.PodFailed, 1, `{"passed":false,"error":"cuInit: 999","devices":1}`), "WorkloadFailed", "cuInit: 999"},
		{"unschedulable", overdue, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "Insufficient nvidia.com/gpu"}}
		}, "WorkloadUnschedulable", "Insufficient nvidia.com/gpu"},
		{"it hangs", overdue, func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = "n1", corev1.PodRunning }, "WorkloadTimeout", "it is Running"},
		{"the kubelet ended it", time.Minute, func(p *corev1.Pod) {
			p.Spec.NodeName, p.Status.Phase, p.Status.Reason = "n1", corev1.PodFailed, "DeadlineExceeded"
		}, "WorkloadTimeout", "had no result"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t, c.timeout)
			s.server.OnPod(c.pod)
			s.run()
			s.prove(offered)
			o := s.waitForNews()
			require.Equal(t, check.Failed, o.Kind, "%+v", o)
			require.Equal(t, c.reason, string(o.NotReady.Reason))
			require.Contains(t, o.NotReady.Message, c.says)
			require.NotEmpty(t, o.NotReady.Action)
			for _, key := range s.server.Pods() {
				require.Contains(t, []corev1.PodPhase{corev1.PodFailed, corev1.PodSucceeded}, s.server.Pod(key).Status.Phase, "one that holds a GPU, or waits for one, does not stay")
			}
		})
	}
}

func TestTheNextActionForAFullDiskIsToFreeSpace(t *testing.T) {
	s := newStage(t, time.Minute)
	s.server.OnPod(func(p *corev1.Pod) {
		ended(corev1.PodFailed, 128, "unable to store init state: write /run/containerd/runc/x: no space left on device")(p)
		p.Status.ContainerStatuses[0].State.Terminated.Reason = "StartError"
	})
	s.run()
	s.prove(offered)
	o := s.waitForNews()
	require.Equal(t, check.Failed, o.Kind)
	require.Contains(t, o.NotReady.Action, "df -h")
}

func TestAFailureIsRetriedAtTheNextProve(t *testing.T) {
	s := newStage(t, time.Minute)
	s.server.OnPod(ended(corev1.PodFailed, 3, ""))
	s.run()
	s.prove(offered)
	require.Equal(t, check.Failed, s.waitForNews().Kind)
	s.server.OnPod(ended(corev1.PodSucceeded, 0, good(0)))
	require.Equal(t, check.Failed, s.prove(offered).Kind, "until it is known better")
	require.Equal(t, check.Passed, s.waitForNews().Kind)
}

func TestStatesOfThePodAreFollowed(t *testing.T) {
	s := newStage(t, time.Minute)
	s.run()
	s.prove(offered)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, s.server.Wait(ctx, func() bool { return len(s.server.Pods()) == 1 }))
	s.server.Update(key, func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })
	s.server.Update(key, ended(corev1.PodSucceeded, 0, good(0)))
	require.Equal(t, check.Passed, s.waitForNews().Kind)
}

func TestALeftoverPodIsRemovedFirst(t *testing.T) {
	s := newStage(t, time.Minute)
	left := s.runner.buildPod(job{resource: offered})
	left.Labels[LabelBoot] = "another"
	s.server.AddPod(left)
	s.server.Linger(true)
	s.run()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, s.server.Wait(ctx, func() bool { p := s.server.Pod(key); return p != nil && p.DeletionTimestamp != nil }), "also when nothing is to be proven")
	s.server.OnPod(ended(corev1.PodSucceeded, 0, good(0)))
	s.prove(offered)
	s.server.Linger(false)
	s.server.Remove(key)
	require.Equal(t, check.Passed, s.waitForNews().Kind)
	require.Len(t, s.server.Pods(), 1)
}

func TestAnEndedPodStaysUntilTheNextRun(t *testing.T) {
	for _, keep := range []bool{true, false} {
		s := newStage(t, time.Minute)
		s.runner.Keep = keep
		s.server.AddPod(s.runner.buildPod(job{resource: offered}))
		s.server.Update(key, ended(corev1.PodFailed, 3, ""))
		before := s.server.Pod(key).UID
		s.runner.removeLeftover(t.Context(), slog.New(slog.DiscardHandler))
		require.Equal(t, keep, s.server.Pod(key) != nil, "its log is evidence")
		s.server.OnPod(ended(corev1.PodSucceeded, 0, good(0)))
		s.run()
		s.prove(offered)
		require.Equal(t, check.Passed, s.waitForNews().Kind)
		if keep {
			require.NotEqual(t, before, s.server.Pod(key).UID)
		} else {
			require.Empty(t, s.server.Pods())
		}
	}
}

func TestAForeignPodIsNotDeleted(t *testing.T) {
	s := newStage(t, time.Minute)
	s.server.AddPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "gpuready", Name: s.runner.podName()}})
	s.run()
	s.prove(offered)
	o := s.waitForNews()
	require.Equal(t, check.Passed, o.Kind)
	require.Contains(t, o.Notes[0], "is taken by another program")
	require.Len(t, s.server.Pods(), 1)
}

func TestWhereNoGPUIsFreeTheAccountsAreTheProof(t *testing.T) {
	s := newStage(t, overdue)
	o := s.prove("")
	require.Equal(t, check.Passed, o.Kind)
	require.True(t, o.Retry)
	require.Contains(t, o.Notes[0], "AllAllocated: every device is allocated to others")

	// Another pod was faster than ours.
	s.server.OnPod(func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "1 Insufficient nvidia.com/gpu"}}
	})
	s.run()
	s.prove(offered)
	<-s.runner.Updates()
	require.Equal(t, check.Passed, s.prove("").Kind)
}

func TestAPIServerFailuresAreNoRefusals(t *testing.T) {
	for name, fault := range map[string]kubetest.Fault{"forbidden": {Status: 403, Message: "denied by policy"}, "internal": {Status: 500, Message: "etcd"}} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, time.Minute)
			s.server.Fail(func(r *http.Request) *kubetest.Fault {
				if r.Method == http.MethodPost {
					return &fault
				}
				return nil
			})
			s.run()
			s.prove(offered)
			o := s.waitForNews()
			require.Equal(t, check.Passed, o.Kind)
			require.True(t, o.Retry, "tried again later")
			require.Contains(t, o.Notes[0], fault.Message)
			require.Contains(t, o.Notes[0], map[string]string{"forbidden": ": WorkloadForbidden: ", "internal": ": APIServerUnreachable: "}[name])
			s.server.Fail(nil)
			s.server.OnPod(ended(corev1.PodSucceeded, 0, good(0)))
			require.Equal(t, check.Passed, s.prove(offered).Kind)
			require.False(t, s.waitForNews().Retry)
		})
	}
	s := newStage(t, time.Minute)
	s.server.Stop()
	s.run()
	s.prove(offered)
	require.Regexp(t, `^not proven by a pod: APIServerUnreachable: .*connection refused.*; nothing, if the API server is away`, s.waitForNews().Notes[0])
	s.server.Restart()
}

func TestAPodIsRemovedWhenTheProcessEnds(t *testing.T) {
	s := newStage(t, time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.runner.Run(ctx) }()
	s.prove(offered)
	bounded, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	require.NoError(t, s.server.Wait(bounded, func() bool { return len(s.server.Pods()) == 1 }))
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.Empty(t, s.server.Pods())
}

func TestProveMayBeCalledConcurrently(t *testing.T) {
	s := newStage(t, time.Minute)
	s.server.OnPod(ended(corev1.PodSucceeded, 0, good(0)))
	s.run()
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() { s.prove(offered); s.runner.Forget() })
	}
	all.Wait()
	s.prove(offered)
	s.waitForNews()
}

func TestAWrappedRefusalIsRecognised(t *testing.T) {
	_, is := errors.AsType[*refused](fmt.Errorf("wrapped: %w", refuse(ReasonFailed, "m", "a")))
	require.True(t, is)
}

// Programs outside of Kubernetes use GPUs that the kubelet gives to pods.
func TestAPodThatIsGivenAGPUInUseHasNotFailed(t *testing.T) {
	for name, c := range map[string]struct {
		message, who string
		kind         check.Kind
	}{
		"somebody has it":          {fmt.Sprintf(`{"passed":false,"error":"out of memory","code":2,"uuid":%q,"devices":1}`, gputest.GPU(1)), "used by process 4711", check.Passed},
		"nobody has it":            {fmt.Sprintf(`{"passed":false,"error":"out of memory","code":2,"uuid":%q,"devices":1}`, gputest.GPU(1)), "", check.Failed},
		"another error":            {fmt.Sprintf(`{"passed":false,"error":"illegal address","code":700,"uuid":%q,"devices":1}`, gputest.GPU(1)), "used by process 4711", check.Failed},
		"an answer without a code": {`{"passed":false,"error":"element 7","devices":1}`, "used by process 4711", check.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, time.Minute)
			s.runner.FailedInUse = func(_ context.Context, d check.Driver, id gpu.UUID, code int) string {
				require.Equal(t, s.driver, d)
				require.Equal(t, gputest.GPU(1), id)
				require.Equal(t, 2, code)
				return c.who
			}
			s.server.OnPod(ended(corev1.PodFailed, 1, c.message))
			s.run()
			s.prove(offered)
			o := s.waitForNews()
			require.Equal(t, c.kind, o.Kind, "%+v", o.NotReady)
			if c.kind == check.Failed {
				require.Equal(t, ReasonFailed, o.NotReady.Reason)
				return
			}
			require.True(t, o.Retry)
			require.Contains(t, o.Notes[0], "not proven by a pod: GPUInUse: ")
			require.Contains(t, o.Notes[0], "out of memory: the GPU is in use: used by process 4711")
		})
	}
}
