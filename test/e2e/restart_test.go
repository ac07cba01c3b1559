package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// daemonsets are the DaemonSets, from the driver to the device plugin.
var daemonsets = []string{
	"nvidia-driver-daemonset", "nvidia-container-toolkit-daemonset", "nvidia-device-plugin-daemonset", "nvidia-operator-validator",
}

// TestRestarts ends and restarts everything on a node while pods use its GPUs.
func TestRestarts(t *testing.T) {
	t.Parallel()
	s := Up(t, cluster.Config{Nodes: 2, Images: NextImages(t)})
	s.Apply(t, "gpuready.yaml", "simulated-driver.yaml")
	s.World.WaitDaemonSets(t, Namespace, daemonsets...)
	s.World.WaitAllocatable(t, 8, "n1", "n2")
	s.play(t,
		scenario{"running pods outlive the kubelet", runningPodsOutliveTheKubelet},
		scenario{"running pods outlive the runtime", runningPodsOutliveTheRuntime},
		scenario{"a rebooted node is ready again", aRebootedNodeIsReadyAgain},
		scenario{"a rolling update disturbs nobody", aRollingUpdateDisturbsNobody},
		scenario{"DaemonSets are recreated in any order", daemonSetsAreRecreatedInAnyOrder},
	)
}

// runningPodsOutliveTheKubelet kills the kubelet, and checks that its allocations remain.
func runningPodsOutliveTheKubelet(t *testing.T, s *Suite) {
	o := s.Occupy(t, "n1", 3)
	before := s.State(t, o.node, nodestate.DevicePlugin).Time
	s.KillKubelet(t, o.node)
	s.World.Until(t, "the device plugin has registered anew", func() error {
		state := s.State(t, o.node, nodestate.DevicePlugin)
		if !state.Time.After(before) || !state.DevicePlugin.Registered {
			return fmt.Errorf("it says %+v", state)
		}
		return nil
	})
	s.World.WaitAllocatable(t, 8, o.node)
	s.RequireFree(t, o.node, 2)
	s.requireNoMoreThan(t, o.node, 2)
	o.RequireUndisturbed(t)
}

// runningPodsOutliveTheRuntime restarts containerd, and checks that our agents get the GPUs
// injected again when they are recreated afterwards.
func runningPodsOutliveTheRuntime(t *testing.T, s *Suite) {
	o := s.Occupy(t, "n1", 3)
	before := s.State(t, o.node, nodestate.Toolkit).Time
	s.RestartContainerd(t, o.node)
	s.World.Until(t, "the toolkit injects again", func() error {
		if state := s.State(t, o.node, nodestate.Toolkit); !state.Time.After(before) || !state.Toolkit.Injection.Working {
			return fmt.Errorf("%+v", state)
		}
		return nil
	})
	s.World.WaitAllocatable(t, 8, o.node)
	o.RequireUndisturbed(t)
	s.recreate(t, o.node, "nvidia-device-plugin-daemonset")
	s.World.WaitAllocatable(t, 8, o.node)
	o.RequireUndisturbed(t)
}

// aRebootedNodeIsReadyAgain ends all processes and clears /run. A taint keeps pods away until
// the node's GPUs are proven.
func aRebootedNodeIsReadyAgain(t *testing.T, s *Suite) {
	const node = "n2"
	s.Kubectl(t, "taint", "nodes", node, "nvidia.com/gpu-not-ready=:NoSchedule", "--overwrite")
	boot := s.World.Node(node).Status.NodeInfo.BootID
	s.Reboot(t, node)
	s.World.Until(t, "the node is back", func() error {
		if now := s.World.Node(node).Status.NodeInfo.BootID; now == boot {
			return fmt.Errorf("it says that it is of boot %s", now)
		}
		return nil
	})
	s.World.WaitAllocatable(t, 8, node)
	s.World.WaitDaemonSets(t, Namespace, daemonsets...)
	s.World.Until(t, "the startup taint is removed", func() error {
		for _, taint := range s.World.Node(node).Spec.Taints {
			if taint.Key == "nvidia.com/gpu-not-ready" {
				return fmt.Errorf("%+v", taint)
			}
		}
		return nil
	})
	s.RequireFree(t, node, 8)
}

// daemonSetsAreRecreatedInAnyOrder deletes and recreates each, in random orders; the seed is
// printed.
func daemonSetsAreRecreatedInAnyOrder(t *testing.T, s *Suite) {
	o := s.Occupy(t, "n1", 3)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	order := slices.Clone(daemonsets)
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, ds := range order {
		s.Kubectl(t, "-n", Namespace, "delete", "daemonset", ds, "--timeout=120s")
	}
	o.waitRunning(t)
	s.Apply(t, "simulated-driver.yaml", "gpuready.yaml")
	s.World.WaitDaemonSets(t, Namespace, daemonsets...)
	s.World.WaitAllocatable(t, 8, o.node, "n2")
	o.requireDistinct(t)
	s.RequireFree(t, o.node, 2)
	s.requireNoMoreThan(t, o.node, 2)
}

// aRollingUpdateDisturbsNobody changes the images of all DaemonSets at once.
func aRollingUpdateDisturbsNobody(t *testing.T, s *Suite) {
	o := s.Occupy(t, "n1", 3)
	for ds, image := range map[string]string{
		"nvidia-driver-daemonset": "driver-simulator", "nvidia-container-toolkit-daemonset": "toolkit",
		"nvidia-device-plugin-daemonset": "device-plugin", "nvidia-operator-validator": "validator",
	} {
		s.Kubectl(t, "-n", Namespace, "set", "image", "daemonset/"+ds, "*="+s.NextImage(image))
	}
	s.World.WaitDaemonSets(t, Namespace, daemonsets...)
	s.World.WaitAllocatable(t, 8, o.node, "n2")
	o.RequireUndisturbed(t)
	s.RequireFree(t, o.node, 2)
	for _, ds := range daemonsets {
		for _, p := range s.World.Pods(Namespace, "app="+ds) {
			for _, c := range p.Spec.Containers {
				require.Contains(t, c.Image, NextVersion(), p.Name)
			}
		}
	}
}

// requireNoMoreThan checks that no more GPUs than that are free.
func (s *Suite) requireNoMoreThan(t *testing.T, node string, free int64) {
	t.Helper()
	j := Job{Name: fmt.Sprintf("refused-%d", time.Now().UnixNano()%1e6), Node: node, GPUs: free + 1}
	s.Run(t, j)
	s.World.Until(t, "a pod that wants more than is free is refused", func() error {
		for _, c := range s.World.Pod("default", j.Name).Status.Conditions {
			if c.Reason == corev1.PodReasonUnschedulable && strings.Contains(c.Message, "Insufficient nvidia.com/gpu") {
				return nil
			}
		}
		return fmt.Errorf("%+v", s.World.Pod("default", j.Name).Status)
	})
}

// recreate deletes a DaemonSet's pod on a node and waits for the next one.
func (s *Suite) recreate(t *testing.T, node, daemonset string) {
	t.Helper()
	for _, p := range s.World.Pods(Namespace, "app="+daemonset) {
		if p.Spec.NodeName != node {
			continue
		}
		require.NoError(t, s.World.Client.CoreV1().Pods(Namespace).Delete(t.Context(), p.Name, metav1.DeleteOptions{}))
		s.World.Until(t, "pod "+p.Name+" is gone", func() error {
			if s.World.Pod(Namespace, p.Name) != nil {
				return fmt.Errorf("it is there")
			}
			return nil
		})
	}
	s.World.WaitDaemonSets(t, Namespace, daemonset)
}
