package dra

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/e2e"
)

// partitioned is the GPU that is put into MIG mode.
const partitioned = 7

// partitionsAreCreatedForClaims runs three pods on partitions of one GPU at the same time. The device
// plugin that creates them has no privilege but the capability mig/config.
func (s *suite) partitionsAreCreatedForClaims(t *testing.T) {
	s.Gpusim(t, node, "mig", "--gpu", fmt.Sprint(partitioned), "--on")
	s.Kubectl(t, "-n", e2e.Namespace, "set", "env", "daemonset/nvidia-device-plugin-daemonset", "GPU_MIG=dynamic")
	until(t, "the partitions are published", func() error {
		devices := s.devices(t)
		if d, found := devices["gpu-7-mig-3g40gb-9-4"]; !found || len(d.ConsumesCounters) == 0 || len(d.Taints) > 0 {
			return fmt.Errorf("%d devices, %+v", len(devices), d)
		}
		return nil
	})
	restarts := s.validatorRestarts(t)
	began := time.Now()
	pods := map[string]string{"small-1": "1g.10gb", "small-2": "1g.10gb", "large": "3g.40gb"}
	for name, profile := range pods {
		s.runMIGClaim(t, name, profile, busy...)
	}
	for name := range pods {
		s.waitRunning(t, name)
	}
	t.Logf("three pods run on partitions %v after they were created", time.Since(began).Round(time.Millisecond))
	require.Equal(t, []string{"1g.10gb", "1g.10gb", "3g.40gb"}, s.profiles(t))
	for name := range pods {
		until(t, name+" has computed", func() error {
			if logs := s.Kubectl(t, "logs", name); !strings.Contains(logs, "Copy output data from the CUDA device") {
				return fmt.Errorf("%s", logs)
			}
			return nil
		})
		require.Equal(t, corev1.PodRunning, s.World.Pod("default", name).Status.Phase)
	}
	s.runMIGClaim(t, "whole", "7g.80gb", "vectoradd")
	s.World.Until(t, "the scheduler does not place a pod that wants all of it", func() error {
		if p := s.World.Pod("default", "whole"); p == nil || !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
		}) {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	for name := range pods {
		s.remove(t, name)
	}
	require.Equal(t, corev1.PodSucceeded, s.World.WaitEnded(t, "default", "whole").Status.Phase, "it has got it")
	s.remove(t, "whole")
	until(t, "no partition is left", func() error {
		if left := s.profiles(t); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
	t.Log(s.partitionLog(t))
	require.Equal(t, restarts, s.validatorRestarts(t), "the validator does not mind partitions that come and go")
}

// partitionsEnd makes the GPU a whole one again.
func (s *suite) partitionsEnd(t *testing.T) {
	s.Gpusim(t, node, "mig", "--gpu", fmt.Sprint(partitioned), "--off")
	s.Kubectl(t, "-n", e2e.Namespace, "set", "env", "daemonset/nvidia-device-plugin-daemonset", "GPU_MIG-")
	s.waitDevices(t)
	until(t, "one slice is left", func() error {
		list, err := s.World.Client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) != 1 {
			err = fmt.Errorf("%d slices", len(list.Items))
		}
		return err
	})
}

// validatorRestarts returns the pod of the validator and how often it was started again. It is first
// started again for what the toolkit injects since the GPU is in MIG mode.
func (s *suite) validatorRestarts(t *testing.T) (restarts string) {
	t.Helper()
	until(t, "the validator is ready", func() error {
		for _, p := range s.World.Pods(e2e.Namespace, "app=nvidia-operator-validator") {
			for _, c := range p.Status.ContainerStatuses {
				if c.Ready {
					restarts = fmt.Sprint(p.Name, ": ", c.RestartCount)
					return nil
				}
			}
		}
		return fmt.Errorf("it is not")
	})
	return restarts
}

// profiles returns the profiles of the MIG devices that exist on the GPU, by the driver.
func (s *suite) profiles(t *testing.T) (all []string) {
	t.Helper()
	for line := range strings.SplitSeq(s.Gpusim(t, node, "status"), "\n") {
		for field := range strings.FieldsSeq(line) {
			if strings.HasPrefix(field, "1g.") || strings.HasPrefix(field, "3g.") || strings.HasPrefix(field, "7g.") {
				all = append(all, field)
			}
		}
	}
	slices.Sort(all)
	return all
}

// partitionLog returns how long each step took, by the logs.
func (s *suite) partitionLog(t *testing.T) string {
	t.Helper()
	var lines []string
	for _, set := range []string{"gpu-dra-driver", "nvidia-device-plugin-daemonset"} {
		for line := range strings.SplitSeq(s.Kubectl(t, "-n", e2e.Namespace, "logs", "daemonset/"+set), "\n") {
			if strings.Contains(line, "partition created") || strings.Contains(line, "partition destroyed") || strings.Contains(line, "MIG layout") || strings.Contains(line, "claim done") {
				lines = append(lines, line)
			}
		}
	}
	require.NotEmpty(t, lines)
	require.Equal(t, nodestate.Ready, s.State(t, node, nodestate.DevicePlugin).Phase, "partitions that come and go are no fault")
	return strings.Join(lines, "\n")
}

// runMIGClaim starts a pod with a claim of a MIG device of a profile.
func (s *suite) runMIGClaim(t *testing.T, name, profile string, command ...string) {
	t.Helper()
	s.ApplyText(t, fmt.Sprintf(`apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: { name: %[1]s }
spec:
  devices:
    requests:
      - name: gpu
        exactly:
          deviceClassName: mig.nvidia.com
          selectors: [ { cel: { expression: "device.attributes['gpu.nvidia.com'].profile == '%[2]s'" } } ]
`, name, profile))
	s.runPod(t, name, command...)
}
