package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// edit rewrites the device plugin's ConfigMap. The kubelet updates it in pods within about a
// minute, or at once when the pod changes.
func (s *Suite) edit(t *testing.T, files map[string]string) {
	t.Helper()
	s.WriteConfigMap(t, files)
	for _, p := range s.World.Pods(Namespace, "app="+pluginDaemonSet) {
		s.Kubectl(t, "-n", Namespace, "annotate", "pod", p.Name, "--overwrite", fmt.Sprintf("edited=%d", time.Now().UnixNano()))
	}
}

func sliced(replicas int) string {
	return fmt.Sprintf("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: %d}]}}", replicas)
}

// anEditedConfigMapIsServed checks that the same container serves it.
func anEditedConfigMapIsServed(t *testing.T, s *Suite) {
	before := s.plugin(t, "n1")
	s.edit(t, map[string]string{"config.yaml": sliced(3)})
	s.World.WaitAllResources(t, "n1", map[corev1.ResourceName]int64{GPU: 6, devGPU: 0})
	s.RequireFree(t, "n1", 2)
	s.requireUntouched(t, before)
}

// aBadConfigMapChangesNothing checks that the plugin's state reports the error.
func aBadConfigMapChangesNothing(t *testing.T, s *Suite) {
	before := s.plugin(t, "n1")
	s.edit(t, map[string]string{"config.yaml": "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 0}]}}"})
	s.World.Until(t, "the device plugin says what it refuses", func() error {
		st := s.State(t, "n1", nodestate.DevicePlugin)
		if st.Reason != "ConfigRefused" || !strings.Contains(st.Message, "sharing.timeSlicing.resources[0].replicas") {
			return fmt.Errorf("it says %s: %s", st.Reason, st.Message)
		}
		return nil
	})
	s.World.WaitAllocatable(t, 6, "n1")
	s.edit(t, map[string]string{"config.yaml": sliced(2)})
	s.World.WaitAllocatable(t, 4, "n1")
	s.requireUntouched(t, before)
}

// theNodesLabelChooses checks that the label selects a configuration in the ConfigMap.
func theNodesLabelChooses(t *testing.T, s *Suite) {
	const label = nodestate.ConfigLabel
	files := map[string]string{"default": "version: v1", "many": sliced(8)}
	s.WriteConfigMap(t, files)
	s.SetPlugin(t, "CONFIG_FILE-", "CONFIG_FILE_SRCDIR=/etc/gpuready")
	s.World.WaitAllocatable(t, 2, "n1")
	before := s.plugin(t, "n1")
	s.Kubectl(t, "label", "node", "n1", label+"=many")
	s.World.WaitAllocatable(t, 16, "n1")
	s.Kubectl(t, "label", "node", "n1", label+"=few", "--overwrite")
	s.World.Until(t, "the device plugin says that there is no such configuration", func() error {
		if st := s.State(t, "n1", nodestate.DevicePlugin); st.Reason != "ConfigRefused" || !strings.Contains(st.Message, `"few"`) {
			return fmt.Errorf("it says %s: %s", st.Reason, st.Message)
		}
		return nil
	})
	s.World.WaitAllocatable(t, 16, "n1")
	s.Kubectl(t, "label", "node", "n1", label+"-")
	s.World.WaitAllocatable(t, 2, "n1")
	s.requireUntouched(t, before)
}

// requireUntouched checks that a pod still exists unchanged.
func (s *Suite) requireUntouched(t *testing.T, before *corev1.Pod) {
	t.Helper()
	now := s.World.Pod(before.Namespace, before.Name)
	require.NoError(t, checkRunning(now))
	require.Equal(t, before.UID, now.UID)
	require.Equal(t, before.Status.ContainerStatuses[0].ContainerID, now.Status.ContainerStatuses[0].ContainerID)
}
