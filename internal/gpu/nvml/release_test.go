package nvml

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/test/lab/built"
)

func TestReleasedGPUCanBeResetAndIsOpenedAgainAfterwards(t *testing.T) {
	if !alone(t) {
		return
	}
	s, root := simulated(t, "h100-sxm", "--gpus", "3")
	s.quiet, s.outsideEvery = 0, 0
	var well atomic.Bool
	asked := make(chan int)
	first, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	s.outside = func(ctx context.Context, index int) (gpu.Device, error) {
		select {
		case asked <- index:
		case <-ctx.Done():
		}
		d := first.Devices[index]
		if !well.Load() {
			return d, errors.New("not to be seen")
		}
		return d, nil
	}
	id := func(i int) gpu.UUID { return first.Devices[i].UUID }
	sim := func(command string, i int, args ...string) {
		built.Gpusim(t, append([]string{command, "--root", root, "--gpu", strconv.Itoa(i)}, args...)...)
	}
	fault := func(i int) gpu.Fault {
		snap, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		return snap.Devices[i].Fault
	}
	w := start(t, s)

	sim("xid", 1, "--xid", "95")
	w.until(t, gpu.EventChanged, id(1))
	needs := fault(1)
	require.Equal(t, gpu.ReasonResetNeeded, needs.Reason)
	s.Release([]gpu.UUID{id(1)})
	sim("reset", 1, "--wait", "30s") // fails the test if it is refused
	require.Equal(t, 1, <-asked)
	require.Equal(t, needs, fault(1), "as it was last read, since it is not read")
	sim("xid", 0, "--xid", "48")
	w.until(t, gpu.EventXID, id(0))

	well.Store(true)
	require.Equal(t, 1, <-asked)
	for again := false; !again; { // the recovery action was a change, too
		again = w.until(t, gpu.EventChanged, id(1)).Message == "the GPU answers again"
	}
	require.Zero(t, fault(1))
	sim("xid", 1, "--xid", "31")
	w.until(t, gpu.EventXID, id(1))

	// A GPU without a fault in the driver does not count as recovered for that.
	s.Release([]gpu.UUID{id(2), "GPU-of-another-node"})
	sim("reset", 2, "--wait", "30s")
	for range 3 {
		require.Equal(t, 2, <-asked)
	}
	require.Equal(t, gpu.Fault{Reason: gpu.ReasonUnwatched, Message: letGoMessage}, fault(2))
	s.Release(nil)
	require.Zero(t, fault(2))
	w.until(t, gpu.EventChanged, id(2))
}

func TestReleasedGPUsAreReadOneAfterTheOther(t *testing.T) {
	if !alone(t) {
		return
	}
	s, _ := simulated(t, "h100-sxm", "--gpus", "4")
	s.quiet, s.outsideEvery = 0, 0
	asked := make(chan int)
	first, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	s.outside = func(ctx context.Context, index int) (gpu.Device, error) {
		select {
		case asked <- index:
		case <-ctx.Done():
		}
		return gpu.Device{}, errors.New("not to be seen")
	}
	start(t, s)
	var ids []gpu.UUID
	for _, d := range first.Devices[1:] {
		ids = append(ids, d.UUID)
	}
	s.Release(ids)
	<-asked // perhaps before all were released
	seen := map[int]bool{}
	for range 6 {
		seen[<-asked] = true
	}
	require.Equal(t, map[int]bool{1: true, 2: true, 3: true}, seen)
}

func TestNothingIsReleasedWithoutOutside(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 2), Options{})
	s.quiet = 0
	start(t, s)
	_, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	s.Release([]gpu.UUID{gputest.Node("t4", 2).Devices[0].UUID})
	require.False(t, hasGPUToRelease(s))
	f.mu.Lock()
	defer f.mu.Unlock()
	require.Zero(t, f.shutdowns)
}

func hasGPUToRelease(s *Source) bool {
	wanted, _ := s.releases()
	return wanted
}

// Who released a GPU until its memory is replaced has to learn of it.
func TestAReleasedGPUShowsWhetherItsMemoryWaits(t *testing.T) {
	var waits atomic.Bool
	waits.Store(true)
	var f *fake
	f, s := newFake(t, gputest.Node("h100-sxm", 2), Options{ReadOutside: func(context.Context, int) (gpu.Device, error) {
		d := f.gpus[0].device
		if waits.Load() {
			d.Remap = gpu.RemapPending
		}
		return d, nil
	}})
	s.quiet, s.hurried, s.outsideEvery = 0, time.Millisecond, time.Millisecond
	f.gpus[0].remapPending = true
	read := func() gpu.Device {
		got, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		return got.Devices[0]
	}
	require.Equal(t, gpu.RemapPending, read().Remap)
	w := start(t, s)
	s.Release([]gpu.UUID{gputest.GPU(0)})
	for !s.isReleased(gputest.GPU(0)) {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(10 * s.probe)
	d := read()
	require.Equal(t, gpu.RemapPending, d.Remap)
	require.Equal(t, gpu.ReasonUnwatched, d.Fault.Reason)
	waits.Store(false)
	require.Eventually(t, func() bool { return read().Remap == gpu.RemapNone }, patience, time.Millisecond)
	w.until(t, gpu.EventChanged, gputest.GPU(0))
}
