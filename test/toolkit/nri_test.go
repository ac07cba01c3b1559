package toolkit

import (
	"bytes"
	"context"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/node"
)

// allowed is a namespace whose workloads may request GPUs.
const allowed = "team"

// daemon runs gpu-toolkit until the end of the test, or until it is stopped as the kubelet does.
func daemon(t *testing.T) (stop func()) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(built.Path(t, "gpu-toolkit"), "run", "--host-root", node.HostRoot, "--listen", "", "--nri-workload-namespaces", allowed) //nolint:noctx // stop ends it
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	running := true
	stop = func() {
		if !running {
			return
		}
		running = false
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Logf("gpu-toolkit run: %v\n%s", err, out.Bytes())
		}
	}
	t.Cleanup(stop)
	return stop
}

// await waits until the toolkit's state satisfies is.
func await(t *testing.T, what string, is func(nodestate.Injection) bool) nodestate.Injection {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var last nodestate.State
	var lastErr error
	found := false
	err := nodestate.Watch(ctx, "/run/nvidia/gpuready/toolkit", func(s nodestate.State, err error) {
		last, lastErr = s, err
		if err == nil && s.Toolkit != nil && s.Toolkit.Injection != nil && is(*s.Toolkit.Injection) {
			found = true
			cancel()
		}
	})
	require.True(t, found, "%s: %v; last %+v %v", what, err, last, lastErr)
	return *last.Toolkit.Injection
}

func working(i nodestate.Injection) bool { return i.Working }

// restartRuntime restarts it and waits until the toolkit is its plugin again.
func restartRuntime(t *testing.T, h *node.Host) nodestate.Injection {
	t.Helper()
	require.NoError(t, h.Stop(t.Context()))
	await(t, "the runtime is gone", func(i nodestate.Injection) bool { return !i.Working })
	require.NoError(t, h.Start(t.Context()))
	return await(t, "the plugin is there after the runtime's restart", working)
}

// visibleIn runs a container that requests GPUs by its environment, and returns what it sees.
func visibleIn(t *testing.T, h *node.Host, namespace, visible string) (string, error) {
	t.Helper()
	return h.Run(t.Context(), node.Spec{
		Namespace: namespace, Env: []string{"NVIDIA_VISIBLE_DEVICES=" + visible},
		Args: []string{node.Probe, "/dev/nvidia0", "/dev/nvidia1"},
	})
}

const (
	neither = "/dev/nvidia0 missing\n/dev/nvidia1 missing\ndone\n"
	another = "/dev/nvidia0 missing\n/dev/nvidia1 there\ndone\n"
)

// The runtime's configuration does not mention GPUs.
func TestContainerd2NRIInjectsRequestedGPUs(t *testing.T) {
	requireNRI(t, node.Containerd2, "")
}

// An older runtime: NRI has to be enabled, and CDI is off.
func TestContainerd17NRIInjectsRequestedGPUs(t *testing.T) {
	requireNRI(t, node.Containerd17, "\n[plugins.\"io.containerd.nri.v1.nri\"]\n  disable = false\n")
}

func requireNRI(t *testing.T, kind node.Kind, more string) {
	if !enter(t) {
		return
	}
	h := startWith(t, kind, map[string]string{written[kind].path: hand(t, kind) + more})
	stop := daemon(t)
	await(t, "the plugin is there", working)

	gets := func(namespace, visible, want string) {
		t.Helper()
		out, err := visibleIn(t, h, namespace, visible)
		require.NoError(t, err)
		require.Equal(t, want, out)
	}
	gets(allowed, "1", another)
	gets("default", "1", neither)
	gets(allowed, "all", neither)
	gets(allowed, "nvidia.com/gpu=1", another)
	out, err := h.Run(t.Context(), node.Spec{
		Namespace: allowed, Annotations: map[string]string{"cdi.k8s.io/gpus": "nvidia.com/gpu=1"},
		Args: []string{node.Probe, "/dev/nvidia0", "/dev/nvidia1"},
	})
	require.NoError(t, err)
	require.Equal(t, another, out)
	_, err = visibleIn(t, h, allowed, "42")
	require.ErrorContains(t, err, `there is no GPU "42" on this node; there are 0, 1,`)
	out, err = h.Run(t.Context(), node.Spec{Namespace: allowed, Env: []string{"NVIDIA_VISIBLE_DEVICES=0"}, Args: []string{node.Vectoradd}})
	require.NoError(t, err)
	require.Contains(t, out, "Test PASSED")
	if kind == node.Containerd2 {
		out, err = h.Run(t.Context(), node.Spec{
			Namespace: allowed, CDI: []string{"nvidia.com/gpu=1"}, Env: []string{"NVIDIA_VISIBLE_DEVICES=0"},
			Args: []string{node.Probe, "/dev/nvidia0", "/dev/nvidia1"},
		})
		require.NoError(t, err)
		require.Equal(t, another, out, "the kubelet has decided")
	}

	restartRuntime(t, h)
	gets(allowed, "1", another)

	// Containers that start without a toolkit run without GPUs, and are reported afterwards.
	stop()
	gets(allowed, "1", neither)
	remove, err := h.StartPod(t.Context(), node.Spec{Namespace: allowed, Env: []string{"NVIDIA_VISIBLE_DEVICES=1"}, Args: []string{node.Probe, "wait"}})
	require.NoError(t, err)
	elsewhere, err := h.StartPod(t.Context(), node.Spec{Env: []string{"NVIDIA_VISIBLE_DEVICES=1"}, Args: []string{node.Probe, "wait"}})
	require.NoError(t, err)
	daemon(t)
	was := await(t, "the container that was missed is reported", func(i nodestate.Injection) bool { return i.Working && i.MissedCount > 0 })
	require.Equal(t, []string{allowed + "/pod/container"}, was.Missed)
	require.Equal(t, 1, was.MissedCount)
	gets(allowed, "1", another)

	kept, err := h.StartPod(t.Context(), node.Spec{Namespace: allowed, Env: []string{"NVIDIA_VISIBLE_DEVICES=1"}, Args: []string{node.Probe, "wait"}})
	require.NoError(t, err)
	require.NoError(t, remove(t.Context()))
	await(t, "it is gone", func(i nodestate.Injection) bool { return i.Working && i.MissedCount == 0 })
	require.Empty(t, restartRuntime(t, h).Missed, "the one that was given its GPU")
	require.NoError(t, kept(t.Context()))
	require.NoError(t, elsewhere(t.Context()))
}

// Checks docs/injection.md about a required plugin.
func TestContainerd2RequiresThePluginForAnnotatedPods(t *testing.T) {
	if !enter(t) {
		return
	}
	kind := node.Containerd2
	h := startWith(t, kind, map[string]string{written[kind].path: hand(t, kind) + "\n[plugins.'io.containerd.nri.v1.nri'.default_validator]\n  enable = true\n"})
	careful := node.Spec{
		Namespace: allowed, Annotations: map[string]string{"required-plugins.noderesource.dev": `["gpuready"]`},
		Env: []string{"NVIDIA_VISIBLE_DEVICES=1"}, Args: []string{node.Probe, "/dev/nvidia0", "/dev/nvidia1"},
	}
	_, err := h.Run(t.Context(), careful)
	require.ErrorContains(t, err, "gpuready")
	ordinary(t, h)
	daemon(t)
	await(t, "the plugin is there", working)
	out, err := h.Run(t.Context(), careful)
	require.NoError(t, err)
	require.Equal(t, another, out)
}
