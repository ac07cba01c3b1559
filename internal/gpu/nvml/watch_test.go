package nvml

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

// watched is a running Watch.
type watched struct {
	events chan gpu.Event
	ended  chan struct{}
	err    error
}

// start watches until the end of the test, or until Watch ends by itself.
func start(t *testing.T, s *Source) *watched {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := &watched{events: make(chan gpu.Event, 1000), ended: make(chan struct{})}
	ready := make(chan struct{})
	go func() {
		defer close(w.ended)
		w.err = s.Watch(ctx, func() { close(ready) }, func(e gpu.Event) { w.events <- e })
	}()
	t.Cleanup(func() { cancel(); _ = w.wait(t) })
	select {
	case <-ready:
	case <-w.ended:
		t.Fatalf("Watch ended: %v", w.err)
	case <-time.After(patience):
		t.Fatal("Watch is not ready")
	}
	return w
}

func (w *watched) wait(t *testing.T) error {
	t.Helper()
	select {
	case <-w.ended:
		return w.err
	case <-time.After(patience):
		t.Fatal("Watch does not end")
		return nil
	}
}

func (w *watched) next(t *testing.T) gpu.Event {
	t.Helper()
	select {
	case e := <-w.events:
		return e
	case <-w.ended:
		t.Fatalf("Watch ended: %v", w.err)
	case <-time.After(patience):
		t.Fatal("no event came")
	}
	return gpu.Event{}
}

// until skips events until there is one of the given kind and GPU.
func (w *watched) until(t *testing.T, kind gpu.EventKind, id gpu.UUID) gpu.Event {
	t.Helper()
	for {
		if e := w.next(t); e.Kind == kind && e.UUID == id {
			return e
		}
	}
}

func TestUnwatchableGPUIsReportedAndTheOthersGoOn(t *testing.T) {
	for name, spoil := range map[string]func(*fakeGPU){
		"registering fails": func(g *fakeGPU) { g.register = nvml.ERROR_UNKNOWN },
		"the events are not known": func(g *fakeGPU) {
			g.refuse = map[string]nvml.Return{"nvmlDeviceGetSupportedEventTypes": nvml.ERROR_UNKNOWN}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := newFake(t, gputest.Node("t4", 3), Options{})
			f.locked(func() { spoil(f.gpus[1]) })
			w := start(t, s)
			e := w.next(t)
			require.Equal(t, gpu.EventUnwatched, e.Kind)
			require.Equal(t, gputest.GPU(1), e.UUID)
			require.Contains(t, e.Message, "cannot be watched: ")
			f.send(gputest.GPU(2), nvml.EventTypeXidCriticalError, 48, none, none)
			e = w.next(t)
			require.Equal(t, gpu.EventXID, e.Kind, "and it is told once only: %+v", e)

			f.locked(func() {
				f.gpus[1].register, f.gpus[1].refuse = nvml.SUCCESS, nil
			})
			e = w.until(t, gpu.EventChanged, gputest.GPU(1))
			require.Equal(t, "its health is watched again", e.Message)
		})
	}
}

// The indexes of the neighbours shift when a GPU leaves the bus, at whatever moment of a reading or a registration.
func TestGPUThatLeavesAtAnyMomentTouchesNoNeighbour(t *testing.T) {
	const gpus = 3
	for leaving := range gpus {
		for moment := range 3 * gpus {
			f, s := newFake(t, gputest.Node("t4", gpus), Options{ProbeInterval: 5 * time.Millisecond})
			var calls atomic.Int32
			f.beforeHandle = func() {
				if calls.Add(1) == int32(moment+1) {
					f.lose(gputest.GPU(leaving), "gone")
				}
			}
			healthy := func() (n int) {
				now, err := s.Snapshot(t.Context())
				require.NoError(t, err)
				for _, d := range now.Devices {
					if d.UUID != gputest.GPU(leaving) && d.Fault == (gpu.Fault{}) {
						n++
					}
				}
				return n
			}
			w := start(t, s)
			require.Equal(t, gpus-1, healthy(), "GPU %d leaves at call %d", leaving, moment)
			require.Eventually(t, func() bool { return calls.Load() > int32(moment) }, patience, time.Millisecond)
			require.Equal(t, gpus-1, healthy(), "GPU %d leaves at call %d", leaving, moment)
			neighbour, deadline := gputest.GPU((leaving+1)%gpus), time.Now().Add(patience)
			for seen := false; !seen; { // watched before long, and with nothing else to tell
				require.True(t, time.Now().Before(deadline), "GPU %d leaves at call %d: its neighbour is not watched", leaving, moment)
				f.send(neighbour, nvml.EventTypeXidCriticalError, 13, none, none)
				select {
				case e := <-w.events:
					require.True(t, e.UUID == gputest.GPU(leaving) || e.Kind == gpu.EventXID, "GPU %d leaves at call %d: %+v", leaving, moment, e)
					seen = e.Kind == gpu.EventXID
				case <-time.After(time.Millisecond):
				}
			}
		}
	}
}

// A GPU that answers as lost is left out of a new event set. If it leaves the bus just then, its neighbour cannot
// be registered before the next reading, and the set before must deliver what happens until then.
func TestEventsOfANeighbourAreDeliveredWhileIndexesShift(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 2), Options{ProbeInterval: 5 * time.Millisecond})
	calls := 0 // of the goroutine of Watch, with a new set that is still empty
	f.beforeHandle = func() {
		var empty, freed bool
		state := func() {
			if empty = len(f.sets) > 1 && len(f.sets[1].gpus) == 0; empty {
				freed = f.sets[0].freed
			}
		}
		if f.locked(state); !empty {
			return
		}
		switch calls++; calls {
		case 1: // registering the neighbour
			f.lose(gputest.GPU(0), "gone")
		case 2: // reading again
			for end := time.Now().Add(100 * time.Millisecond); !freed && time.Now().Before(end); f.locked(state) {
				time.Sleep(time.Millisecond)
			}
			f.send(gputest.GPU(1), nvml.EventTypeXidCriticalError, 79, none, none)
		}
	}
	w := start(t, s)
	f.locked(func() { f.gpus[0].handle = nvml.ERROR_GPU_IS_LOST })
	for {
		if e := w.next(t); e.Kind == gpu.EventXID {
			require.Equal(t, gputest.GPU(1), e.UUID)
			return
		}
	}
}

func TestFailingWaitWithoutAFaultyGPUEndsTheWatch(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 2), Options{ProbeInterval: time.Hour})
	w := start(t, s)
	f.locked(func() { f.waitFailures = -1; f.wakeWaiters() })
	require.ErrorContains(t, w.wait(t), "no GPU can be watched: nvmlEventSetWait")
	for _, set := range f.sets {
		require.True(t, set.freed)
	}
}

func TestWaitThatFailsForAWhileGoesOn(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 2), Options{ProbeInterval: time.Hour})
	w := start(t, s)
	f.locked(func() { f.waitFailures = maxStrikes; f.wakeWaiters() })
	require.Eventually(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.waitFailures == 0 && len(f.sets) == maxStrikes+1 && len(f.sets[maxStrikes].gpus) == 2
	}, patience, time.Millisecond)
	f.send(gputest.GPU(1), nvml.EventTypeXidCriticalError, 48, none, none)
	require.EqualValues(t, 48, w.next(t).XID)
}

func TestEachFailureIsCountedByItsCode(t *testing.T) {
	var mu sync.Mutex
	codes := map[string]int{}
	failed := func(code string) {
		mu.Lock()
		defer mu.Unlock()
		codes[code]++
	}
	f, s := newFake(t, gputest.Node("t4", 2), Options{ProbeInterval: time.Hour, CallTimeout: 50 * time.Millisecond, OnFailure: failed})
	_, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Empty(t, codes, "what is not supported is no failure")
	f.gpus[1].handle = nvml.ERROR_GPU_IS_LOST
	_, err = s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string]int{"GPU_IS_LOST": 1}, codes)
	f.gpus[1].handle = nvml.Return(4711)
	_, err = s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string]int{"GPU_IS_LOST": 1, "4711": 1}, codes)
	f.gpus[1].handle = nvml.SUCCESS
	f.mu.Lock() // every call waits for it
	_, err = s.Snapshot(t.Context())
	f.mu.Unlock()
	require.ErrorContains(t, err, "has not answered")
	require.Equal(t, map[string]int{"GPU_IS_LOST": 1, "4711": 1, "HUNG": 1}, codes)

	f, s = newFake(t, gputest.Node("t4", 2), Options{ProbeInterval: time.Hour, OnFailure: failed})
	clear(codes)
	w := start(t, s)
	f.locked(func() { f.waitFailures = -1; f.wakeWaiters() })
	require.Error(t, w.wait(t))
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, map[string]int{"UNKNOWN": maxStrikes + 1}, codes)
}

func TestNoEventSetsIsAnError(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 2), Options{})
	f.setError = nvml.ERROR_UNKNOWN
	err := s.Watch(t.Context(), func() { t.Error("ready") }, func(gpu.Event) {})
	require.ErrorContains(t, err, "nvmlEventSetCreate")
}

func TestDriverThatGoesAwayEndsTheWatch(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 2), Options{})
	w := start(t, s)
	f.locked(func() { f.driver = nvml.ERROR_LIB_RM_VERSION_MISMATCH })
	require.ErrorIs(t, w.wait(t), gpu.ErrVersionMismatch)
}

func TestLostGPUIsReleasedOnceThereIsQuiet(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 2), Options{})
	s.quiet = 0
	w := start(t, s)
	f.lose(gputest.GPU(0), "events")
	w.until(t, gpu.EventLost, gputest.GPU(0))
	shut := func() int { f.mu.Lock(); defer f.mu.Unlock(); return f.shutdowns }
	require.Eventually(t, func() bool { return shut() == 1 }, patience, time.Millisecond)
	f.restore(gputest.GPU(0))
	w.until(t, gpu.EventChanged, gputest.GPU(0))
	for _, id := range []gpu.UUID{gputest.GPU(0), gputest.GPU(1)} {
		f.send(id, nvml.EventTypeXidCriticalError, 48, none, none)
		w.until(t, gpu.EventXID, id)
	}
	require.Equal(t, 1, shut(), "once for one loss: while NVML is shut down nothing is heard")
	f.mu.Lock()
	defer f.mu.Unlock()
	require.Equal(t, 2, f.inits)
	for _, set := range f.sets[:len(f.sets)-1] {
		require.True(t, set.freed, "sets that are no longer in force are freed")
	}
}

func TestEventsOfNoKnownGPUConcernAll(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 2), Options{ProbeInterval: time.Hour})
	w := start(t, s)
	f.locked(func() {
		f.sets[0].queue = append(f.sets[0].queue, nvml.EventData{
			Device: &fakeGPU{lib: f}, EventType: nvml.EventTypeXidCriticalError, EventData: 79, GpuInstanceId: none, ComputeInstanceId: none,
		})
		f.wakeWaiters()
	})
	e := w.next(t)
	require.Equal(t, gpu.UUID(""), e.UUID)
	require.EqualValues(t, 79, e.XID)
	require.Equal(t, "XID 79 (the GPU no longer answers on PCIe)", e.Message)
}

func TestKindsOfEvent(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 1), Options{ProbeInterval: time.Hour})
	w := start(t, s)
	for _, c := range []struct {
		nvml uint64
		want gpu.EventKind
	}{
		{nvml.EventTypePState, 0}, // not requested, not reported
		{nvml.EventTypeXidCriticalError, gpu.EventXID},
		{nvml.EventTypeDoubleBitEccError, gpu.EventECC},
		{nvml.EventMigConfigChange, gpu.EventChanged},
		{nvml.EventTypeDramRetirementFailure, gpu.EventChanged},
		{nvml.EventTypeGpuRecoveryAction, gpu.EventChanged},
		{nvml.EventTypeGpuUnavailableError, gpu.EventLost},
	} {
		f.send(gputest.GPU(0), c.nvml, 1, none, none)
		if c.want == 0 {
			continue
		}
		e := w.next(t)
		require.Equal(t, c.want, e.Kind)
		require.Equal(t, gputest.GPU(0), e.UUID)
		require.NotEmpty(t, e.Message)
	}
}

func TestChangesNameEachGPUOnce(t *testing.T) {
	node := gputest.Node("a100-80gb", 4).Devices
	fault := gpu.Fault{Reason: gpu.ReasonUnreadable, Message: "x"}
	after := gputest.Node("a100-80gb", 5).Devices[1:]
	for i := range after {
		after[i].Index = i // all moved
	}
	after[0].Fault = gpu.Fault{Reason: gpu.ReasonLost, Message: "lost"}
	after[1] = gputest.WithMIG(after[1], "1g.10gb")
	after[2].Fault = fault
	var got []gpu.Event
	for _, e := range changes(node, after) {
		require.NotEmpty(t, e.Message)
		got = append(got, gpu.Event{Kind: e.Kind, UUID: e.UUID})
	}
	require.Equal(t, []gpu.Event{
		{Kind: gpu.EventLost, UUID: gputest.GPU(1)},
		{Kind: gpu.EventChanged, UUID: gputest.GPU(2)},
		{Kind: gpu.EventChanged, UUID: gputest.GPU(3)},
		{Kind: gpu.EventChanged, UUID: gputest.GPU(4)},
		{Kind: gpu.EventChanged, UUID: gputest.GPU(0)},
	}, got)
	require.Empty(t, changes(node, node))
}
