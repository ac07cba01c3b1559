package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// busy is the vectorAdd job, repeated for as long as the pod lives.
var busy = []string{"vectoradd", "--for", "1h", "--every", "1s", "--elements", "1000"}

// aPodGetsExactlyTheGPUsItRequests requests 2 GPUs, and checks that 2 are visible and compute.
func aPodGetsExactlyTheGPUsItRequests(t *testing.T, s *Suite) {
	listed, phase := s.Result(t, Job{Name: "lists-two", GPUs: 2, Command: []string{"nvidia-smi", "-L"}})
	require.Equal(t, corev1.PodSucceeded, phase, listed)
	require.Len(t, uuids(listed), 2, listed)

	output, phase := s.Result(t, Job{Name: "adds", GPUs: 2})
	require.Equal(t, corev1.PodSucceeded, phase, output)
	require.Contains(t, output, "Test PASSED (SIMULATED)\n")
}

// theExamplesRun runs the examples that need no third-party image.
func theExamplesRun(t *testing.T, s *Suite) {
	s.Apply(t, "examples/vectoradd.yaml", "examples/two-gpus.yaml")
	pod := s.World.WaitEnded(t, "default", "vectoradd")
	require.Equal(t, corev1.PodSucceeded, pod.Status.Phase)
	require.Contains(t, s.Kubectl(t, "logs", "vectoradd"), "Test PASSED")
	s.Kubectl(t, "wait", "--for=condition=complete", "--timeout=120s", "job/two-gpus")
	s.Delete(t, "examples/vectoradd.yaml", "examples/two-gpus.yaml")
}

// tooManyGPUsStayPending checks the scheduler's reason.
func tooManyGPUsStayPending(t *testing.T, s *Suite) {
	s.Run(t, Job{Name: "wants-nine", GPUs: 9})
	s.World.Until(t, "the scheduler has said why wants-nine does not run", func() error {
		for _, c := range s.World.Pod("default", "wants-nine").Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable && strings.Contains(c.Message, "Insufficient nvidia.com/gpu") {
				return nil
			}
		}
		return fmt.Errorf("%+v", s.World.Pod("default", "wants-nine").Status.Conditions)
	})
}

// aPodWithoutGPUsSeesNone checks that it has neither device nodes nor libraries.
func aPodWithoutGPUsSeesNone(t *testing.T, s *Suite) {
	output, phase := s.Result(t, Job{Name: "adds-without"})
	require.Equal(t, corev1.PodFailed, phase, output)
	require.Contains(t, output, "libcuda.so.1")

	s.Run(t, Job{Name: "lists-without", Command: []string{"nvidia-smi", "-L"}})
	s.World.Until(t, "nvidia-smi is not found without a GPU", func() error {
		for _, c := range s.World.Pod("default", "lists-without").Status.ContainerStatuses {
			if end := c.State.Terminated; end != nil && strings.Contains(end.Message, "nvidia-smi") {
				return nil
			}
		}
		return fmt.Errorf("%+v", s.World.Pod("default", "lists-without").Status.ContainerStatuses)
	})
}

var uuid = regexp.MustCompile(`UUID: (GPU-[0-9a-f-]+)`)

// uuids returns the UUIDs of the GPUs that nvidia-smi -L lists.
func uuids(list string) []string {
	var ids []string
	for _, m := range uuid.FindAllStringSubmatch(list, -1) {
		ids = append(ids, m[1])
	}
	return ids
}

// tenants are pods that keep their GPUs busy during an event on their node.
type tenants struct {
	s    *Suite
	node string
	jobs []Job
	held map[string][]string // GPUs by pod
}

// occupy fills a node with pods of 2 GPUs.
func occupy(t *testing.T, s *Suite, node string, pods int) *tenants {
	t.Helper()
	o := &tenants{s: s, node: node, held: map[string][]string{}}
	for i := range pods {
		j := Job{Name: fmt.Sprintf("tenant-%d", i), Node: node, GPUs: 2, Command: busy}
		s.Run(t, j)
		o.jobs = append(o.jobs, j)
	}
	o.waitRunning(t)
	for _, j := range o.jobs {
		o.held[j.Name] = o.visibleGPUs(t, j.Name)
	}
	o.requireDistinct(t)
	return o
}

func (o *tenants) waitRunning(t *testing.T) {
	t.Helper()
	for _, j := range o.jobs {
		o.s.World.Until(t, "pod "+j.Name+" runs", func() error { return checkRunning(o.s.World.Pod("default", j.Name)) })
	}
}

func checkRunning(pod *corev1.Pod) error {
	switch {
	case pod == nil:
		return fmt.Errorf("there is no such pod")
	case pod.Status.Phase != corev1.PodRunning || len(pod.Status.ContainerStatuses) == 0 || !pod.Status.ContainerStatuses[0].Ready:
		return fmt.Errorf("it is %s: %s", pod.Status.Phase, pod.Status.Message)
	}
	return nil
}

func (o *tenants) visibleGPUs(t *testing.T, pod string) []string {
	t.Helper()
	var list string
	o.s.World.Until(t, "nvidia-smi answers in pod "+pod, func() (err error) {
		// A restarted kubelet does not know its pods for a moment.
		if list, err = o.s.kubectl(t, "exec", pod, "--", "nvidia-smi", "-L"); err != nil {
			return fmt.Errorf("%w: %s", err, list)
		}
		return nil
	})
	return uuids(list)
}

// requireDistinct checks that no GPU is assigned twice.
func (o *tenants) requireDistinct(t *testing.T) {
	t.Helper()
	owner := map[string]string{}
	for _, j := range o.jobs {
		ids := o.visibleGPUs(t, j.Name)
		require.Lenf(t, ids, 2, "pod %s", j.Name)
		for _, id := range ids {
			require.Emptyf(t, owner[id], "%s is given to %s and to %s", id, owner[id], j.Name)
			owner[id] = j.Name
		}
	}
}

// requireUndisturbed checks that the same pods still run, were not restarted, and hold the same GPUs.
func (o *tenants) requireUndisturbed(t *testing.T) {
	t.Helper()
	o.waitRunning(t)
	for _, j := range o.jobs {
		require.Zerof(t, o.s.World.Pod("default", j.Name).Status.ContainerStatuses[0].RestartCount, "pod %s was restarted", j.Name)
		require.Equalf(t, o.held[j.Name], o.visibleGPUs(t, j.Name), "pod %s", j.Name)
	}
	o.requireDistinct(t)
}
