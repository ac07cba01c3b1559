package toolkit

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/test/runtimes"
	"github.com/gpuready/gpuready/toolkit/engine"
	"github.com/gpuready/gpuready/toolkit/engine/docker"
)

// planners plan the configuration of each runtime that has one.
var planners = map[runtimes.Kind]func(engine.Files, engine.Place, engine.Want) (engine.Plan, error){
	runtimes.Docker: docker.Plan,
}

// plan is what has to be written for a runtime that runs to do what is wanted.
func plan(t *testing.T, h *runtimes.Host, kind runtimes.Kind, want engine.Want) engine.Plan {
	t.Helper()
	said, err := h.Status(t.Context())
	require.NoError(t, err)
	place := engine.Place{Kind: engine.Containerd, Version: said.Version, Config: written[kind].path, DropIn: "/etc/containerd/conf.d/99-gpuready.toml"}
	if kind == runtimes.Docker {
		place.Kind, place.DropIn = engine.Docker, ""
	}
	root, err := host.Open(runtimes.Root)
	require.NoError(t, err)
	defer root.Close()
	planned, err := planners[kind](root, place, want)
	require.NoError(t, err)
	return planned
}

// write puts a plan's files onto the host.
func write(t *testing.T, p engine.Plan) {
	t.Helper()
	for _, item := range p.Items {
		require.NotNil(t, item.File, item.Path)
		at := filepath.Join(runtimes.Root, item.Path)
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		require.NoError(t, os.WriteFile(at, item.File.Data, item.File.Mode))
	}
}

// handlerAdded has a plan for the handler nvidia take effect on a configuration that
// was written by hand: the runtime has it beside those that it had, and uses both. cdi says
// that the runtime can resolve CDI names, too.
func handlerAdded(t *testing.T, kind runtimes.Kind, cdi bool) {
	if !enter(t) {
		return
	}
	h := start(t, kind)
	before, err := h.Status(t.Context())
	require.NoError(t, err)
	want := engine.Want{CDI: cdi, Handlers: []engine.Handler{{Name: "nvidia", Program: handlerProgram(t)}}}
	planned := plan(t, h, kind, want)
	require.NotEmpty(t, planned.Edits)
	write(t, planned)
	require.NoError(t, h.Restart(t.Context(), h.Unit()))

	after, err := h.Status(t.Context())
	require.NoError(t, err)
	require.ElementsMatch(t, append(before.Handlers, "nvidia"), after.Handlers)
	require.Equal(t, before.Default, after.Default)
	require.Equal(t, before.CDI || cdi, after.CDI)
	ordinary(t, h)
	out, err := h.Run(t.Context(), runtimes.Spec{Handler: "nvidia", Args: []string{runtimes.Probe, "/dev/nvidia0"}})
	require.NoError(t, err)
	require.Equal(t, "/dev/nvidia0 missing\ndone\n", out, "the handler alone gives nothing")
	require.Empty(t, plan(t, h, kind, want).Edits, "it is done once")
}

// handlerProgram is a handler on the host; it does what runc does.
func handlerProgram(t *testing.T) string {
	t.Helper()
	const program = "/usr/local/nvidia/toolkit/gpu-oci-runtime"
	runc, err := os.ReadFile("/usr/local/bin/runc")
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(program), 0o755))
	require.NoError(t, os.WriteFile(program, runc, 0o755))
	return program
}

func TestDockerHasAHandlerAdded(t *testing.T) {
	handlerAdded(t, runtimes.Docker, true)
}
