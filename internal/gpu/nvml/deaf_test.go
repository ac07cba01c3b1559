package nvml

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

// A GPU that can be read, but whose events cannot be received, is not watched, whatever the reason.
func TestAGPUThatIsLostOnlyToItsRegistrationIsNotWatched(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 2), Options{})
	f.gpus[0].register = nvml.ERROR_GPU_IS_LOST
	w := start(t, s)
	seen := map[gpu.EventKind]int{}
	for range 10 { // probes
		f.send(gputest.GPU(1), nvml.EventTypeXidCriticalError, 48, none, none)
		for e := w.next(t); e.Kind != gpu.EventXID; e = w.next(t) {
			require.Equal(t, gputest.GPU(0), e.UUID)
			seen[e.Kind]++
		}
		time.Sleep(s.probe)
	}
	require.Equal(t, map[gpu.EventKind]int{gpu.EventUnwatched: 1, gpu.EventLost: 1}, seen)
	f.locked(func() { f.gpus[0].register = nvml.SUCCESS })
	w.until(t, gpu.EventChanged, gputest.GPU(0))
}

// It is reported that a GPU is polled also after an error, and after its driver had reported that before.
func TestAGPUIsPolledAfterAnErrorOfItsRegistration(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 1), Options{})
	f.gpus[0].register = nvml.ERROR_NOT_SUPPORTED
	w := start(t, s)
	w.until(t, gpu.EventChanged, gputest.GPU(0))
	f.locked(func() { f.gpus[0].register = nvml.ERROR_TIMEOUT })
	s.mu.Lock()
	s.memory.noXIDs[gputest.GPU(0)] = time.Now() // so that it is tried again
	s.mu.Unlock()
	w.until(t, gpu.EventUnwatched, gputest.GPU(0))
	f.locked(func() { f.gpus[0].register = nvml.ERROR_NOT_SUPPORTED })
	w.until(t, gpu.EventChanged, gputest.GPU(0))
}

// A driver that had no events for a moment has them afterwards.
func TestADriverWithoutEventsForAMomentIsWatched(t *testing.T) {
	f, s := newReleasing(t, Options{})
	s.quiet, s.hurried = 0, time.Millisecond
	f.setError = nvml.ERROR_NOT_SUPPORTED
	w := start(t, s)
	w.until(t, gpu.EventChanged, "")
	f.locked(func() { f.setError = nvml.SUCCESS })
	s.Release([]gpu.UUID{gputest.GPU(0)}) // after which it is tried again
	require.Eventually(t, func() bool {
		got, err := s.Snapshot(t.Context())
		return err == nil && len(got.Devices[1].Notes) == 0
	}, patience, time.Millisecond)
}

// A call of a function that the library lacks ends the process.
func TestALibraryThatCannotWaitForEventsIsPolled(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 1), Options{})
	s.has["nvmlEventSetWait"], s.has["nvmlEventSetWait_v2"] = false, false
	w := start(t, s)
	w.until(t, gpu.EventChanged, "")
	require.Empty(t, f.sets)
}

// A wait for events that does not return receives none.
func TestAWaitThatHangsWatchesNothing(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 2), Options{CallTimeout: 50 * time.Millisecond})
	w := start(t, s)
	hang := make(chan struct{})
	f.locked(func() { f.hangWait = hang })
	w.until(t, gpu.EventUnwatched, "")
	time.Sleep(3 * s.probe)
	require.Empty(t, w.events, "it is told once")
	f.locked(func() { f.hangWait = nil })
	close(hang)
	w.until(t, gpu.EventChanged, "")
	f.send(gputest.GPU(1), nvml.EventTypeXidCriticalError, 48, none, none)
	w.until(t, gpu.EventXID, gputest.GPU(1))
}

// A driver that does not wait, though there is no event, keeps no CPU busy.
func TestWaitsThatEndAtOnceCauseNoStorm(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 2), Options{})
	f.impatient = true
	w := start(t, s)
	time.Sleep(10 * s.slice)
	require.Less(t, f.count(&f.waitCount)(), 30)
	f.send(gputest.GPU(1), nvml.EventTypeXidCriticalError, 48, none, none)
	w.until(t, gpu.EventXID, gputest.GPU(1))
}
