package toolkit

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/test/lab/node"
	"github.com/gpuready/gpuready/toolkit/configure"
	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/distro"
	"github.com/gpuready/gpuready/toolkit/runtime/docker"
	"github.com/gpuready/gpuready/toolkit/runtime/runtimetest"
)

// systemd is a stand-in on the host's bus that really restarts the host's runtime.
func systemd(t *testing.T, h *node.Host) *runtimetest.Systemd {
	t.Helper()
	s, err := runtimetest.StartSystemd("/", map[string]string{h.Unit(): "active"}, h.ActOnUnit)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// applyRestart makes the runtime load its configuration.
func applyRestart(t *testing.T, kind runtime.Kind, way distro.Restart, reload bool) (configure.Restarted, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	root, err := host.Open(node.HostRoot)
	require.NoError(t, err)
	defer root.Close()
	return configure.Restart(ctx, root, kind, way, reload)
}

// restarted applies a plan with a restart through systemd, then a configuration with which the
// runtime does not start. systemd must report that, and the previous configuration must work again.
func restarted(t *testing.T, kind node.Kind, engineKind runtime.Kind, cdi bool, broken string) {
	if !enter(t) {
		return
	}
	h := start(t, kind)
	s := systemd(t, h)
	way := distro.Restart{Method: distro.Systemd, Units: []string{h.Unit()}}
	write(t, plan(t, h, kind, runtime.Want{CDI: cdi, Handlers: []runtime.Handler{install(t, "{}")}}))
	_, err := applyRestart(t, engineKind, way, false)
	require.NoError(t, err)
	require.Contains(t, status(t, h).Handlers, "nvidia")

	good, err := os.ReadFile(written[kind].path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(written[kind].path, []byte(broken), 0o644))
	_, err = applyRestart(t, engineKind, way, false)
	require.ErrorContains(t, err, h.Unit())
	_, err = h.Status(t.Context())
	require.Error(t, err)

	require.NoError(t, os.WriteFile(written[kind].path, good, 0o644))
	_, err = applyRestart(t, engineKind, way, false)
	require.NoError(t, err)
	require.Contains(t, status(t, h).Handlers, "nvidia")
	ordinary(t, h)
	require.Equal(t, []string{"restart " + h.Unit(), "restart " + h.Unit(), "reset-failed " + h.Unit(), "restart " + h.Unit()}, s.Calls())
}

func TestContainerd16ComesBackThroughSystemd(t *testing.T) {
	restarted(t, node.Containerd16, runtime.Containerd, false, "version = 2\n[plugins\n")
}

func TestContainerd2ComesBackThroughSystemd(t *testing.T) {
	restarted(t, node.Containerd2, runtime.Containerd, true, "version = 99\n")
}

func TestDockerComesBackThroughSystemd(t *testing.T) {
	restarted(t, node.Docker, runtime.Docker, true, `{"no-such-key": 1}`)
}

// Docker needs no restart for a handler.
func TestDockerReloadsAHandler(t *testing.T) {
	if !enter(t) {
		return
	}
	h := start(t, node.Docker)
	planned := plan(t, h, node.Docker, runtime.Want{CDI: true, Handlers: []runtime.Handler{install(t, "{}")}})
	require.True(t, docker.Reloadable(planned.Edits))
	write(t, planned)
	passage, err := applyRestart(t, runtime.Docker, distro.Restart{Method: distro.Reload, Units: []string{h.Unit()}}, true)
	require.NoError(t, err)
	require.Positive(t, passage.PID, "there is no bus")
	require.Eventually(t, func() bool {
		reported, err := h.Status(t.Context())
		return err == nil && slices.Contains(reported.Handlers, "nvidia")
	}, time.Minute, 10*time.Millisecond)
	out, err := h.Run(t.Context(), node.Spec{Handler: "nvidia", Args: []string{node.Probe, "/dev/nvidia0"}})
	require.NoError(t, err)
	require.Equal(t, "/dev/nvidia0 missing\ndone\n", out)
}
