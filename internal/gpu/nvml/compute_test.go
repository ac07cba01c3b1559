package nvml

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/test/lab/built"
)

func TestTheComputeModeIsReadAndSet(t *testing.T) {
	if !alone(t) {
		return
	}
	s, root := simulated(t, "a100-80gb", "--gpus", "2")
	snap, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	first, second := snap.Devices[0].UUID, snap.Devices[1].UUID
	mode, err := s.ComputeMode(t.Context(), first)
	require.NoError(t, err)
	require.Equal(t, gpu.ComputeDefault, mode)
	require.NoError(t, s.SetComputeMode(t.Context(), first, gpu.ComputeExclusive))
	mode, err = s.ComputeMode(t.Context(), first)
	require.NoError(t, err)
	require.Equal(t, gpu.ComputeExclusive, mode)
	require.Equal(t, "EXCLUSIVE_PROCESS", mode.String())
	snap, err = s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, gpu.ComputeExclusive, snap.Devices[0].ComputeMode)
	require.Equal(t, gpu.ComputeDefault, snap.Devices[1].ComputeMode)

	built.Gpusim(t, "mig", "--root", root, "--gpu", "1", "--layout", "1g.10gb")
	require.ErrorContains(t, s.SetComputeMode(t.Context(), second, gpu.ComputeExclusive), "not supported")
	_, err = s.ComputeMode(t.Context(), "GPU-00000000-0000-0000-0000-000000000000")
	require.ErrorContains(t, err, "nvmlDeviceGetHandleByUUID")
	require.NoError(t, s.Close())
	_, err = s.ComputeMode(t.Context(), first)
	require.ErrorIs(t, err, errClosed)
}
