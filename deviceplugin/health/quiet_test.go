package health_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

// after returns a time that many minutes after now.
func after(minutes float64) time.Time { return now.Add(time.Duration(minutes * float64(time.Minute))) }

// probeDue does what the caller does at NextProbe: probe the due devices and take a
// snapshot.
func probeDue(h health.State, s gpu.Snapshot, at time.Time, passed bool) health.State {
	for _, id := range h.DueProbes(at) {
		h = h.ApplyProbe(health.Probe{ID: id, Began: at, Passed: passed}, at)
	}
	return h.ApplySnapshot(s, at)
}

func watched(s gpu.Snapshot) health.State {
	return health.New(gpu.Fault{}).ApplySnapshot(s, now).SetAllWatched(now)
}

func requireNext(t *testing.T, want time.Time, h health.State, at time.Time) {
	t.Helper()
	got, ok := h.NextProbe(at)
	require.True(t, ok)
	require.Equal(t, want, got)
}

func TestAQuietGPURecoversWithAProbe(t *testing.T) {
	h := watched(node).ApplyEvent(gputest.XID(gputest.GPU(1), 94), after(1))
	_, ok := watched(node).NextProbe(now)
	require.False(t, ok)
	requireNext(t, after(6), h, after(2))
	require.Empty(t, h.DueProbes(after(5.9)))
	require.Equal(t, []gpu.UUID{gputest.GPU(1)}, h.DueProbes(after(6)))
	requireNext(t, after(9), h, after(9))

	require.Len(t, reasons(h.ApplySnapshot(node, after(100))), 1, "time alone is no evidence")
	require.Empty(t, reasons(probeDue(h, node, after(6), true)))
	tried := h.ApplyProbe(health.Probe{ID: gputest.GPU(1), Began: after(6), Passed: true}, after(6))
	require.Len(t, reasons(tried), 1, "a snapshot is still to come")
	require.Empty(t, tried.DueProbes(after(6)))
	requireNext(t, after(7), tried, after(7))
	_, ok = tried.ApplySnapshot(node, after(7)).NextProbe(after(7))
	require.False(t, ok)
}

func TestGPUDoesNotRecoverByQuiet(t *testing.T) {
	base := watched(node).ApplyEvent(gputest.XID(gputest.GPU(1), 94), now)
	probe := health.Probe{ID: gputest.GPU(1), Began: after(5), Passed: true}
	for name, h := range map[string]health.State{
		"another such event":             base.ApplyEvent(gputest.XID(gputest.GPU(1), 94), after(4)),
		"an event while it is tried":     base.ApplyEvent(gputest.XID(gputest.GPU(1), 94), after(5.5)),
		"an event after it was tried":    base.ApplyProbe(probe, after(5)).ApplyEvent(gputest.XID(gputest.GPU(1), 94), after(5.5)),
		"a worse event":                  base.ApplyEvent(gputest.XID(gputest.GPU(1), 48), after(1)),
		"a probe that began too early":   base.ApplyProbe(health.Probe{ID: gputest.GPU(1), Began: after(4.9), Passed: true}, after(6)),
		"a probe of another":             base.ApplyProbe(health.Probe{ID: gputest.GPU(2), Began: after(5), Passed: true}, after(6)),
		"a probe that failed":            base.ApplyProbe(health.Probe{ID: gputest.GPU(1), Began: after(5)}, after(5)),
		"a probe that failed afterwards": base.ApplyProbe(probe, after(5)).ApplyProbe(health.Probe{ID: gputest.GPU(1), Began: after(5)}, after(5)),
		"a fault in between":             base.ApplyProbe(probe, after(5)).ApplySnapshot(with(1, gpu.ReasonUnreadable), after(5.5)),
		"a gap in listening":             base.ApplyEvent(event(gpu.EventUnwatched, 1), after(2)).SetWatched(gputest.GPU(1), after(2)),
		"a gap after it was tried":       base.ApplyProbe(probe, after(5)).SetUnwatchable(gpu.Fault{Reason: gpu.ReasonUnwatched}, false, after(5.5)).SetAllWatched(after(5.6)),
		"another process":                health.Restore(file(base.ApplyProbe(probe, after(5)))).ApplySnapshot(node, after(5.5)),
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, gpu.ReasonXID, reasons(h.ApplySnapshot(node, after(6)))[1])
		})
	}
}

func TestWatchedKeepsARunningQuietPeriod(t *testing.T) {
	h := watched(node).ApplyEvent(gputest.XID(gputest.GPU(1), 94), now)
	requireNext(t, after(5), h.SetWatched(gputest.GPU(1), after(3)), after(3))
	requireNext(t, after(5), h.SetResponding(after(3)), after(3))
}

func TestTimeBeforeWatchingIsNotQuiet(t *testing.T) {
	h := health.New(gpu.Fault{}).ApplySnapshot(node, now).ApplyEvent(gputest.XID(gputest.GPU(1), 94), now).SetAllWatched(after(3))
	requireNext(t, after(8), h, after(3))
}

func TestQuietPeriodRestartsWhenTheDriverResponds(t *testing.T) {
	h := watched(node).ApplyEvent(gputest.XID(gputest.GPU(1), 94), now).ApplyEvent(event(gpu.EventUnwatched, 2), now)
	h = h.ApplyEvent(gputest.Event(gpu.EventUnwatched, "", "it hangs"), after(1))
	require.Len(t, reasons(h), len(node.Devices))
	_, waits := h.NextProbe(after(2))
	require.False(t, waits)
	h = h.SetResponding(after(3))
	require.Equal(t, map[int]gpu.Reason{1: gpu.ReasonXID, 2: gpu.ReasonUnwatched}, reasons(h))
	requireNext(t, after(8), h, after(3))
}

func TestQuietPeriodIgnoresAFutureTimestamp(t *testing.T) {
	remembered := file(watched(node).ApplyEvent(gputest.XID(gputest.GPU(1), 94), after(60*24*365)))
	remembered.DevicePlugin.Faults[0].Since = after(60 * 24 * 365)
	h := health.Restore(remembered).SetUnwatchable(gpu.Fault{Reason: gpu.ReasonUnwatched}, false, now).ApplySnapshot(node, now).SetAllWatched(now)
	requireNext(t, after(5), h, now)
}

func TestAQuietPeriodStartsOver(t *testing.T) {
	h := probeDue(watched(node).ApplyEvent(gputest.XID(gputest.GPU(1), 94), now), node, after(5), false)
	requireNext(t, after(10), h, after(5))
	h = h.ApplyEvent(gputest.XID(gputest.GPU(1), 32), after(8))
	requireNext(t, after(13), h, after(9))
	f, since := h.Verdict(gputest.GPU(1))
	require.EqualValues(t, 94, f.XID, "the first cause stays")
	require.Equal(t, now, since)
	require.Empty(t, reasons(probeDue(h, node, after(13), true)))

	again := health.Restore(file(h)).SetUnwatchable(gpu.Fault{Reason: gpu.ReasonUnwatched}, false, after(20))
	_, ok := again.NextProbe(after(20))
	require.False(t, ok, "nobody listens")
	again = again.ApplySnapshot(node, after(20)).SetAllWatched(after(21))
	requireNext(t, after(26), again, after(21))
	require.Empty(t, reasons(probeDue(again, node, after(26), true)))
}

func TestUnreachableGPUIsNotProbed(t *testing.T) {
	base := watched(node).ApplyEvent(gputest.XID(gputest.GPU(1), 94), now)
	for name, h := range map[string]health.State{
		"unreadable": base.ApplySnapshot(with(1, gpu.ReasonUnreadable), now),
		"lost":       base.ApplySnapshot(with(1, gpu.ReasonLost), now),
		"missing":    base.ApplySnapshot(without(1), now),
		"blind":      base.SetUnwatchable(gpu.Fault{Reason: gpu.ReasonUnwatched}, false, now),
		"unwatched":  base.ApplyEvent(event(gpu.EventUnwatched, 1), now),
		"still deaf": base.SetUnwatchable(gpu.Fault{Reason: gpu.ReasonUnwatched}, false, now).SetWatched(gputest.GPU(1), now),
		"doomed":     base.ApplyEvent(gputest.XID(gputest.GPU(1), 151), now),
	} {
		_, ok := h.NextProbe(after(60))
		require.False(t, ok, name)
		require.Empty(t, h.DueProbes(after(60)), name)
	}
}

func TestResetAlsoEndsAQuietRecovery(t *testing.T) {
	h := watched(node).ApplyEvent(gputest.XID(gputest.GPU(1), 94), now).ApplySnapshot(with(1, gpu.ReasonResetNeeded), now)
	require.Empty(t, reasons(h.ApplySnapshot(node, now)))
}

func TestNeverRecoversWithoutADriverReload(t *testing.T) {
	upgraded := node.Clone()
	upgraded.Driver.Version = "600.1"
	h := watched(node).ApplyEvent(gputest.XID(gputest.GPU(1), 151), now)
	require.Len(t, reasons(h.ApplySnapshot(with(1, gpu.ReasonLost), now).ApplySnapshot(node, now)), 1, "a reset is not enough")
	require.Empty(t, reasons(h.ApplySnapshot(upgraded, now)))
	unloaded := h.SetUnwatchable(gpu.Fault{Reason: gpu.ReasonUnwatched}, true, now)
	require.Empty(t, reasons(unloaded.ApplySnapshot(node, now).SetAllWatched(now)))
	require.Empty(t, reasons(health.Restore(file(unloaded)).ApplySnapshot(node, now)), "also by the next process")

	gone := upgraded.Clone()
	gone.Devices = append(gone.Devices[:1:1], gone.Devices[2:]...)
	require.Empty(t, reasons(h.ApplySnapshot(gone, now).ApplySnapshot(upgraded, now)), "one that was away has been initialised too")
}

func TestTheQuietPeriodIsThePolicys(t *testing.T) {
	h := watched(node).ApplyEvent(gputest.XID(gputest.GPU(1), 94), now).ApplyEvent(gputest.XID(gputest.GPU(0), 32), after(1))
	h = h.WithPolicy(health.DefaultPolicy().With(health.Changes{QuietPeriod: time.Hour}))
	requireNext(t, after(60), h, now)
	require.Equal(t, []gpu.UUID{gputest.GPU(0), gputest.GPU(1)}, h.DueProbes(after(61)))
}

func TestMIGDeviceIsProbedByItself(t *testing.T) {
	id, mig := divided.Devices[0].UUID, divided.Devices[0].MIG
	h := watched(divided).ApplyEvent(instance(id, 2, 0, 94), now).ApplyEvent(instance(id, 4, 0, 94), after(1))
	require.Equal(t, []gpu.UUID{mig[1].UUID}, h.DueProbes(after(5)))
	h = probeDue(h, divided, after(5), true)
	require.Equal(t, map[gpu.UUID]gpu.Reason{id: gpu.ReasonXID, mig[3].UUID: gpu.ReasonXID}, unhealthy(h, divided))
	require.Empty(t, unhealthy(probeDue(h, divided, after(6), true), divided))

	anew := divided.Clone()
	anew.Devices[0] = gputest.WithMIG(anew.Devices[0], "3g.40gb")
	require.Empty(t, h.ApplySnapshot(anew, after(6)).DueProbes(after(6)), "its instance is there no more")
}

func TestProbeDoesNotCountForAnotherDevice(t *testing.T) {
	a, b := divided.Devices[0], divided.Devices[1]
	h := watched(divided).ApplyEvent(instance(a.UUID, 2, 0, 94), now).
		ApplyEvent(instance(a.UUID, 4, 0, 94), now).
		ApplyEvent(instance(b.UUID, 2, 0, 94), after(1))
	for _, m := range []gpu.UUID{a.MIG[1].UUID, b.MIG[1].UUID} {
		h = h.ApplyProbe(health.Probe{ID: m, Began: after(5), Passed: true}, after(5))
	}
	require.Equal(t, map[gpu.UUID]gpu.Reason{
		a.UUID: gpu.ReasonXID, a.MIG[3].UUID: gpu.ReasonXID,
		b.UUID: gpu.ReasonXID, b.MIG[1].UUID: gpu.ReasonXID,
	}, unhealthy(h.ApplySnapshot(divided, after(5)), divided), "the one of the other GPU was not due, its neighbour was not tried")

	broken := h.ApplyEvent(gputest.XID(a.UUID, 48), after(6))
	require.Equal(t, []gpu.UUID{b.MIG[1].UUID}, broken.DueProbes(after(60)), "a GPU that needs a reset gets one, and that heals its instances")
	require.Equal(t, h, h.ApplyProbe(health.Probe{ID: "MIG-x", Began: after(60), Passed: true}, after(60)))
}

func TestLetGo(t *testing.T) {
	id, mig := divided.Devices[0].UUID, divided.Devices[0].MIG[0].UUID
	out := func(reason gpu.Reason) gpu.Snapshot {
		s := divided.Clone()
		s.Devices[0].Fault = gpu.Fault{Reason: reason}
		return s
	}
	h := watched(divided)
	for name, c := range map[string]struct {
		state health.State
		want  bool
	}{
		"healthy":                  {h, false},
		"quiet":                    {h.ApplyEvent(instance(id, 1, 0, 94), now), false},
		"needs a reset":            {h.ApplyEvent(gputest.XID(id, 48), now), true},
		"needs another driver":     {h.ApplyEvent(gputest.XID(id, 151), now), true},
		"was reset and is not":     {h.ApplyEvent(gputest.XID(id, 48), now).ApplySnapshot(out(gpu.ReasonResetNeeded), now).ApplySnapshot(divided, now), false},
		"asks for a reset":         {h.ApplySnapshot(out(gpu.ReasonResetNeeded), now), true},
		"is lost":                  {h.ApplySnapshot(out(gpu.ReasonLost), now), true},
		"has to be seen well":      {h.ApplyEvent(gputest.XID(id, 48), now).ApplySnapshot(out(gpu.ReasonLost), now).ApplySnapshot(out(gpu.ReasonUnwatched), now), false},
		"was out, needs a driver":  {h.ApplyEvent(gputest.XID(id, 151), now).ApplySnapshot(out(gpu.ReasonLost), now).ApplySnapshot(divided, now), true},
		"is broken for good":       {h.ApplySnapshot(out(gpu.ReasonRowRemap), now), false},
		"cannot be read":           {h.ApplySnapshot(out(gpu.ReasonUnreadable), now), false},
		"cannot be watched":        {h.ApplyEvent(gputest.Event(gpu.EventUnwatched, id, ""), now), false},
		"is out of reach at large": {h.SetUnwatchable(gpu.Fault{Reason: gpu.ReasonUnwatched}, false, now), false},
	} {
		require.Equal(t, c.want, c.state.AwaitsReset(id), name)
		require.Equal(t, c.want, c.state.AwaitsReset(mig), name)
		require.False(t, c.state.AwaitsReset(divided.Devices[1].UUID), name)
	}
}

func TestGapRestartsTheQuietPeriod(t *testing.T) {
	h := watched(node).ApplyEvent(gputest.XID(gputest.GPU(0), 94), now)
	gap := now.Add(health.DefaultQuietPeriod - time.Second)
	h = h.ApplyEvent(gputest.Event(gpu.EventGap, "", "said"), gap)
	require.Equal(t, marks{0: gpu.ReasonXID}, reasons(h), "what was healthy is")
	require.Empty(t, h.DueProbes(gap.Add(health.DefaultQuietPeriod-time.Second)))
	require.Equal(t, []gpu.UUID{gputest.GPU(0)}, h.DueProbes(gap.Add(health.DefaultQuietPeriod)))
	unwatched := h.SetUnwatchable(gpu.Fault{Reason: gpu.ReasonUnwatched}, false, now).ApplyEvent(gputest.Event(gpu.EventGap, "", "said"), gap)
	require.Empty(t, unwatched.DueProbes(gap.Add(time.Hour)), "a gap is no sign that it is heard again")
}
