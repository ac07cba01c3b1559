package nvml

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

// Of two GPUs with one UUID both are watched, and nothing about them changes by itself.
func TestGPUsWithOneUUIDAreBothWatched(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 3), Options{})
	f.gpus[1].device.UUID = f.gpus[0].device.UUID
	w := start(t, s)
	f.locked(func() { require.Len(t, f.sets[0].gpus, 3) })
	time.Sleep(5 * s.probe)
	require.Empty(t, w.events)
	got, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, got.Devices[0].PCI, got.Devices[1].PCI)

	f.locked(func() { f.gpus[0].calls = nvml.ERROR_GPU_IS_LOST })
	w.until(t, gpu.EventLost, f.gpus[0].device.UUID)
	time.Sleep(5 * s.probe)
	for len(w.events) > 0 {
		require.NotEqual(t, gpu.EventLost, w.next(t).Kind, "it is told once")
	}
	f.locked(func() { require.LessOrEqual(t, len(f.sets), 3) })
}

// Of two GPUs with one UUID, the one without a handle keeps it.
func TestAGPUWithAnotherOnesUUIDKeepsItWithoutAHandle(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 3), Options{})
	f.gpus[1].device.UUID = f.gpus[0].device.UUID
	_, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	f.gpus[0].handle = nvml.ERROR_GPU_IS_LOST
	got, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, f.gpus[0].device.UUID, got.Devices[0].UUID)
	require.Equal(t, gpu.ReasonLost, got.Devices[0].Fault.Reason)
	require.Zero(t, got.Devices[1].Fault)
	require.Zero(t, got.Devices[2].Fault)
}

// An index is that of another GPU after one has left the bus, for example one that hangs.
func TestAGPUThatHangsAndLeavesTakesNoNeighbour(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 4), Options{CallTimeout: 50 * time.Millisecond})
	hang := make(chan struct{})
	defer close(hang)
	f.gpus[1].hang = hang
	got, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, gpu.ReasonUnreadable, got.Devices[1].Fault.Reason)
	f.locked(func() { f.gpus[1].gone = true })
	for range 2 {
		got, err = s.Snapshot(t.Context())
		require.NoError(t, err)
		require.Len(t, got.Devices, 3)
		for _, d := range got.Devices {
			require.Zero(t, d.Fault)
		}
		time.Sleep(2 * s.limit)
	}
}
