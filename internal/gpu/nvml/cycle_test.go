package nvml

import (
	"context"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

// newReleasing returns a driver of three GPUs, the first of which may be released.
func newReleasing(t *testing.T, o Options) (*fake, *Source) {
	o.ReadOutside = func(ctx context.Context, _ int) (gpu.Device, error) {
		<-ctx.Done()
		return gpu.Device{}, ctx.Err()
	}
	f, s := newFake(t, gputest.Node("t4", 3), o)
	_, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	return f, s
}

func (f *fake) count(of *int) func() int {
	return func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return *of
	}
}

func TestEventsOfANeighbourDelayAReleaseOnlyForAWhile(t *testing.T) {
	f, s := newReleasing(t, Options{ProbeInterval: 10 * time.Millisecond})
	s.quiet = 100 * time.Millisecond
	w := start(t, s)
	s.Release([]gpu.UUID{gputest.GPU(0)})
	began := time.Now()
	for gap := false; !gap; {
		require.Less(t, time.Since(began), patience)
		f.send(gputest.GPU(1), nvml.EventTypeXidCriticalError, 31, none, none)
		// An event that comes while NVML is shut down is lost; the gap says so.
		e := w.next(t)
		for e.Kind != gpu.EventGap && (e.Kind != gpu.EventXID || e.UUID != gputest.GPU(1)) {
			e = w.next(t)
		}
		gap = e.Kind == gpu.EventGap
		time.Sleep(5 * time.Millisecond) // far shorter than quiet
	}
	require.GreaterOrEqual(t, time.Since(began), s.quiet, "but it did wait for quiet")
	require.Positive(t, f.count(&f.shutdowns)())
}

func TestHangingCallLeavesNeighboursWatchedAndPreventsShutdown(t *testing.T) {
	f, s := newReleasing(t, Options{CallTimeout: 50 * time.Millisecond})
	s.quiet = 0
	w := start(t, s)
	hang := make(chan struct{})
	defer close(hang)
	f.locked(func() { f.find(gputest.GPU(2)).hang = hang })
	w.until(t, gpu.EventChanged, gputest.GPU(2))
	time.Sleep(2 * s.limit)
	sets := len(f.sets)
	s.Release([]gpu.UUID{gputest.GPU(0)})
	for range 20 { // probes
		f.send(gputest.GPU(1), nvml.EventTypeXidCriticalError, 48, none, none)
		w.until(t, gpu.EventXID, gputest.GPU(1))
		time.Sleep(s.probe)
	}
	f.locked(func() {
		require.Zero(t, f.shutdowns)
		require.Len(t, f.sets, sets, "the set in force is not ended in vain")
	})
}

func TestGPUReportedLostIsProbedAtOnce(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 2), Options{ProbeInterval: time.Hour})
	f.gpus[0].support |= nvml.EventTypeGpuUnavailableError
	w := start(t, s)
	f.send(gputest.GPU(0), nvml.EventTypeGpuUnavailableError, 0, none, none)
	require.False(t, w.until(t, gpu.EventLost, gputest.GPU(0)).Observed, "it is the driver's word")

	f.locked(func() { f.find(gputest.GPU(0)).calls = nvml.ERROR_GPU_IS_LOST })
	f.send(gputest.GPU(0), nvml.EventTypeGpuUnavailableError, 0, none, none)
	for seen := false; !seen; { // the driver reports it too
		seen = w.until(t, gpu.EventLost, gputest.GPU(0)).Observed
	}
}

// A GPU that is back must not be released before that is reported.
func TestPendingEventsAreDeliveredBeforeARelease(t *testing.T) {
	_, s := newFake(t, gputest.Node("t4", 1), Options{})
	w := &watch{Source: s, lastEvent: time.Now().Add(-s.quiet)}
	require.False(t, w.shouldCycle(), "there is no reason to")
	w.letGo = true
	require.True(t, w.shouldCycle())
	w.report(gpu.EventChanged, gputest.GPU(0), "the GPU answers again")
	require.False(t, w.shouldCycle())
	w.backoff.since = time.Now().Add(-longestWait * s.quiet)
	require.True(t, w.shouldCycle(), "but not for ever")
	w.backoff.until = time.Now().Add(time.Hour)
	require.False(t, w.shouldCycle(), "it was tried in vain")
}

// A reset of a GPU must not wait for a distant probe.
func TestReleaseDoesNotWaitForTheProbe(t *testing.T) {
	f, s := newReleasing(t, Options{ProbeInterval: time.Hour})
	s.quiet, s.hurried = 0, time.Millisecond
	w := start(t, s)
	s.Release([]gpu.UUID{gputest.GPU(0)})
	for f.count(&f.shutdowns)() == 0 {
		w.until(t, gpu.EventGap, "") // when it begins, while it lasts, and when it has ended
	}
}

func TestSlicesAreShortOnlyWhileAGPUIsToBeReleased(t *testing.T) {
	_, s := newFake(t, gputest.Node("t4", 1), Options{})
	w := &watch{Source: s}
	s.slice, s.probe = time.Minute, time.Hour
	require.Equal(t, time.Hour, w.interval())
	require.Equal(t, time.Minute, s.nextSlice())
	w.letGo = true
	require.Equal(t, 10*time.Second, w.interval())
	require.Equal(t, shortSlice, s.nextSlice())
	w.letGo = false
	s.memory.out[gputest.GPU(0)] = gpu.Fault{Reason: gpu.ReasonResetNeeded}
	require.Equal(t, 10*time.Second, w.interval(), "whether it was reset is still looked for")
	require.Equal(t, time.Minute, s.nextSlice())
	s.slice, s.probe = time.Millisecond, time.Millisecond
	require.Equal(t, time.Millisecond, w.interval())

	plain := newSource(nil, Options{})
	require.Equal(t, []time.Duration{shortSlice, 10 * time.Second}, []time.Duration{plain.slice, plain.probe})
	given := newSource(nil, Options{Slice: time.Second, ProbeInterval: time.Minute})
	require.Equal(t, []time.Duration{time.Second, time.Minute}, []time.Duration{given.slice, given.probe})
}

// NVML may not return for minutes when it opens or closes a GPU that does not answer. Its neighbours work on.
func TestNeighboursStayWhileNVMLHangsInItsInitialisation(t *testing.T) {
	f, s := newReleasing(t, Options{CallTimeout: 50 * time.Millisecond, ProbeInterval: 10 * time.Millisecond})
	s.quiet, s.hurried = 0, 10*time.Millisecond
	before, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	w := start(t, s)
	f.lose(gputest.GPU(0), "calls")
	w.until(t, gpu.EventLost, gputest.GPU(0))
	hang := make(chan struct{})
	f.locked(func() { f.hangInit = hang })
	s.Release([]gpu.UUID{gputest.GPU(0)})
	for !s.isCycling() {
		time.Sleep(time.Millisecond)
	}
	for range 30 { // several times as long as a call may take
		began := time.Now()
		now, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		require.Less(t, time.Since(began), s.limit, "nobody waits for NVML")
		require.Equal(t, gpu.ReasonLost, now.Devices[0].Fault.Reason)
		require.Equal(t, before.Devices[1:], now.Devices[1:])
		time.Sleep(10 * time.Millisecond)
	}
	for len(w.events) > 0 {
		require.Equal(t, gpu.EventGap, w.next(t).Kind, "nothing is said of the neighbours but that no event is received")
	}
	f.locked(func() { f.hangInit = nil })
	close(hang)
	w.until(t, gpu.EventGap, "")
	f.send(gputest.GPU(1), nvml.EventTypeXidCriticalError, 48, none, none)
	for w.next(t).Kind != gpu.EventXID { // it is watched again
		f.send(gputest.GPU(1), nvml.EventTypeXidCriticalError, 48, none, none)
	}
}

// A call that hangs is not made again by the next Source of the process: each would take a thread for ever.
func TestACallThatHangsIsNotRepeatedByTheNextSource(t *testing.T) {
	process := NewProcess()
	hang := make(chan struct{})
	defer close(hang)
	var f *fake
	for i := range 5 {
		next, s := newFake(t, gputest.Node("t4", 3), Options{CallTimeout: 50 * time.Millisecond, Process: process})
		if f == nil {
			f = next
			f.gpus[2].hang = hang
		}
		s.lib = f
		got, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		require.Equal(t, gpu.ReasonUnreadable, got.Devices[2].Fault.Reason)
		require.Zero(t, got.Devices[1].Fault)
		require.Error(t, s.Close(), "Source %d: it hangs", i)
	}
	f.locked(func() { require.Equal(t, 1, f.gpus[2].counts["nvmlDeviceGetHandleByIndex_v2"]) })
}
