package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// aBrokenGPUIsTakenOutAndReported checks that an XID takes one GPU out of service, that the
// reason is reported everywhere, and that the GPU returns once it is healthy.
func aBrokenGPUIsTakenOutAndReported(t *testing.T, s *Suite) {
	const node = "n1"
	o := s.Occupy(t, node, 4) // all 8 GPUs, so that a pod holds the broken one
	victim := o.held["tenant-0"][0]
	s.Gpusim(t, node, "xid", "--gpu", victim, "--xid", "79")

	s.World.WaitAllocatable(t, 7, node)
	s.World.Until(t, "the pod's status shows its device as unhealthy", func() error {
		for _, c := range s.World.Pod("default", "tenant-0").Status.ContainerStatuses {
			for _, r := range c.AllocatedResourcesStatus {
				for _, d := range r.Resources {
					if strings.Contains(string(d.ResourceID), victim) && d.Health == corev1.ResourceHealthStatusUnhealthy {
						return nil
					}
				}
			}
		}
		return fmt.Errorf("%+v", s.World.Pod("default", "tenant-0").Status.ContainerStatuses)
	})
	s.World.Until(t, "the node's condition says which GPU and why", func() error {
		c := s.World.Condition(node, "GPUReady")
		if c == nil || !strings.Contains(c.Message, victim) || !strings.Contains(c.Message, "79") {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	s.World.Until(t, "an Event on the node says which GPU and why", func() error {
		for _, e := range s.World.Events("Node", node) {
			if e.Type == corev1.EventTypeWarning && e.Reason == "XID" && strings.Contains(e.Message, victim) {
				return nil
			}
		}
		return fmt.Errorf("there are %d Events on the node, none of them", len(s.World.Events("Node", node)))
	})

	// A reset: the GPU disappears and comes back.
	s.Gpusim(t, node, "lose", "--gpu", victim, "--how", "gone", "--xid=false")
	s.World.Until(t, "the device plugin has seen that the GPU is gone", func() error {
		state := s.State(t, node, nodestate.DevicePlugin)
		for _, f := range state.DevicePlugin.Faults {
			if string(f.GPU) == victim && f.Evidence == "reset" {
				return nil
			}
		}
		return fmt.Errorf("%+v", state.DevicePlugin.Faults)
	})
	s.Gpusim(t, node, "restore", "--gpu", victim)
	s.World.WaitAllocatable(t, 8, node)
	// The tenant still holds the GPU, which may be "not proven now" therefore.
	s.World.Until(t, "the condition says no more of the fault", func() error {
		if c := s.World.Condition(node, "GPUReady"); c == nil || c.Status != corev1.ConditionTrue || c.Reason != "Ready" || strings.Contains(c.Message, "XID") {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	require.NotEmpty(t, s.World.Events("Node", node))
}
