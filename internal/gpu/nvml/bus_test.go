package nvml

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/test/lab/built"
)

// deliver returns a WatchDevices that delivers what is sent to the channel.
func deliver(events <-chan host.DeviceEvent) func(context.Context, func(host.DeviceEvent)) error {
	return func(ctx context.Context, changed func(host.DeviceEvent)) error {
		for {
			select {
			case e := <-events:
				changed(e)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

func TestAGPUThatIsPluggedInIsNoticedByTheKernelsEvent(t *testing.T) {
	events := make(chan host.DeviceEvent)
	f, s := newFake(t, gputest.Node("t4", 3), Options{ProbeInterval: time.Hour, WatchDevices: deliver(events)})
	s.hurried = time.Hour
	f.lose(gputest.GPU(1), "gone")
	w := start(t, s)
	f.restore(gputest.GPU(1))
	events <- host.DeviceEvent{PCI: gputest.Node("t4", 3).Devices[1].PCI}
	require.Equal(t, "the GPU is new", w.until(t, gpu.EventChanged, gputest.GPU(1)).Message)
	f.lose(gputest.GPU(2), "gone")
	events <- host.DeviceEvent{}
	require.Equal(t, "the driver does not count the GPU any more", w.until(t, gpu.EventChanged, gputest.GPU(2)).Message)
}

func TestAReleasedGPUIsReadOnceItAnswersOnTheBus(t *testing.T) {
	if !alone(t) {
		return
	}
	s, root := simulated(t, "h100-sxm", "--gpus", "3")
	events := make(chan host.DeviceEvent)
	s.quiet, s.outsideEvery, s.watchDevices = 0, time.Hour, deliver(events)
	asked := make(chan int)
	s.outside = func(ctx context.Context, index int) (gpu.Device, error) {
		select {
		case asked <- index:
		case <-ctx.Done():
		}
		return s.Device(ctx, index)
	}
	first, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	w := start(t, s)
	sim := func(args ...string) { built.Gpusim(t, append(args, "--root", root, "--gpu", "1")...) }

	sim("lose")
	w.until(t, gpu.EventLost, first.Devices[1].UUID)
	s.Release([]gpu.UUID{first.Devices[1].UUID})
	require.Eventually(t, func() bool { return s.isReleased(first.Devices[1].UUID) }, patience, time.Millisecond)
	sim("reset", "--wait", "30s")
	require.Equal(t, 1, <-asked, "its configuration space can be read")
	w.until(t, gpu.EventChanged, first.Devices[1].UUID)

	s.Release([]gpu.UUID{first.Devices[1].UUID})
	sim("reset", "--wait", "30s")
	events <- host.DeviceEvent{PCI: first.Devices[1].PCI}
	require.Equal(t, 1, <-asked, "the kernel has told of it")
}

// While NVML is initialised again, which may take seconds, the GPU that is released for it is not opened from outside.
func TestAGPUThatIsBeingReleasedIsNotRead(t *testing.T) {
	_, s := newFake(t, gputest.Node("t4", 2), Options{})
	_, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	s.memory.out[gputest.GPU(1)] = gpu.Fault{Reason: gpu.ReasonLost}
	asked := make(chan int, 1)
	s.outside = func(_ context.Context, index int) (gpu.Device, error) { asked <- index; return gpu.Device{}, nil }
	w := &watch{Source: s, ctx: t.Context(), outsideReadings: make(chan outsideReading, 1), outsideReadAt: map[gpu.UUID]time.Time{}}
	w.cycled = make(chan error)
	w.readNextOutside()
	require.False(t, w.readingOutside)
	w.cycled = nil
	w.readNextOutside()
	require.Equal(t, 1, <-asked)
	w.outsideReader.Wait()
}
