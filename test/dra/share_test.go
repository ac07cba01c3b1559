package dra

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/test/e2e"
)

// examplesAreAccepted has the API server check every example, and runs that of administrative access.
func (s *suite) examplesAreAccepted(t *testing.T) {
	for _, pattern := range []string{"claim*.yaml", "extended-resource*.yaml"} {
		files, err := filepath.Glob("../../deployments/static/examples/" + pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files)
		args := []string{"apply", "--dry-run=server"}
		for _, file := range files {
			if filepath.Base(file) != "claim-admin.yaml" { // its namespace is not there
				args = append(args, "-f", file)
			}
		}
		s.Kubectl(t, args...)
	}
	s.Apply(t, "examples/claim-admin.yaml")
	pod := s.World.WaitEnded(t, "gpuready-watch", "claim-admin")
	logs := s.Kubectl(t, "-n", "gpuready-watch", "logs", "claim-admin")
	require.Equal(t, corev1.PodSucceeded, pod.Status.Phase, logs)
	require.Equal(t, 8, strings.Count(logs, "UUID: GPU-"), logs)
	s.Delete(t, "examples/claim-admin.yaml")
}

// runShare starts a pod with a claim of that many shares.
func (s *suite) runShare(t *testing.T, name, shares string, command ...string) {
	t.Helper()
	s.ApplyText(t, fmt.Sprintf(`apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: { name: %s }
spec:
  devices:
    requests:
      - name: gpu
        exactly:
          deviceClassName: gpu.nvidia.com
          selectors: [ { cel: { expression: device.allowMultipleAllocations } } ]
          capacity: { requests: { shares: %q } }
`, name, shares))
	s.runPod(t, name, command...)
}

// twoPodsShareAGPU shares one of the GPUs among two pods; a third that wants it whole waits for both.
func (s *suite) twoPodsShareAGPU(t *testing.T) {
	s.ConfigurePlugin(t, "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, devices: [7], replicas: 2}]}}\n")
	until(t, "GPU 7 has two shares", func() error {
		d := s.devices(t)["gpu-7"]
		if shares := d.Capacity["shares"].Value; d.AllowMultipleAllocations == nil || shares.Value() != 2 {
			return fmt.Errorf("%+v", d)
		}
		return nil
	})
	uuid := *s.devices(t)["gpu-7"].Attributes["uuid"].StringValue
	for _, name := range []string{"share-a", "share-b"} {
		s.runShare(t, name, "1", busy...)
	}
	for _, name := range []string{"share-a", "share-b"} {
		s.waitRunning(t, name)
		require.Contains(t, s.Kubectl(t, "exec", name, "--", "nvidia-smi", "-L"), uuid)
	}
	text := s.ReadFile(t, node, record)
	require.Equal(t, 2, strings.Count(text, `"shareID":"`), text)
	s.runShare(t, "whole", "2", "vectoradd")
	s.waitUnschedulable(t, "whole")
	s.remove(t, "share-a")
	s.remove(t, "share-b")
	require.Equal(t, corev1.PodSucceeded, s.World.WaitEnded(t, "default", "whole").Status.Phase)
	s.remove(t, "whole")
}

// classicRequestsGetDevices runs pods that know nothing of claims.
func (s *suite) classicRequestsGetDevices(t *testing.T) {
	s.Apply(t, "examples/extended-resource.yaml", "examples/extended-resource-share.yaml")
	shared := *s.devices(t)["gpu-7"].Attributes["uuid"].StringValue
	for _, job := range []e2e.Job{{Name: "classic", GPUs: 2}, {Name: "classic-share", GPUs: 1, Resource: "nvidia.com/gpu.shared"}} {
		job.Command = []string{"nvidia-smi", "-L"}
		logs, phase := s.Result(t, job)
		require.Equal(t, corev1.PodSucceeded, phase, logs)
		require.EqualValues(t, job.GPUs, strings.Count(logs, "UUID: GPU-"), logs)
		require.Equal(t, job.Resource != "", strings.Contains(logs, shared), logs)
	}
	s.Delete(t, "examples/extended-resource-share.yaml")
	s.Apply(t, "dra-driver.yaml") // with the class as it was
}

// claimsShareByMPS has two pods use one GPU as clients of the node's control daemon.
func (s *suite) claimsShareByMPS(t *testing.T) {
	const text = "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, devices: [7], replicas: 2}]}}\n"
	s.ConfigurePlugin(t, text)
	s.Kubectl(t, "-n", e2e.Namespace, "rollout", "restart", "daemonset/nvidia-device-plugin-daemonset")
	until(t, "GPU 7 waits for a control daemon", func() error {
		if d := s.devices(t)["gpu-7"]; len(d.Taints) != 1 || d.Taints[0].Value != "MPSNotReady" {
			return fmt.Errorf("%+v", d.Taints)
		}
		return nil
	})
	s.Apply(t, "mps.yaml")
	s.waitDevices(t)
	for _, name := range []string{"mps-a", "mps-b"} {
		s.ApplyText(t, fmt.Sprintf(`apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: { name: %s }
spec:
  devices:
    requests: [ { name: gpu, exactly: { deviceClassName: gpu.nvidia.com, selectors: [ { cel: { expression: device.allowMultipleAllocations } } ] } } ]
    config:
      - requests: [ gpu ]
        opaque:
          driver: gpu.nvidia.com
          parameters: { apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: { strategy: MPS } }
`, name))
		s.runPod(t, name, busy...)
	}
	for _, name := range []string{"mps-a", "mps-b"} {
		s.waitRunning(t, name)
		response := s.Shell(t, t.TempDir(), "echo get_default_active_thread_percentage | kubectl exec -i "+name+" -- nvidia-cuda-mps-control")
		require.Equal(t, "50.0", strings.TrimSpace(response), "it is a client")
		require.Contains(t, s.Kubectl(t, "exec", name, "--", "vectoradd"), "Test PASSED")
	}
	s.remove(t, "mps-a")
	s.remove(t, "mps-b")
	s.Delete(t, "mps.yaml")
	s.ConfigurePlugin(t, "version: v1\n")
	s.Kubectl(t, "-n", e2e.Namespace, "rollout", "restart", "daemonset/nvidia-device-plugin-daemonset")
	until(t, "GPU 7 is whole again", func() error {
		if d := s.devices(t)["gpu-7"]; d.AllowMultipleAllocations != nil {
			return fmt.Errorf("%+v", d)
		}
		return nil
	})
	s.waitDevices(t)
}
