package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The validation pods that stay for people to read.
const (
	driverValidation = "nvidia-driver-validation"
	pluginValidation = "nvidia-device-plugin-validation"
)

// proofPodsStayReadable checks the two completed pods of each node, whose logs are vectorAdd's.
// They hold no GPU, and another validation recreates them.
func proofPodsStayReadable(t *testing.T, s *Suite) {
	for _, node := range []string{"n1", "n2"} {
		s.waitCompleted(t, pluginValidation, node, "")
		s.waitCompleted(t, driverValidation, node, "")
		output := s.Kubectl(t, "-n", Namespace, "logs", pluginValidation+"-"+node)
		require.Equal(t, `[Vector addition of 50000 elements]
Copy input data from the host memory to the CUDA device
CUDA kernel launch with 196 blocks of 256 threads
Copy output data from the CUDA device to the host memory
Test PASSED (SIMULATED)
Done
`, output)
		all := s.Kubectl(t, "-n", Namespace, "logs", driverValidation+"-"+node)
		require.Equal(t, 8, strings.Count(all, output), all)
		require.Contains(t, all, "GPU 7 (GPU-")
	}
	list, phase := s.Result(t, Job{Name: "takes-all", Node: "n1", GPUs: 8, Command: []string{"nvidia-smi", "-L"}})
	require.Equal(t, corev1.PodSucceeded, phase, list)
	require.Len(t, uuids(list), 8, "what has ended holds none: %s", list)

	before := map[string]types.UID{}
	for _, app := range []string{pluginValidation, driverValidation} {
		before[app] = s.World.Pod(Namespace, app+"-n1").UID
	}
	for _, p := range s.World.Pods(Namespace, "app=nvidia-operator-validator") {
		if p.Spec.NodeName == "n1" {
			s.Kubectl(t, "-n", Namespace, "delete", "--wait=false", "pod", p.Name)
		}
	}
	for app, uid := range before {
		s.waitCompleted(t, app, "n1", uid)
	}
}

// waitCompleted waits until a node's new validation pod, other than the given one, has completed.
func (s *Suite) waitCompleted(t *testing.T, app, node string, before types.UID) {
	t.Helper()
	name := app + "-" + node
	s.World.Until(t, name+" has completed", func() error {
		switch p := s.World.Pod(Namespace, name); {
		case p == nil:
			return fmt.Errorf("there is none")
		case p.UID == before:
			return fmt.Errorf("it is that of the validator before")
		case p.Status.Phase != corev1.PodSucceeded:
			return fmt.Errorf("it is %s: %+v", p.Status.Phase, p.Status.ContainerStatuses)
		case p.Labels["app"] != app:
			return fmt.Errorf("its labels are %v", p.Labels)
		}
		return nil
	})
}
