// Package vmnode tests a whole node in a virtual machine: one of Debian's kernels with kubelet,
// containerd and our agents, joined to a control plane on this machine. The driver container loads
// modules into that kernel, and the last step is a CUDA job. `make e2e-node` runs it.
//
// The GPU is SIMULATED: a device on our own PCI bus, stub modules, and the simulator's user space. The
// kernel, the loading of modules, control groups v2, device nodes and their permissions are real.
package vmnode

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/cluster"
	"github.com/gpuready/gpuready/test/lab/vm"
)

// patience limits each step; the actual time is printed. A kubelet takes half a minute to start on an
// emulated processor.
const patience = 10 * time.Minute

const nodeName = "vm1"

// imageArchive returns the archive of one of our images.
func imageArchive(image string) string {
	return filepath.Join(os.Getenv("GPUREADY_E2E"), "images", image+".tar")
}

// nodeRun follows one node from a bare kernel to a CUDA job, and measures the steps.
type nodeRun struct {
	*e2e.Suite
	guest *guest

	began, last time.Time
	steps       []string
}

func TestWholeNode(t *testing.T) {
	vm.SkipUnlessEnabled(t)
	k := vm.FetchKernel(t, vm.Linux612)
	archives := map[string]string{"driver.tar": filepath.Join(t.TempDir(), "driver.tar")}
	driverImage(t, k, archives["driver.tar"])
	for _, image := range []string{"toolkit", "device-plugin", "validator", "cuda-samples"} {
		archives[image+".tar"] = imageArchive(image)
	}
	r := &nodeRun{Suite: e2e.Up(t, cluster.Config{Bare: true})}
	joins, err := r.Join(nodeName)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, joins.Network.Close()) })
	archives["pause.tar"] = joins.Pause

	r.begin()
	r.guest = boot(t, k, joins, archives)
	t.Cleanup(func() { r.guest.logOutput(t) })
	r.done(t, "the disk is written and "+strings.TrimSpace(r.guest.MustRun(t.Context(), "uname", "-sr"))+" has booted")
	r.startContainerd(t)
	r.guest.importImages(t, archives)
	r.done(t, "images are imported")
	r.startKubelet(t)
	r.Apply(t, "gpuready.yaml", "driver.yaml")
	r.ApplyText(t, allowSimulated)
	t.Cleanup(func() {
		if t.Failed() {
			r.LogDiagnostics(t)
		}
	})
	r.travel(t)
	first := r.steps

	// The modules are gone with the kernel into which they were loaded.
	r.begin()
	r.guest.Reboot(t.Context())
	r.done(t, "the machine has booted again")
	r.startContainerd(t)
	r.startKubelet(t)
	r.travel(t)
	t.Logf("from a bare kernel:\n%s\nafter a reboot:\n%s\ngpuready: CUDA job PASSED (SIMULATED)", strings.Join(first, "\n"), strings.Join(r.steps, "\n"))
}

// begin starts the measurement of steps.
func (r *nodeRun) begin() {
	r.began = time.Now()
	r.last, r.steps = r.began, nil
}

// done ends a step.
func (r *nodeRun) done(t *testing.T, what string) {
	t.Helper()
	now := time.Now()
	line := fmt.Sprintf("%6.1f s  +%5.1f s  %s", now.Sub(r.began).Seconds(), now.Sub(r.last).Seconds(), what)
	r.last = now
	r.steps = append(r.steps, line)
	t.Log(line)
}

// until waits for the end of a step.
func (r *nodeRun) until(t *testing.T, what string, cond func() error) {
	t.Helper()
	r.World.UntilWithin(t, patience, what, cond)
	r.done(t, what)
}

// allowSimulated makes the validator accept a simulated driver.
const allowSimulated = `
apiVersion: v1
kind: ConfigMap
metadata: {name: gpuready-validator, namespace: gpuready}
data: {ALLOW_SIMULATED: "true"}
`

func (r *nodeRun) startContainerd(t *testing.T) {
	t.Helper()
	r.guest.setUp(t)
	r.guest.noModules(t)
	r.guest.start(t, r.guest.Programs[0])
	r.guest.waitContainerd(t)
	r.done(t, "containerd answers")
}

func (r *nodeRun) startKubelet(t *testing.T) {
	t.Helper()
	r.guest.start(t, r.guest.Programs[1])
	boot := r.guest.bootID(t)
	r.until(t, "the node is Ready", func() error {
		if have := r.World.Node(nodeName).Status.NodeInfo.BootID; have != boot {
			return fmt.Errorf("the API server knows of boot %q, not of %s", have, boot)
		}
		return condition(r.World, corev1.NodeReady)
	})
}

// travel runs the steps from a Ready node to a passed CUDA job.
func (r *nodeRun) travel(t *testing.T) {
	t.Helper()
	since := r.last
	r.until(t, "the driver container has loaded the modules into that kernel", func() error {
		return r.podReady("app=nvidia-driver-daemonset", since)
	})
	r.guest.hasModules(t)
	r.until(t, "the node offers a GPU", func() error {
		if n := r.World.Allocatable(nodeName); n != 1 {
			return fmt.Errorf("it offers %d", n)
		}
		return nil
	})
	r.until(t, "driver, toolkit, cuda and plugin are proven", func() error {
		if err := r.podReady("app=nvidia-operator-validator", since); err != nil {
			return err
		}
		return condition(r.World, "GPUReady")
	})
	r.guest.isProven(t)
	r.Delete(t, "examples/vectoradd.yaml")
	r.Apply(t, "examples/vectoradd.yaml")
	r.until(t, "a pod has run a CUDA job", func() error {
		pod := r.World.Pod("default", "vectoradd")
		if pod == nil || pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("%+v", pod)
		}
		return nil
	})
	output := r.Kubectl(t, "logs", "vectoradd")
	t.Logf("kubectl logs vectoradd:\n%s", output)
	require.Contains(t, output, "Test PASSED (SIMULATED)\n")
}

// condition returns an error unless a condition of the node is true.
func condition(w *e2e.ClusterState, kind corev1.NodeConditionType) error {
	c := w.Condition(nodeName, kind)
	if c == nil || c.Status != corev1.ConditionTrue {
		return fmt.Errorf("%+v", c)
	}
	return nil
}

// podReady returns an error unless there is exactly one pod with a label, and all its containers run, are
// ready, and started after a given time.
func (r *nodeRun) podReady(label string, since time.Time) error {
	pods := r.World.Pods(e2e.Namespace, label)
	if len(pods) != 1 {
		return fmt.Errorf("there are %d pods with %s", len(pods), label)
	}
	s := pods[0].Status
	late := func(c corev1.ContainerStatus) bool {
		// The API has a resolution of one second.
		return c.Ready && c.State.Running != nil && !c.State.Running.StartedAt.Time.Before(since.Truncate(time.Second))
	}
	if len(s.ContainerStatuses) == 0 || slices.ContainsFunc(s.ContainerStatuses, func(c corev1.ContainerStatus) bool { return !late(c) }) {
		return fmt.Errorf("%s is %s: %+v %+v", pods[0].Name, s.Phase, s.InitContainerStatuses, s.ContainerStatuses)
	}
	return nil
}

func (g *guest) bootID(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(g.MustRun(t.Context(), "cat", "/proc/sys/kernel/random/boot_id"))
}

// noModules checks that no driver module is loaded.
func (g *guest) noModules(t *testing.T) {
	t.Helper()
	require.NotRegexp(t, `(?m)^nvidia`, g.MustRun(t.Context(), "cat", "/proc/modules"))
}

// hasModules checks the kernel itself.
func (g *guest) hasModules(t *testing.T) {
	t.Helper()
	modules := g.MustRun(t.Context(), "cat", "/proc/modules")
	for _, name := range []string{"nvidia", "nvidia_uvm", "nvidia_modeset"} {
		require.Regexp(t, `(?m)^`+name+` `, modules)
	}
	require.Contains(t, g.MustRun(t.Context(), "cat", "/proc/driver/nvidia/version"), version+"  SIMULATED")
}

// isProven checks the validator's files on the node, and the device nodes, which lead to the modules.
func (g *guest) isProven(t *testing.T) {
	t.Helper()
	for _, step := range []string{"driver", "toolkit", "cuda", "plugin"} {
		require.Contains(t, g.MustRun(t.Context(), "cat", "/run/nvidia/validations/"+step+"-ready"), "SIMULATED=true", step)
	}
	for _, node := range []string{"nvidia0", "nvidiactl", "nvidia-uvm"} {
		held, err := g.Open(t.Context(), "/dev/"+node)
		require.NoError(t, err)
		require.NoError(t, held.Close(t.Context()))
	}
}
