package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/test/lab/cluster"
)

// TestDevicePluginSharing shares a node's two GPUs among several pods, with a configuration
// that changes.
func TestDevicePluginSharing(t *testing.T) {
	t.Parallel()
	s := Up(t, cluster.Config{Nodes: 1})
	s.Apply(t, "gpuready.yaml")
	s.ConfigurePlugin(t, `
version: v1
sharing:
  timeSlicing:
    failRequestsGreaterThanOne: true
    resources:
    - {name: nvidia.com/gpu, rename: nvidia.com/gpu.dev, replicas: 4, devices: [0]}
`)
	s.Simulate(t, "t4", 2)
	s.World.WaitAllResources(t, "n1", map[corev1.ResourceName]int64{GPU: 1, devGPU: 4})
	s.play(t,
		scenario{"two pods share a GPU and both compute", twoPodsShareAGPU},
		scenario{"more than one part is refused with a reason", moreThanOnePartIsRefused},
		scenario{"parts run out", partsRunOut},
		scenario{"a ConfigMap that is edited is served by the same container", anEditedConfigMapIsServed},
		scenario{"a bad one changes nothing", aBadConfigMapChangesNothing},
		scenario{"the node's label chooses a configuration", theNodesLabelChooses},
	)
}

const devGPU corev1.ResourceName = "nvidia.com/gpu.dev"

// Simulate switches the driver to another machine profile than the manifest's.
func (s *Suite) Simulate(t *testing.T, profile string, gpus int) {
	t.Helper()
	manifest, err := os.ReadFile(filepath.Join(manifests, "simulated-driver.yaml"))
	require.NoError(t, err)
	const line = "GPUSIM_PROFILE: h100-sxm\n"
	require.Contains(t, string(manifest), line)
	s.ApplyText(t, strings.Replace(string(manifest), line, fmt.Sprintf("GPUSIM_PROFILE: %s\n  GPUSIM_GPUS: \"%d\"\n", profile, gpus), 1))
}

func twoPodsShareAGPU(t *testing.T, s *Suite) {
	var listed [2][]string
	for i := range listed {
		name := fmt.Sprintf("shares-%d", i)
		s.Run(t, Job{Name: name, GPUs: 1, Resource: devGPU, Command: busy})
		s.World.Until(t, name+" runs", func() error { return checkRunning(s.World.Pod("default", name)) })
		listed[i] = uuids(s.Kubectl(t, "exec", name, "--", "nvidia-smi", "-L"))
		require.Len(t, listed[i], 1)
		require.Contains(t, s.Kubectl(t, "exec", name, "--", "vectoradd"), "Test PASSED")
	}
	require.Equal(t, listed[0], listed[1])
	list, phase := s.Result(t, Job{Name: "alone", GPUs: 1, Command: []string{"nvidia-smi", "-L"}})
	require.Equal(t, corev1.PodSucceeded, phase, list)
	require.Len(t, uuids(list), 1)
	require.NotEqual(t, listed[0], uuids(list), "the other one is not shared")
}

// moreThanOnePartIsRefused checks that the pod's events show the reason.
func moreThanOnePartIsRefused(t *testing.T, s *Suite) {
	s.Run(t, Job{Name: "greedy", GPUs: 2, Resource: devGPU})
	s.World.Until(t, "the pod is refused", func() error {
		if p := s.World.Pod("default", "greedy"); p.Status.Reason != "UnexpectedAdmissionError" {
			return fmt.Errorf("it is %s: %s: %s", p.Status.Phase, p.Status.Reason, p.Status.Message)
		}
		return nil
	})
	s.World.Until(t, "an Event says why", func() error {
		for _, e := range s.World.Events("Pod", "greedy") {
			if e.Type == corev1.EventTypeWarning && strings.Contains(e.Message, "failRequestsGreaterThanOne") && strings.Contains(e.Message, string(devGPU)) {
				return nil
			}
		}
		return fmt.Errorf("%+v", s.World.Events("Pod", "greedy"))
	})
}

func partsRunOut(t *testing.T, s *Suite) {
	for i := range 4 {
		name := fmt.Sprintf("part-%d", i)
		s.Run(t, Job{Name: name, GPUs: 1, Resource: devGPU, Command: busy})
		s.World.Until(t, name+" runs", func() error { return checkRunning(s.World.Pod("default", name)) })
	}
	s.Run(t, Job{Name: "fifth", GPUs: 1, Resource: devGPU})
	s.World.Until(t, "the scheduler says that there are no more", func() error {
		for _, c := range s.World.Pod("default", "fifth").Status.Conditions {
			if c.Reason == corev1.PodReasonUnschedulable && strings.Contains(c.Message, "Insufficient "+string(devGPU)) {
				return nil
			}
		}
		return fmt.Errorf("%+v", s.World.Pod("default", "fifth").Status.Conditions)
	})
}
