package operator

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/test/lab/cluster"
)

// TestDRADriver enables the DRA driver in a policy, has a node serve claims, and takes it back.
func TestDRADriver(t *testing.T) {
	t.Parallel()
	s := up(t, cluster.Config{Nodes: 1})
	args := append([]string{"install", "gpuready", chart(), "--set", "nfd.enabled=false", "--namespace", namespace, "--create-namespace", "--wait", "--timeout", "3m"}, simulated...)
	s.helm(t, args...)
	s.Kubectl(t, "label", "node", "n1", "nvidia.com/gpu.present=true")
	s.proven(t)
	s.play(t,
		scenario{"ThePolicyTurnsItOn", plain((*suite).draTurnedOn)},
		scenario{"AClaimGetsAGPU", plain((*suite).claimGetsAGPU)},
		scenario{"AlertsNameWhatIsShown", plain((*suite).draMetricsAreShown)},
		scenario{"ThePolicyTurnsItOff", plain((*suite).draTurnedOff)},
	)
}

// offered returns how many devices the node has for claims, and of the device plugin's resource.
func (s *suite) offered(t *testing.T) (devices int, gpus int64) {
	t.Helper()
	slices, err := s.World.Client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, one := range slices.Items {
		devices += len(one.Spec.Devices)
	}
	return devices, s.World.Allocatable("n1")
}

// change merges a change into the policy.
func (s *suite) change(t *testing.T, spec string) {
	t.Helper()
	s.Kubectl(t, "patch", "clusterpolicy", policy, "--type=merge", "-p", `{"spec":`+spec+`}`)
}

func (s *suite) draTurnedOn(t *testing.T) {
	s.change(t, `{"draDriver":{"enabled":true,"serve":"dra"},"devicePlugin":{"env":[{"name":"GPU_SERVE","value":"dra"}]}}`)
	s.until(t, "the node serves claims, and the policy says so", func() error {
		if devices, gpus := s.offered(t); devices != 8 || gpus != 0 {
			return fmt.Errorf("%d devices, %d GPUs of the device plugin", devices, gpus)
		}
		if label := s.World.Node("n1").Labels["nvidia.com/gpu.serve"]; label != "dra" {
			return fmt.Errorf("the label is %q", label)
		}
		return s.condition(t, policy, "Progressing", "False", "Settled")
	})
	labels := s.World.Node("n1").Labels
	require.Equal(t, []string{"8", "hopper"}, []string{labels["nvidia.com/gpu.count"], labels["nvidia.com/gpu.family"]}, "the labels of the GPUs stay")
	out, err := s.run(t, "kubectl-gpu", "status")
	require.NoError(t, err, out)
	require.Contains(t, out, "GPUs by ResourceClaims (DRA): 1 of 1 nodes that follow the policy\n")
	out, err = s.run(t, "kubectl-gpu", "explain", "n1")
	require.NoError(t, err, out)
	require.Contains(t, out, "offered as ResourceSlices by gpu-dra-driver: 8 devices, 0 with a taint")
	s.until(t, "an Event of the node says so", func() error {
		if out := s.Kubectl(t, "get", "events", "--field-selector=reason=GPUServe"); !strings.Contains(out, "by ResourceClaims from now on") {
			return errors.New(out)
		}
		return nil
	})
}

// draMetricsAreShown checks the metrics of alerts and dashboard that only a cluster with a DRA driver has.
func (s *suite) draMetricsAreShown(t *testing.T) {
	driver, operator := s.scrape(t, "app=gpu-dra-driver"), s.scrape(t, "app=gpuready-operator")
	require.Empty(t, driver.lacks("gpuready_dra_devices", `tainted="true"`))
	require.Empty(t, driver.lacks("gpuready_dra_claims_total", `operation="prepare",outcome="error"`))
	require.Empty(t, driver.lacks("gpuready_dra_background_errors_total", ""))
	for _, state := range []string{"plugin", "dra", "changing", "person"} {
		require.Empty(t, operator.lacks("gpuready_operator_serve_nodes", `state="`+state+`"`))
	}
}

func (s *suite) claimGetsAGPU(t *testing.T) {
	s.Apply(t, "examples/claim.yaml")
	pod := s.World.WaitEnded(t, "default", "claim")
	logs := s.Kubectl(t, "logs", "claim")
	require.Equal(t, corev1.PodSucceeded, pod.Status.Phase, logs)
	require.Contains(t, logs, "Test PASSED (SIMULATED)")
	s.Delete(t, "examples/claim.yaml")
}

func (s *suite) draTurnedOff(t *testing.T) {
	s.change(t, `{"draDriver":{"enabled":false,"serve":null},"devicePlugin":{"env":null}}`)
	s.until(t, "the device plugin serves the node, and nothing of the DRA driver is left", func() error {
		if devices, gpus := s.offered(t); devices != 0 || gpus != 8 {
			return fmt.Errorf("%d devices, %d GPUs of the device plugin", devices, gpus)
		}
		for _, label := range []string{"nvidia.com/gpu.serve", "nvidia.com/gpu.deploy.dra-driver"} {
			if value, is := s.World.Node("n1").Labels[label]; is {
				return fmt.Errorf("the node has the label %s=%s", label, value)
			}
		}
		if pods := s.World.Pods(namespace, "app=gpu-dra-driver"); len(pods) > 0 {
			return errors.New("the DRA driver's pod is there")
		}
		for _, name := range []string{"gpu.nvidia.com", "mig.nvidia.com"} {
			if _, err := s.World.Client.ResourceV1().DeviceClasses().Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("DeviceClass %s: %w", name, err)
			}
		}
		return nil
	})
	s.proven(t)
}
