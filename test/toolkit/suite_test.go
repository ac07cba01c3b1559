// Package toolkit tests gpu-toolkit on real container runtimes, with configurations written by hand
// and the actions of operators.
package toolkit

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/node"
)

// written maps each runtime to the path of its configuration and to a file of testdata with one that
// was written by hand.
var written = map[node.Kind]struct{ path, file string }{
	node.Containerd16: {"/etc/containerd/config.toml", "containerd-1.6.toml"},
	node.Containerd17: {"/etc/containerd/config.toml", "containerd-1.7.toml"},
	node.Containerd2:  {"/etc/containerd/config.toml", "containerd-2.toml"},
	node.Docker:       {"/etc/docker/daemon.json", "daemon.json"},
}

// byHand returns the configuration that was written by hand.
func byHand(t *testing.T, kind node.Kind) map[string][]byte {
	t.Helper()
	w, ok := written[kind]
	if !ok {
		return nil
	}
	data, err := os.ReadFile(filepath.Join("testdata", w.file))
	require.NoError(t, err)
	return map[string][]byte{w.path: data}
}

// enter runs the rest of a test inside a node; see node.Enter.
func enter(t *testing.T) bool {
	t.Helper()
	if os.Getenv(variable) == "" {
		t.Skip(variable + " is not set: make e2e-toolkit does this")
	}
	if !node.Inside() {
		t.Parallel()
	}
	return node.Enter(t)
}

// start starts a host with simulated H100s and a configuration written by hand.
func start(t *testing.T, kind node.Kind) *node.Host {
	t.Helper()
	return node.StartHost(t, node.HostOptions{Kind: kind, Config: byHand(t, kind), GPUs: "h100-sxm"})
}

// gpuToolkit runs gpu-toolkit against the host, as its DaemonSet does, and returns its output.
func gpuToolkit(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, built.Path(t, "gpu-toolkit"), append(args, "--host-root", node.HostRoot)...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// ordinary runs a container without special requests.
func ordinary(t *testing.T, h *node.Host) {
	t.Helper()
	out, err := h.Run(t.Context(), node.Spec{Args: []string{node.Probe, "/dev/null", "/dev/nvidia0", "/bin/probe", "NVIDIA_VISIBLE_DEVICES="}})
	require.NoError(t, err)
	require.Equal(t, "/dev/null there\n/dev/nvidia0 missing\n/bin/probe there\nNVIDIA_VISIBLE_DEVICES=(none)\ndone\n", out)
}
