package toolkit

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/node"
)

// writtenByHand starts a runtime with a configuration full of comments, registries, other runtimes and
// odd spacing. It checks what the runtime reports, and runs a container before and after a restart.
func writtenByHand(t *testing.T, kind node.Kind, version string, cdi bool) {
	if !enter(t) {
		return
	}
	h := start(t, kind)
	for range 2 {
		reported, err := h.Status(t.Context())
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(strings.TrimPrefix(reported.Version, "v"), version), reported.Version)
		require.Equal(t, "runc", reported.Default)
		require.Contains(t, reported.Handlers, "runc")
		require.Contains(t, reported.Handlers, "runc-batch")
		require.Equal(t, cdi, reported.CDI)
		ordinary(t, h)
		out, err := h.Run(t.Context(), node.Spec{Handler: "runc-batch", Args: []string{node.Probe}})
		require.NoError(t, err)
		require.Equal(t, "done\n", out)
		require.NoError(t, h.Restart(t.Context(), h.Unit()))
	}
}

func TestContainerd16ReadsAHandWrittenConfig(t *testing.T) {
	writtenByHand(t, node.Containerd16, "1.6.20", false)
}

func TestContainerd17ReadsAHandWrittenConfig(t *testing.T) {
	writtenByHand(t, node.Containerd17, "1.7.24", true)
}

func TestContainerd2ReadsAHandWrittenConfig(t *testing.T) {
	writtenByHand(t, node.Containerd2, "2.", true)
}

func TestDockerReadsAHandWrittenConfig(t *testing.T) {
	writtenByHand(t, node.Docker, "29.0.0-moby-v2", true)
}
