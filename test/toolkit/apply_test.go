package toolkit

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/node"
)

// gpuByName runs gpu-toolkit once and checks that a container gets a GPU by its CDI name, without a
// restart.
func gpuByName(t *testing.T, kind node.Kind, name string) {
	if !enter(t) {
		return
	}
	h := start(t, kind)
	gpuToolkit(t, "apply")
	out, err := h.Run(t.Context(), node.Spec{CDI: []string{name}, Args: []string{node.Vectoradd}})
	require.NoError(t, err)
	require.Contains(t, out, "Test PASSED")
	require.Contains(t, out, "(SIMULATED)")
	out, err = h.Run(t.Context(), node.Spec{CDI: []string{name}, Args: []string{node.Probe, "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"}})
	require.NoError(t, err)
	require.Equal(t, "/dev/nvidiactl there\n/dev/nvidia0 missing\n/dev/nvidia1 there\ndone\n", out)
	ordinary(t, h)
	_, err = h.Run(t.Context(), node.Spec{CDI: []string{"nvidia.com/gpu=99"}, Args: []string{node.Probe}})
	require.ErrorContains(t, err, "nvidia.com/gpu=99", "what is not there is not given")
}

func TestContainerd17GivesAGPUByName(t *testing.T) {
	gpuByName(t, node.Containerd17, "nvidia.com/gpu=1")
}

func TestContainerd2GivesAGPUByName(t *testing.T) {
	gpuByName(t, node.Containerd2, "nvidia.com/gpu=1")
}

func TestDockerGivesAGPUByName(t *testing.T) {
	gpuByName(t, node.Docker, "nvidia.com/gpu=1")
}

func TestPodmanGivesAGPUByName(t *testing.T) {
	gpuByName(t, node.Podman, "nvidia.com/gpu=1")
}
