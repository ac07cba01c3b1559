// Package vmnode has the scenario of a whole node in a virtual machine: a kernel of
// Debian's own, kubelet, containerd and our agents on it, joined to a control plane on this
// machine. The driver container loads modules into that kernel, and the road from there
// ends with a CUDA job. `make e2e-node` plays it.
//
// The GPU is SIMULATED: a device on a PCI bus of ours, stub modules, and the simulator's
// user space. The kernel, its modules' loading, control groups v2, device nodes and what
// opens them are real.
package vmnode

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/test/cluster"
	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/machine"
)

// patience is how long each step may take; what it takes is printed. A kubelet takes half a
// minute to start where the processor is emulated.
const patience = 10 * time.Minute

const (
	nodeName     = "vm1"
	imageVersion = "v0.1.0"
)

// imageArchive is the archive of one of our images.
func imageArchive(image string) string {
	return filepath.Join(os.Getenv("GPUREADY_E2E"), "images", image+".tar")
}

// steps prints how long each step takes.
type steps struct {
	t           *testing.T
	began, last time.Time
	lines       []string
}

func (s *steps) done(what string) {
	now := time.Now()
	line := fmt.Sprintf("%6.1f s  +%5.1f s  %s", now.Sub(s.began).Seconds(), now.Sub(s.last).Seconds(), what)
	s.last = now
	s.lines = append(s.lines, line)
	s.t.Log(line)
}

// allowSimulated has the validator vouch for a simulated driver.
const allowSimulated = `
apiVersion: v1
kind: ConfigMap
metadata: {name: gpuready-validator, namespace: gpuready}
data: {ALLOW_SIMULATED: "true"}
`

func TestWholeNode(t *testing.T) {
	machine.SkipUnlessEnabled(t)
	k := machine.FetchKernel(t, machine.Linux612)
	archives := map[string]string{"driver.tar": filepath.Join(t.TempDir(), "driver.tar")}
	driverImage(t, k, archives["driver.tar"])
	for _, image := range []string{"toolkit", "device-plugin", "validator", "cuda-samples"} {
		archives[image+".tar"] = imageArchive(image)
	}
	s := e2e.Up(t, cluster.Config{Bare: true})
	joins, err := s.Join(nodeName)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, joins.Network.Close()) })
	archives["pause.tar"] = joins.Pause

	now := time.Now()
	took := &steps{t: t, began: now, last: now}
	g := boot(t, k, joins, archives)
	t.Cleanup(func() { g.tellLogs(t) })
	took.done("the disk is written and the kernel has booted: " + strings.TrimSpace(g.MustRun(t.Context(), "uname", "-sr")))
	g.setUp(t)
	g.start(t, g.Programs[0])
	g.waitContainerd(t)
	took.done("containerd answers")
	g.importImages(t, archives)
	took.done("images are imported")
	g.start(t, g.Programs[1])
	s.World.UntilWithin(t, patience, "the node is Ready", func() error { return ready(s, nodeName) })
	took.done("the node is Ready")

	s.Apply(t, "gpuready.yaml", "driver.yaml")
	s.ApplyText(t, allowSimulated)
	t.Cleanup(func() {
		if t.Failed() {
			s.TellLogs(t)
		}
	})
	s.World.UntilWithin(t, patience, "the driver's pod is ready", func() error { return podReady(s, "app=nvidia-driver-daemonset") })
	took.done("the driver is loaded into that kernel")
	g.hasModules(t)
	s.World.UntilWithin(t, patience, "the node offers its GPU", func() error {
		if n := s.World.Allocatable(nodeName); n != 1 {
			return fmt.Errorf("it offers %d", n)
		}
		return nil
	})
	took.done("the node offers nvidia.com/gpu: 1")
	s.World.UntilWithin(t, patience, "the validator has proven all layers", func() error {
		c := s.World.Condition(nodeName, "GPUReady")
		if c == nil || c.Status != corev1.ConditionTrue {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	took.done("the validator has proven driver, toolkit, cuda and plugin")
	g.isProven(t)

	s.Apply(t, "examples/vectoradd.yaml")
	s.World.UntilWithin(t, patience, "the CUDA job has ended", func() error {
		pod := s.World.Pod("default", "vectoradd")
		if pod == nil || pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("%+v", pod)
		}
		return nil
	})
	said := s.Kubectl(t, "logs", "vectoradd")
	require.Contains(t, said, "Test PASSED (SIMULATED)\n")
	took.done("a pod has run a CUDA job")
	t.Logf("kubectl logs vectoradd:\n%s\n%s\ngpuready: CUDA job PASSED (SIMULATED)", said, strings.Join(took.lines, "\n"))
}

// ready objects unless a node is Ready.
func ready(s *e2e.Suite, node string) error {
	c := s.World.Condition(node, corev1.NodeReady)
	if c == nil || c.Status != corev1.ConditionTrue {
		return fmt.Errorf("%+v", c)
	}
	return nil
}

// podReady objects unless there is one pod with a label, and it is ready.
func podReady(s *e2e.Suite, label string) error {
	pods := s.World.Pods(e2e.Namespace, label)
	if len(pods) != 1 {
		return fmt.Errorf("there are %d", len(pods))
	}
	for _, c := range pods[0].Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("%s is %s: %+v", pods[0].Name, pods[0].Status.Phase, pods[0].Status.ContainerStatuses)
}

// hasModules looks at the kernel itself.
func (g *guest) hasModules(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	modules := g.MustRun(ctx, "cat", "/proc/modules")
	for _, name := range []string{"nvidia", "nvidia_uvm", "nvidia_modeset"} {
		require.Regexp(t, `(?m)^`+name+` `, modules)
	}
	require.Contains(t, g.MustRun(ctx, "cat", "/proc/driver/nvidia/version"), version+"  SIMULATED")
}

// isProven looks at what the validator has left on the node, and at the device nodes, which
// lead to the modules.
func (g *guest) isProven(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	for _, step := range []string{"driver", "toolkit", "cuda", "plugin"} {
		require.Contains(t, g.MustRun(ctx, "cat", "/run/nvidia/validations/"+step+"-ready"), "SIMULATED=true", step)
	}
	for _, node := range []string{"nvidia0", "nvidiactl", "nvidia-uvm"} {
		held, err := g.Open(ctx, "/dev/"+node)
		require.NoError(t, err)
		require.NoError(t, held.Close(ctx))
	}
}
