package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// withoutCDI is the version of Kubernetes whose kubelet is run as kubelets before 1.29 are: it drops
// the CDI names of device plugins. Its own API server still knows everything that the manifests use.
const withoutCDI = "1.30"

// TestKubernetesVersion brings GPUs up on a control plane and a kubelet of one version of Kubernetes.
func TestKubernetesVersion(t *testing.T) {
	version := os.Getenv(kubernetesVariable)
	if version == "" {
		t.Skipf("%s is not set: make e2e-versions runs this", kubernetesVariable)
	}
	c := cluster.Config{Nodes: 1}
	if version == withoutCDI {
		c.Gates = "DevicePluginCDIDevices: false"
	}
	s := Up(t, c)
	kubelet := s.World.Node("n1").Status.NodeInfo.KubeletVersion
	require.True(t, strings.HasPrefix(kubelet, "v"+version+"."), "the kubelet is %s", kubelet)
	s.Apply(t, "gpuready.yaml", "simulated-driver.yaml")
	if version == withoutCDI {
		s.play(t, scenario{"the validator finds that the kubelet drops CDI names", theKubeletDropsCDINames})
	}
	s.World.WaitDaemonSets(t, Namespace, daemonsets...)
	s.World.WaitAllocatable(t, 8, "n1")
	s.play(t,
		scenario{"the node is proven", theNodeIsProven},
		scenario{"a pod gets exactly the GPUs it requests", aPodGetsExactlyTheGPUsItRequests},
		scenario{"running pods outlive the kubelet", runningPodsOutliveTheKubelet},
		scenario{"a lost GPU is taken out", aLostGPUIsTakenOut},
	)
}

// theNodeIsProven waits for the condition that the validator sets after its last proof.
func theNodeIsProven(t *testing.T, s *Suite) {
	s.World.Until(t, "driver, toolkit, cuda and plugin are proven", func() error {
		if c := s.World.Condition("n1", "GPUReady"); c == nil || c.Status != corev1.ConditionTrue {
			return fmt.Errorf("GPUReady is %+v", c)
		}
		return nil
	})
}

// theKubeletDropsCDINames checks that the plugin is not proven while the device plugin hands out CDI
// names, and selects the documented strategy, annotations for the runtime.
func theKubeletDropsCDINames(t *testing.T, s *Suite) {
	s.World.Until(t, "the node's condition says that no GPU reaches a pod", func() error {
		if c := s.World.Condition("n1", "GPUReady"); c == nil || c.Status != corev1.ConditionFalse || !strings.Contains(c.Message, "plugin") {
			return fmt.Errorf("GPUReady is %+v", c)
		}
		return nil
	})
	t.Log(s.World.Condition("n1", "GPUReady").Message)
	s.Kubectl(t, "-n", Namespace, "set", "env", "daemonset/nvidia-device-plugin-daemonset", "DEVICE_LIST_STRATEGY=cdi-annotations")
}

// aLostGPUIsTakenOut breaks a GPU that no pod holds.
func aLostGPUIsTakenOut(t *testing.T, s *Suite) {
	out, phase := s.Result(t, Job{Name: "names-a-gpu", GPUs: 1, Command: []string{"nvidia-smi", "-L"}})
	require.Equal(t, corev1.PodSucceeded, phase, out)
	require.Len(t, uuids(out), 1, out)
	victim := uuids(out)[0]
	s.Gpusim(t, "n1", "xid", "--gpu", victim, "--xid", "79")
	s.World.WaitAllocatable(t, 7, "n1")
	faults := s.State(t, "n1", nodestate.DevicePlugin).DevicePlugin.Faults
	require.Len(t, faults, 1)
	require.Equal(t, victim, string(faults[0].GPU))
}
