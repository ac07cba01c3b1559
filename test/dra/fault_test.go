package dra

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/e2e"
)

const (
	driverApp = "app=gpu-dra-driver"
	record    = "/var/lib/kubelet/plugins/gpu.nvidia.com/checkpoint.json"
	// killsVariable sets the number of random kills; see dra.mk.
	killsVariable = "GPUREADY_KILLS"
)

// rollout changes the driver's DaemonSet and waits until the new pods run alone.
func (s *suite) rollout(t *testing.T, change ...string) {
	t.Helper()
	s.Kubectl(t, append([]string{"-n", e2e.Namespace}, change...)...)
	s.Kubectl(t, "-n", e2e.Namespace, "rollout", "status", "daemonset/gpu-dra-driver", "--timeout=60s")
	s.World.Until(t, "one driver is left", func() error {
		if pods := s.World.Pods(e2e.Namespace, driverApp); len(pods) != 1 {
			return fmt.Errorf("%d pods", len(pods))
		}
		return nil
	})
}

// anUpdateKeepsClaims updates the driver under a pod with a claim, while others come and go.
func (s *suite) anUpdateKeepsClaims(t *testing.T) {
	s.runClaim(t, "stays", "", busy...)
	s.waitRunning(t, "stays")
	s.rollout(t, "rollout", "restart", "daemonset/gpu-dra-driver")
	s.waitDevices(t)
	s.runClaim(t, "after-update", "", "vectoradd")
	require.Equal(t, corev1.PodSucceeded, s.World.WaitEnded(t, "default", "after-update").Status.Phase)
	s.remove(t, "after-update")
	require.Zero(t, s.World.Pod("default", "stays").Status.ContainerStatuses[0].RestartCount)
	s.remove(t, "stays")
	sockets, err := s.Node(node).Exec(t.Context(), "sh", "-c", "ls /var/lib/kubelet/plugins/gpu.nvidia.com/*.sock /var/lib/kubelet/plugins_registry/gpu.nvidia.com*")
	require.NoError(t, err)
	require.Len(t, strings.Fields(string(sockets)), 2, "of the new driver alone: %s", sockets)
}

// aChosenFaultEvicts has a pod evicted from a GPU with an XID that the driver's flag names.
func (s *suite) aChosenFaultEvicts(t *testing.T) {
	s.rollout(t, "set", "env", "daemonset/gpu-dra-driver", "EVICT=79")
	uuid := *s.devices(t)["gpu-4"].Attributes["uuid"].StringValue
	s.runClaim(t, "evicted", uuid, busy...)
	s.runClaim(t, "neighbour", *s.devices(t)["gpu-5"].Attributes["uuid"].StringValue, busy...)
	s.waitRunning(t, "evicted")
	s.waitRunning(t, "neighbour")
	s.Gpusim(t, node, "xid", "--gpu", "4", "--xid", "79")
	s.World.Until(t, "the pod is evicted", func() error {
		if p := s.World.Pod("default", "evicted"); p != nil && p.DeletionTimestamp == nil {
			return fmt.Errorf("%s", p.Status.Phase)
		}
		return nil
	})
	require.Equal(t, resourceapi.DeviceTaintEffectNoExecute, s.devices(t)["gpu-4"].Taints[0].Effect)
	require.Nil(t, s.World.Pod("default", "neighbour").DeletionTimestamp)
	s.remove(t, "neighbour")
	s.Kubectl(t, "delete", "resourceclaim/evicted", "--timeout=60s")
	s.resetGPU(t, "4", uuid)
	s.rollout(t, "set", "env", "daemonset/gpu-dra-driver", "EVICT-")
}

// resetGPU removes a GPU and brings it back: the evidence of a reset.
func (s *suite) resetGPU(t *testing.T, index, uuid string) {
	t.Helper()
	s.Gpusim(t, node, "lose", "--gpu", index, "--how", "gone", "--xid=false")
	until(t, "the device plugin has seen that the GPU is gone", func() error {
		state := s.State(t, node, nodestate.DevicePlugin)
		for _, f := range state.DevicePlugin.Faults {
			if string(f.GPU) == uuid && f.Evidence == nodestate.EvidenceReset {
				return nil
			}
		}
		return fmt.Errorf("%+v", state.DevicePlugin.Faults)
	})
	s.Gpusim(t, node, "restore", "--gpu", uuid)
	s.waitDevices(t)
}

// countOr returns the number in an environment variable, or another if it is not set.
func countOr(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, variable)
	return n
}

// killsLoseNothing kills the driver and the kubelet at random times while claims come and go.
func (s *suite) killsLoseNothing(t *testing.T) {
	kills := countOr(t, killsVariable, 4)
	s.ApplyText(t, claimTemplate)
	l := &load{suite: s, born: map[string]time.Time{}, claimsOnly: true}
	for range kills {
		for end := time.Now().Add(time.Duration(rand.IntN(3000)) * time.Millisecond); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
			l.tick(t)
			s.requireNoneTwice(t, node)
		}
		if rand.IntN(2) == 0 {
			s.KillKubelet(t, node)
			continue
		}
		_, _ = s.Node(node).Exec(t.Context(), "sh", "-c", "kill -9 $(pidof gpu-dra-driver)") // it may be down
	}
	s.Kubectl(t, "delete", "pods", "-l", "load", "--timeout=90s")
	s.waitDevices(t)
	until(t, "nothing is prepared any more", func() error {
		if text := s.ReadFile(t, node, record); !strings.Contains(text, `"claims":[]`) {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
	t.Logf("%d kills, %d pods", kills, l.count)
	s.runClaim(t, "after-kills", "", "vectoradd")
	require.Equal(t, corev1.PodSucceeded, s.World.WaitEnded(t, "default", "after-kills").Status.Phase)
	s.remove(t, "after-kills")
}
