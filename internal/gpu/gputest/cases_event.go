package gputest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
)

// eventCases test Source.Watch. A Fixture's functions (XID, ECC, SetMIG …) make the source produce an event; a
// case whose function is nil is skipped.
var eventCases = []Case{
	{"XIDReachesTheRightGPU", xidReachesTheRightGPU},
	{"ApplicationXIDsAreDelivered", applicationXIDsAreDelivered},
	{"XIDOfOneMIGDevice", xidOfOneMIGDevice},
	{"ECCErrorIsDelivered", eccErrorIsDelivered},
	{"NoEventIsMissedOnceReady", noEventIsMissedOnceReady},
	{"EventsComeOneAtATime", eventsComeOneAtATime},
	{"SlowReceiverLosesNothing", slowReceiverLosesNothing},
	{"MIGChangeIsAnEvent", migChangeIsAnEvent},
	{"WatchEndsWithItsContext", watchEndsWithItsContext},
	{"WatchAgain", watchAgain},
	{"OneWatchAtATime", oneWatchAtATime},
}

func xidReachesTheRightGPU(t *testing.T, f Fixture) {
	skipUnless(t, f.XID != nil, "an XID")
	a, b := pick(t, snapshot(t, f.Source))
	start := time.Now()
	r := watch(t, f.Source, nil)
	f.XID(b, 48)
	f.XID(a, 79)
	events := of(gpu.EventXID, r.wait("two XIDs", count(gpu.EventXID, 2)))
	require.Len(t, events, 2)
	require.Equal(t, b, events[0].UUID)
	require.EqualValues(t, 48, events[0].XID)
	require.Equal(t, a, events[1].UUID)
	require.EqualValues(t, 79, events[1].XID)
	for _, e := range events {
		require.Equal(t, -1, e.GPUInstance, "an XID of the whole GPU names no MIG device")
		require.Equal(t, -1, e.ComputeInstance)
		require.WithinRange(t, e.Time, start, time.Now())
	}
}

func applicationXIDsAreDelivered(t *testing.T, f Fixture) {
	skipUnless(t, f.XID != nil, "an XID")
	a, _ := pick(t, snapshot(t, f.Source))
	r := watch(t, f.Source, nil)
	want := []uint64{13, 31, 43, 45, 68, 109}
	for _, xid := range want {
		f.XID(a, xid)
	}
	require.Equal(t, want, xids(r.wait("the XIDs", count(gpu.EventXID, len(want)))),
		"which XIDs matter is for the receiver to say")
}

func xidOfOneMIGDevice(t *testing.T, f Fixture) {
	skipUnless(t, f.SetMIG != nil && f.MIGXID != nil, "an XID of a MIG device")
	id := pickMIG(t, snapshot(t, f.Source))
	f.SetMIG(id, "1g.10gb", "2g.20gb")
	d, ok := snapshot(t, f.Source).Device(id)
	require.True(t, ok)
	require.Len(t, d.MIG, 2)
	r := watch(t, f.Source, nil)
	f.MIGXID(id, d.MIG[1].GPUInstance, d.MIG[1].ComputeInstance, 94)
	e := of(gpu.EventXID, r.wait("the XID", count(gpu.EventXID, 1)))[0]
	require.Equal(t, id, e.UUID)
	require.EqualValues(t, 94, e.XID)
	require.Equal(t, d.MIG[1].GPUInstance, e.GPUInstance)
	require.Equal(t, d.MIG[1].ComputeInstance, e.ComputeInstance)
}

func eccErrorIsDelivered(t *testing.T, f Fixture) {
	skipUnless(t, f.ECC != nil, "an uncorrectable ECC error")
	_, b := pick(t, snapshot(t, f.Source))
	r := watch(t, f.Source, nil)
	f.ECC(b)
	e := of(gpu.EventECC, r.wait("the ECC error", count(gpu.EventECC, 1)))[0]
	require.Equal(t, b, e.UUID)
}

func noEventIsMissedOnceReady(t *testing.T, f Fixture) {
	skipUnless(t, f.XID != nil, "an XID")
	a, _ := pick(t, snapshot(t, f.Source))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var got, want []uint64
	// Cause the XIDs inside ready, the moment from which no event may be missed.
	ready := func() {
		for i := range uint64(40) {
			want = append(want, 200+i)
			f.XID(a, 200+i)
		}
	}
	err := f.Source.Watch(ctx, ready, func(e gpu.Event) {
		if e.Kind == gpu.EventXID {
			got = append(got, e.XID)
		}
		if len(got) == 40 {
			cancel()
		}
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, want, got)
}

func eventsComeOneAtATime(t *testing.T, f Fixture) {
	skipUnless(t, f.XID != nil, "an XID")
	a, b := pick(t, snapshot(t, f.Source))
	r := watch(t, f.Source, nil) // the recorder fails on overlapping deliveries
	var group sync.WaitGroup
	for _, id := range []gpu.UUID{a, b} {
		group.Go(func() {
			for range 20 {
				f.XID(id, 48)
			}
		})
	}
	group.Wait()
	r.wait("forty XIDs", count(gpu.EventXID, 40))
}

func slowReceiverLosesNothing(t *testing.T, f Fixture) {
	skipUnless(t, f.XID != nil, "an XID")
	a, _ := pick(t, snapshot(t, f.Source))
	inside, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r := watch(t, f.Source, func(gpu.Event) {
		once.Do(func() { close(inside); <-goOn })
	})
	f.XID(a, 300)
	select {
	case <-inside:
	case <-time.After(patience):
		close(goOn)
		t.Fatal("the first XID did not come")
	}
	want := []uint64{300}
	for i := range uint64(20) {
		f.XID(a, 301+i)
		want = append(want, 301+i)
	}
	snapshot(t, f.Source) // a slow receiver must not block readers
	close(goOn)
	require.Equal(t, want, xids(r.wait("the XIDs", count(gpu.EventXID, len(want)))))
}

func migChangeIsAnEvent(t *testing.T, f Fixture) {
	skipUnless(t, f.SetMIG != nil, "a MIG layout")
	id := pickMIG(t, snapshot(t, f.Source))
	r := watch(t, f.Source, nil)
	changed := func(events []gpu.Event) bool {
		for _, e := range of(gpu.EventChanged, events) {
			if e.UUID == id || e.UUID == "" {
				// A Snapshot read after the first such event must contain the change.
				d, _ := snapshot(t, f.Source).Device(id)
				return len(d.MIG) == 2
			}
		}
		return false
	}
	f.SetMIG(id, "1g.10gb", "2g.20gb")
	events := r.wait("the change", changed)
	require.Empty(t, of(gpu.EventLost, events), "a GPU whose MIG layout changes is not lost")
	require.Empty(t, of(gpu.EventUnwatched, events))
}

func watchEndsWithItsContext(t *testing.T, f Fixture) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, f.Source.Watch(cancelled, nil, func(gpu.Event) {}), context.Canceled)

	require.ErrorIs(t, watch(t, f.Source, nil).stop(), context.Canceled)

	timed, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, f.Source.Watch(timed, nil, func(gpu.Event) {}), context.DeadlineExceeded)
}

func watchAgain(t *testing.T, f Fixture) {
	skipUnless(t, f.XID != nil, "an XID")
	a, _ := pick(t, snapshot(t, f.Source))
	for i := range uint64(3) {
		r := watch(t, f.Source, nil)
		f.XID(a, 400+i)
		require.Equal(t, []uint64{400 + i}, xids(r.wait("the XID", count(gpu.EventXID, 1))),
			"a new Watch delivers what happens from then on")
		require.ErrorIs(t, r.stop(), context.Canceled)
	}
}

func oneWatchAtATime(t *testing.T, f Fixture) {
	r := watch(t, f.Source, nil)
	err := f.Source.Watch(t.Context(), func() { t.Error("a second Watch must not become ready") }, func(gpu.Event) {})
	require.Error(t, err)
	require.ErrorIs(t, r.stop(), context.Canceled, "the first Watch goes on")
}
