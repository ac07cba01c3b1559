package health_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

// A GPU that is released, so that it can be reset, stays released until its memory has been replaced: to open it again
// means to release it again, for which NVML is shut down.
func TestAGPUWhoseMemoryWaitsStaysReleased(t *testing.T) {
	show := func(fault gpu.Reason, remap gpu.Remap) gpu.Snapshot {
		s := with(1, fault)
		s.Devices[1].Remap = remap
		return s
	}
	h := health.New(gpu.Fault{}).WithPolicy(health.DefaultPolicy().With(health.Changes{Remap: "unhealthy"}))
	h = h.ApplySnapshot(show("", gpu.RemapPending), now)
	require.True(t, h.AwaitsReset(gputest.GPU(1)))
	h = h.ApplySnapshot(show(gpu.ReasonUnwatched, gpu.RemapPending), now) // as a released one is shown
	require.True(t, h.AwaitsReset(gputest.GPU(1)))
	require.Equal(t, marks{1: gpu.ReasonResetNeeded}, reasons(h))
	h = h.ApplySnapshot(show(gpu.ReasonUnwatched, gpu.RemapNone), now) // it was reset
	require.False(t, h.AwaitsReset(gputest.GPU(1)))
	h = h.ApplySnapshot(node, now)
	require.Empty(t, reasons(h))
}

// What a GPU is divided into is known while its memory waits.
func TestAGPUWhoseMemoryWaitsHasTheLayoutThatWasRead(t *testing.T) {
	h := health.New(gpu.Fault{}).WithPolicy(health.DefaultPolicy().With(health.Changes{Remap: "unhealthy"}))
	snap := divided.Clone()
	snap.Devices[0].Remap = gpu.RemapPending
	h = h.ApplySnapshot(snap, now)
	require.NotEmpty(t, h.GPUs()[0].Device.MIG)
	snap.Devices[0].MIGEnabled, snap.Devices[0].MIG = false, nil
	h = h.ApplySnapshot(snap, now)
	require.False(t, h.GPUs()[0].Device.MIGEnabled)
}
