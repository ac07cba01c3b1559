package nvml

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

// What the driver asks for is asked again after a call that fails: until then it has not changed.
func TestARecoveryThatCannotBeReadForAMomentStays(t *testing.T) {
	f, s := newFake(t, gputest.Node("h100-sxm", 1), Options{})
	read := func() gpu.RecoveryAction {
		got, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		return got.Devices[0].Recovery
	}
	require.Equal(t, gpu.RecoverNothing, read())
	f.gpus[0].refuse = map[string]nvml.Return{"nvmlDeviceGetFieldValues": nvml.ERROR_TIMEOUT}
	require.Equal(t, gpu.RecoverNothing, read())
	s.mu.Lock()
	r := s.memory.devices[gputest.GPU(0)]
	r.recoveryRead = r.recoveryRead.Add(-recoveryLasts)
	s.memory.devices[gputest.GPU(0)] = r
	s.mu.Unlock()
	require.Empty(t, read(), "but not for ever")
	f.gpus[0].refuse = nil
	require.Equal(t, gpu.RecoverNothing, read())
	f.gpus[0].refuse = map[string]nvml.Return{"nvmlDeviceGetFieldValues": nvml.ERROR_NOT_SUPPORTED}
	require.Empty(t, read(), "the driver cannot say")
}

func TestAFabricThatCannotBeReadForAMomentStays(t *testing.T) {
	f, s := newFake(t, gputest.Node("h100-sxm", 2), Options{})
	f.gpus[0].fabric.State, f.gpus[1].fabric = nvml.GPU_FABRIC_STATE_IN_PROGRESS, joined
	before, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, gpu.ReasonFabric, before.Devices[0].Fault.Reason)
	f.gpus[0].refuse = map[string]nvml.Return{"nvmlDeviceGetGpuFabricInfoV": nvml.ERROR_TIMEOUT, "nvmlDeviceGetGpuFabricInfo": nvml.ERROR_NOT_SUPPORTED}
	after, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, before.Devices, after.Devices)
}

// A row that could not be replaced has not been replaced when the GPU is divided, after which its driver does
// not report rows (nvml.h at nvmlDeviceGetRemappedRows).
func TestAFailedRowStaysWhenAGPUIsDivided(t *testing.T) {
	f, s := newFake(t, gputest.Node("a100-80gb", 1), Options{})
	f.gpus[0].remapFailed = true
	_, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	f.gpus[0].device = gputest.WithMIG(f.gpus[0].device, "1g.10gb")
	f.gpus[0].refuse = refuseRows
	for range 3 {
		got, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		require.Equal(t, gpu.ReasonRowRemap, got.Devices[0].Fault.Reason)
	}
}

func TestAComputeModeThatCannotBeReadForAMomentStays(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 1), Options{})
	f.gpus[0].device.ComputeMode = gpu.ComputeExclusive
	_, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	f.gpus[0].refuse = map[string]nvml.Return{"nvmlDeviceGetComputeMode": nvml.ERROR_TIMEOUT}
	got, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, gpu.ComputeExclusive, got.Devices[0].ComputeMode)
}
