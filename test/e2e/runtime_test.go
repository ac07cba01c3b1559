package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// TestRuntimeWithoutCDI uses a node whose containerd does not read our CDI specifications. No
// GPU may be offered that a pod could not get. The node must report what to change, and nothing
// may change it automatically.
func TestRuntimeWithoutCDI(t *testing.T) {
	t.Parallel()
	s := Up(t, cluster.Config{Nodes: 1, WithoutCDI: true})
	before := s.ReadFile(t, "n1", "/etc/containerd/config.toml")
	s.Apply(t, "gpuready.yaml")
	s.World.WaitDaemonSets(t, Namespace, daemonsets[1:]...)
	s.Apply(t, "simulated-driver.yaml")
	s.World.Until(t, "the toolkit says what to change", func() error {
		state := s.State(t, "n1", nodestate.Toolkit)
		if state.Reason != "CDIDirectory" || !strings.Contains(state.Message, "cdi_spec_dirs = ") || !strings.Contains(state.Message, "io.containerd.cri.v1.runtime") {
			return fmt.Errorf("it says %s: %s", state.Reason, state.Message)
		}
		return nil
	})
	s.World.Until(t, "the node's condition says it too", func() error {
		c := s.World.Condition("n1", "GPUReady")
		if c == nil || c.Status != corev1.ConditionFalse || !strings.Contains(c.Message, "cdi_spec_dirs = ") {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	s.World.WaitAllocatable(t, 0, "n1")
	require.Equal(t, before, s.ReadFile(t, "n1", "/etc/containerd/config.toml"))
}
