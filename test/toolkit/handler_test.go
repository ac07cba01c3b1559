package toolkit

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/node"
	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/containerd"
	"github.com/gpuready/gpuready/toolkit/runtime/docker"
)

// planners are the planning functions of the runtimes that have a configuration.
var planners = map[node.Kind]func(runtime.Files, runtime.Place, runtime.Want) (runtime.Plan, error){
	node.Containerd16: containerd.Plan,
	node.Containerd17: containerd.Plan,
	node.Containerd2:  containerd.Plan,
	node.Docker:       docker.Plan,
}

// plan returns the changes that give a running runtime the wanted configuration.
func plan(t *testing.T, h *node.Host, kind node.Kind, want runtime.Want) runtime.Plan {
	t.Helper()
	reported, err := h.Status(t.Context())
	require.NoError(t, err)
	place := runtime.Place{Kind: runtime.Containerd, Version: reported.Version, Config: written[kind].path, DropIn: "/etc/containerd/conf.d/99-gpuready.toml"}
	if kind == node.Docker {
		place.Kind, place.DropIn = runtime.Docker, ""
	}
	root, err := host.Open(node.HostRoot)
	require.NoError(t, err)
	defer root.Close()
	planned, err := planners[kind](root, place, want)
	require.NoError(t, err)
	return planned
}

// write writes a plan's files to the host.
func write(t *testing.T, p runtime.Plan) {
	t.Helper()
	for _, item := range p.Items {
		require.NotNil(t, item.File, item.Path)
		at := filepath.Join(node.HostRoot, item.Path)
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		require.NoError(t, os.WriteFile(at, item.File.Data, item.File.Mode))
	}
}

// install installs the handler where gpu-toolkit does, with settings.
func install(t *testing.T, settings string) runtime.Handler {
	t.Helper()
	const dir = "/usr/local/nvidia/gpuready"
	require.NoError(t, os.MkdirAll(dir, 0o755))
	built.Copy(t, filepath.Join(dir, "gpu-oci-runtime"), "gpu-oci-runtime")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "gpu-oci-runtime.json"), []byte(settings), 0o644))
	return runtime.Handler{Name: "nvidia", Program: dir + "/gpu-oci-runtime"}
}

// handlerAdded applies a plan for the handler nvidia to a configuration written by hand. The runtime
// must have it beside its other handlers, and use all of them. cdi reports whether the runtime can
// also resolve CDI names.
func handlerAdded(t *testing.T, kind node.Kind, cdi bool) {
	if !enter(t) {
		return
	}
	h := start(t, kind)
	gpuToolkit(t, "apply")
	before, err := h.Status(t.Context())
	require.NoError(t, err)
	want := runtime.Want{CDI: cdi, Handlers: []runtime.Handler{install(t, `{"accept-nvidia-visible-devices-envvar-when-unprivileged": true}`)}}
	planned := plan(t, h, kind, want)
	require.NotEmpty(t, planned.Edits)
	write(t, planned)
	require.NoError(t, h.Restart(t.Context(), h.Unit()))

	after, err := h.Status(t.Context())
	require.NoError(t, err)
	require.ElementsMatch(t, append(before.Handlers, "nvidia"), after.Handlers)
	require.Equal(t, before.Default, after.Default)
	require.Equal(t, before.CDI || cdi, after.CDI)
	require.Empty(t, plan(t, h, kind, want).Edits, "it is done once")

	ordinary(t, h)
	batch, err := h.Run(t.Context(), node.Spec{Handler: "runc-batch", Args: []string{node.Probe}})
	require.NoError(t, err)
	require.Equal(t, "done\n", batch)
	requireHandlerGPUs(t, h, "nvidia")
}

// requireHandlerGPUs requests GPUs from the handler through the environment.
func requireHandlerGPUs(t *testing.T, h *node.Host, handler string) {
	t.Helper()
	probe := []string{node.Probe, "/dev/nvidia0", "/dev/nvidia1"}
	for _, c := range []struct {
		visible string
		want    string
	}{
		{"1", "/dev/nvidia0 missing\n/dev/nvidia1 there\ndone\n"},
		{"all", "/dev/nvidia0 there\n/dev/nvidia1 there\ndone\n"},
		{"none", "/dev/nvidia0 missing\n/dev/nvidia1 missing\ndone\n"},
	} {
		out, err := h.Run(t.Context(), node.Spec{Handler: handler, Env: []string{"NVIDIA_VISIBLE_DEVICES=" + c.visible}, Args: probe})
		require.NoError(t, err, c.visible)
		require.Equal(t, c.want, out, c.visible)
	}
	out, err := h.Run(t.Context(), node.Spec{Handler: handler, Env: []string{"NVIDIA_VISIBLE_DEVICES=0"}, Args: []string{node.Vectoradd}})
	require.NoError(t, err)
	require.Contains(t, out, "Test PASSED")
	require.Contains(t, out, "(SIMULATED)")
	out, err = h.Run(t.Context(), node.Spec{Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}, Args: probe})
	require.NoError(t, err)
	require.Equal(t, "/dev/nvidia0 missing\n/dev/nvidia1 missing\ndone\n", out, "another handler gives nothing")
}

// handlerRefuses starts a container that requests a GPU without permission. It must not start, and
// the reason must be where people look for it.
func handlerRefuses(t *testing.T, kind node.Kind, cdi bool) {
	if !enter(t) {
		return
	}
	h := start(t, kind)
	gpuToolkit(t, "apply")
	write(t, plan(t, h, kind, runtime.Want{CDI: cdi, Handlers: []runtime.Handler{install(t, "{}")}}))
	require.NoError(t, h.Restart(t.Context(), h.Unit()))
	_, err := h.Run(t.Context(), node.Spec{Handler: "nvidia", Env: []string{"NVIDIA_VISIBLE_DEVICES=1"}, Args: []string{node.Probe}})
	require.ErrorContains(t, err, "accept-nvidia-visible-devices-envvar-when-unprivileged")
	// Images of CUDA programs set this themselves.
	out, err := h.Run(t.Context(), node.Spec{Handler: "nvidia", Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}, Args: []string{node.Probe, "/dev/nvidia0"}})
	require.NoError(t, err)
	require.Equal(t, "/dev/nvidia0 missing\ndone\n", out)
}

func TestContainerd16HandlerReportsRefusals(t *testing.T) {
	handlerRefuses(t, node.Containerd16, false)
}

func TestContainerd2HandlerReportsRefusals(t *testing.T) {
	handlerRefuses(t, node.Containerd2, true)
}

func TestDockerHandlerReportsRefusals(t *testing.T) {
	handlerRefuses(t, node.Docker, true)
}

func TestContainerd16HasAHandlerAdded(t *testing.T) {
	handlerAdded(t, node.Containerd16, false)
}

func TestContainerd17HasAHandlerAdded(t *testing.T) {
	handlerAdded(t, node.Containerd17, true)
}

func TestContainerd2HasAHandlerAdded(t *testing.T) {
	handlerAdded(t, node.Containerd2, true)
}

func TestDockerHasAHandlerAdded(t *testing.T) {
	handlerAdded(t, node.Docker, true)
}

// Podman needs no configuration: it gets the runtime's path.
func TestPodmanUsesTheHandlerByItsPath(t *testing.T) {
	if !enter(t) {
		return
	}
	h := start(t, node.Podman)
	gpuToolkit(t, "apply")
	requireHandlerGPUs(t, h, install(t, `{"accept-nvidia-visible-devices-envvar-when-unprivileged": true}`).Program)
}
