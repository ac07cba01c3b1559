package e2e

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

const validation = "gpuready-validation"

// theValidationJobPassesOnAGoodNode checks that it passes and reports a simulated GPU.
func theValidationJobPassesOnAGoodNode(t *testing.T, s *Suite) {
	s.Apply(t, "validation-job.yaml")
	s.waitJob(t, batchv1.JobComplete)
	require.Contains(t, s.Kubectl(t, "-n", Namespace, "logs", "job/"+validation), "SIMULATED")
	s.Delete(t, "validation-job.yaml")
}

// theValidationJobFailsWithAReasonOnABadOne sticks a bit of each GPU's memory. No counter
// reports that, so only a computation finds it.
func theValidationJobFailsWithAReasonOnABadOne(t *testing.T, s *Suite) {
	const node, other = "n1", "n2"
	s.Kubectl(t, "cordon", other)
	for gpu := range 8 {
		s.Gpusim(t, node, "memfault", "--gpu", strconv.Itoa(gpu), "--kind", "stuck", "--bit", "30")
	}
	s.Apply(t, "validation-job.yaml")
	s.waitJob(t, batchv1.JobFailed)
	var output string
	for _, p := range s.World.Pods(Namespace, "app="+validation) {
		for _, c := range p.Status.ContainerStatuses {
			if end := c.State.Terminated; end != nil {
				require.EqualValues(t, 12, end.ExitCode)
				output = end.Message
			}
		}
	}
	require.Contains(t, output, "cuda: ")
	require.Contains(t, output, "is wrong: expected")
	s.Delete(t, "validation-job.yaml")
	for gpu := range 8 {
		s.Gpusim(t, node, "memfault", "--gpu", strconv.Itoa(gpu), "--kind", "none")
	}
	s.Kubectl(t, "uncordon", other)
}

func (s *Suite) waitJob(t *testing.T, kind batchv1.JobConditionType) {
	t.Helper()
	s.World.Until(t, fmt.Sprintf("Job %s is %s", validation, kind), func() error {
		job, err := s.World.factory.Batch().V1().Jobs().Lister().Jobs(Namespace).Get(validation)
		if err != nil {
			return err
		}
		for _, c := range job.Status.Conditions {
			if c.Type == kind && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("it is %+v", job.Status.Conditions)
	})
}
