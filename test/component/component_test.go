// Package component_test runs the built programs together: toolkit, device plugin and validator on a private
// node, with the in-process kubelet and runc.
package component_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/node"
)

const resource = "nvidia.com/gpu"

// within limits each wait; the expected times are well under a second.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// startKubelet starts the in-process kubelet where the real one would be.
func startKubelet(t *testing.T) *kubelettest.Kubelet {
	k, err := kubelettest.Start(kubelettest.Config{Dir: "/var/lib/kubelet/device-plugins", PodResourcesDir: "/var/lib/kubelet/pod-resources"})
	require.NoError(t, err)
	t.Cleanup(k.Stop)
	return k
}

// driver starts a simulated driver at the path of a driver container's.
func driver(t *testing.T, profile string) {
	built.Gpusim(t, "up", "--profile", profile)
}

func waitToolkit(t *testing.T) {
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	var last nodestate.State
	_ = nodestate.Watch(ctx, "/run/nvidia/gpuready/toolkit", func(s nodestate.State, err error) {
		if last = s; err == nil && s.Phase == nodestate.Ready {
			cancel()
		}
	})
	require.Equal(t, nodestate.Ready, last.Phase, "%+v", last)
}

func waitGPUs(t *testing.T, k *kubelettest.Kubelet, n int) kubelettest.Resource {
	r, err := k.Wait(within(t), resource, func(r kubelettest.Resource) bool { return r.Allocatable == n })
	require.NoErrorf(t, err, "want %d allocatable: %+v", n, r)
	return r
}

// tools are programs for containers, with the libraries that Debian's and Ubuntu's versions need.
func tools(t *testing.T) map[string]string {
	files := map[string]string{"/usr/bin/vectoradd": built.Path(t, "vectoradd")}
	for _, name := range []string{"sh", "ls", "libselinux.so.1", "libpcre2-8.so.0"} {
		for _, dir := range []string{"/usr/bin", "/bin", node.LibraryDir()} {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				files[filepath.Join(dir, name)] = filepath.Join(dir, name)
				break
			}
		}
	}
	return files
}

// inside runs a command in a container of an admitted pod.
func inside(t *testing.T, a kubelettest.Admission, deny bool, args ...string) (string, int) {
	t.Helper()
	var env []string
	for k, v := range a.Envs {
		env = append(env, k+"="+v)
	}
	out, exit, err := node.RunContainer(within(t), node.Container{Args: args, Env: env, Files: tools(t), CDIDevices: a.CDIDevices, DenyDevices: deny})
	require.NoError(t, err, out)
	return out, exit
}

func gpuNodes(listing string) []string {
	return slices.DeleteFunc(strings.Fields(listing), func(name string) bool {
		digits := strings.TrimPrefix(name, "nvidia")
		return digits == name || digits == "" || strings.Trim(digits, "0123456789") != ""
	})
}

func TestPodsGetExactlyTheGPUsTheyAskFor(t *testing.T) {
	if !node.Enter(t) {
		return
	}
	k := startKubelet(t)
	driver(t, "h100-sxm")
	built.Start(t, "gpu-toolkit", []string{"run"})
	built.Start(t, "gpu-device-plugin", nil)
	waitToolkit(t)
	waitGPUs(t, k, 8)

	two, err := k.Admit(within(t), kubelettest.Pod{Namespace: "ns", Name: "two", Container: "c", Requests: map[string]int{resource: 2}})
	require.NoError(t, err)
	require.Len(t, two.CDIDevices, 2)
	require.NotEqual(t, two.CDIDevices[0], two.CDIDevices[1])

	out, exit := inside(t, two, false, "/usr/bin/ls", "/dev")
	require.Zero(t, exit, out)
	require.Len(t, gpuNodes(out), 2, out)
	out, exit = inside(t, two, false, "/usr/bin/ls", node.LibraryDir())
	require.Zero(t, exit, out)
	for _, lib := range []string{"libcuda.so.1", "libcuda.so.580.95.05", "libnvidia-ml.so.1"} {
		require.Contains(t, strings.Fields(out), lib)
	}
	out, exit = inside(t, two, false, "/usr/bin/vectoradd")
	require.Zero(t, exit, out)
	require.Contains(t, out, "Test PASSED (SIMULATED)\nDone")

	none, err := k.Admit(within(t), kubelettest.Pod{Namespace: "ns", Name: "none", Container: "c"})
	require.NoError(t, err)
	require.Empty(t, none.CDIDevices)
	out, exit = inside(t, none, false, "/usr/bin/ls", "/dev", node.LibraryDir())
	require.Zero(t, exit, out)
	require.NotContains(t, out, "nvidia")
	require.NotContains(t, out, "libcuda")

	all, err := k.Admit(within(t), kubelettest.Pod{Namespace: "ns", Name: "six", Container: "c", Requests: map[string]int{resource: 6}})
	require.NoError(t, err)
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(append(all.CDIDevices, two.CDIDevices...)))), 8, "no GPU twice")
	_, err = k.Admit(within(t), kubelettest.Pod{Namespace: "ns", Name: "more", Container: "c", Requests: map[string]int{resource: 1}})
	require.Error(t, err)
}

func TestContainerWithoutPermissionReportsIt(t *testing.T) {
	if !node.Enter(t) {
		return
	}
	k := startKubelet(t)
	driver(t, "t4")
	built.Start(t, "gpu-toolkit", []string{"run"})
	built.Start(t, "gpu-device-plugin", nil)
	waitToolkit(t)
	waitGPUs(t, k, 1)
	pod, err := k.Admit(within(t), kubelettest.Pod{Namespace: "ns", Name: "p", Container: "c", Requests: map[string]int{resource: 1}})
	require.NoError(t, err)
	out, exit := inside(t, pod, true, "/usr/bin/vectoradd")
	require.NotZero(t, exit, out)
	require.Contains(t, out, "cuInit")
	require.Contains(t, out, "permi", "it says that permission is what is missing")
}

func TestXIDRemovesOneGPUAndThePodStillRuns(t *testing.T) {
	built.SkipWithDriver(t)
	if !node.Enter(t) {
		return
	}
	k := startKubelet(t)
	built.Start(t, "gpu-toolkit", []string{"run"})
	built.Start(t, "gpu-device-plugin", nil)
	driver(t, "h100-sxm") // late, under agents that wait for it
	waitToolkit(t)
	waitGPUs(t, k, 8)
	built.Gpusim(t, "xid", "--gpu", "3", "--xid", "79")
	r := waitGPUs(t, k, 7)
	var sick []string
	for _, d := range r.Devices {
		if d.Health != "Healthy" {
			sick = append(sick, d.ID)
		}
	}
	require.Len(t, sick, 1)
	pod, err := k.Admit(within(t), kubelettest.Pod{Namespace: "ns", Name: "p", Container: "c", Requests: map[string]int{resource: 7}})
	require.NoError(t, err)
	require.NotContains(t, strings.Join(pod.CDIDevices, " "), sick[0])
	out, exit := inside(t, pod, false, "/usr/bin/vectoradd")
	require.Zero(t, exit, out)
}

func TestMIGDevicesComputeInAContainer(t *testing.T) {
	if !node.Enter(t) {
		return
	}
	driver(t, "h100-sxm")
	built.Gpusim(t, "mig", "--gpu", "0", "--layout", "1g.10gb,3g.40gb")
	built.Start(t, "gpu-toolkit", []string{"run"})
	waitToolkit(t)
	for _, name := range []string{"nvidia.com/gpu=0:0", "nvidia.com/gpu=0:1"} {
		out, exit, err := node.RunContainer(within(t), node.Container{Args: []string{"/usr/bin/vectoradd"}, Files: tools(t), CDIDevices: []string{name}})
		require.NoError(t, err)
		require.Zero(t, exit, out)
		require.Contains(t, out, "Test PASSED (SIMULATED)")
	}
}

func TestValidatorProvesAllLayersAndRevokesTheProof(t *testing.T) {
	if !node.Enter(t) {
		return
	}
	startKubelet(t)
	built.Start(t, "gpu-validator", []string{"daemon", "--allow-simulated", "--vectoradd", built.Path(t, "vectoradd")})
	built.Start(t, "gpu-toolkit", []string{"run"})
	built.Start(t, "gpu-device-plugin", nil)
	driver(t, "h100-sxm")
	require.NoError(t, readiness.Wait(within(t), readiness.DefaultDir, readiness.Layers(), "", nil))

	built.Gpusim(t, "down")
	require.Eventually(t, func() bool {
		status, err := readiness.Read(readiness.DefaultDir, readiness.Driver, "")
		return err == nil && status.NotReady != nil
	}, time.Minute, 20*time.Millisecond, "a proof that no longer holds is taken back")
}
