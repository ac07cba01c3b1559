package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

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
