package health_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/nodestate"
)

var (
	node = gputest.Node("h100-sxm", 4)
	now  = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
)

// with returns the node with one GPU's fault.
func with(i int, reason gpu.Reason) gpu.Snapshot {
	s := node.Clone()
	s.Devices[i].Fault = gpu.Fault{Reason: reason, Message: "seen"}
	return s
}

func without(i int) gpu.Snapshot {
	s := node.Clone()
	s.Devices = append(s.Devices[:i:i], s.Devices[i+1:]...)
	return s
}

func reasons(s health.State) map[int]gpu.Reason {
	out := map[int]gpu.Reason{}
	for i := range node.Devices {
		if f, _ := s.Verdict(gputest.GPU(i)); f.Reason != "" {
			out[i] = f.Reason
		}
	}
	return out
}

type marks = map[int]gpu.Reason

// lostOnAccess is the loss of a GPU that the source noticed itself.
func lostOnAccess(i int) gpu.Event {
	e := event(gpu.EventLost, i)
	e.Observed = true
	return e
}

func event(kind gpu.EventKind, i int) gpu.Event { return gputest.Event(kind, gputest.GPU(i), "said") }

func TestGPUBecomesUnhealthyAndRecovers(t *testing.T) {
	type step struct {
		do   func(health.State) health.State
		want marks
	}
	see := func(s gpu.Snapshot) func(health.State) health.State {
		return func(h health.State) health.State { return h.ApplySnapshot(s, now) }
	}
	hear := func(e gpu.Event) func(health.State) health.State {
		return func(h health.State) health.State { return h.ApplyEvent(e, now) }
	}
	upgraded := node.Clone()
	upgraded.Driver.Version = "600.1"
	for name, steps := range map[string][]step{
		"an XID and a clean snapshot": {
			{hear(gputest.XID(gputest.GPU(1), 79)), marks{1: gpu.ReasonXID}},
			{see(node), marks{1: gpu.ReasonXID}},
		},
		"an application's XID": {{hear(gputest.XID(gputest.GPU(1), 31)), marks{}}},
		"an XID, and a reset": {
			{hear(gputest.XID(gputest.GPU(1), 48)), marks{1: gpu.ReasonXID}},
			{see(with(1, gpu.ReasonResetNeeded)), marks{1: gpu.ReasonXID}},
			{see(node), marks{}},
		},
		"a driver that asks for a reset, and the XID that is why": {
			{see(with(1, gpu.ReasonResetNeeded)), marks{1: gpu.ReasonResetNeeded}},
			{hear(gputest.XID(gputest.GPU(1), 48)), marks{1: gpu.ReasonXID}},
			{see(with(1, gpu.ReasonResetNeeded)), marks{1: gpu.ReasonXID}},
			{see(node), marks{}},
		},
		"an XID, a reset, and an XID while it goes on": {
			{hear(gputest.XID(gputest.GPU(1), 48)), marks{1: gpu.ReasonXID}},
			{see(with(1, gpu.ReasonLost)), marks{1: gpu.ReasonXID}},
			{hear(gputest.XID(gputest.GPU(1), 62)), marks{1: gpu.ReasonXID}},
			{see(node), marks{1: gpu.ReasonXID}},
		},
		"an XID, and a read that failed once": {
			{hear(gputest.XID(gputest.GPU(1), 48)), marks{1: gpu.ReasonXID}},
			{see(with(1, gpu.ReasonUnreadable)), marks{1: gpu.ReasonXID}},
			{see(node), marks{1: gpu.ReasonXID}},
		},
		"an XID, and another driver": {
			{hear(gputest.XID(gputest.GPU(1), 48)), marks{1: gpu.ReasonXID}},
			{see(upgraded), marks{}},
		},
		"an XID, and a module that was unloaded": {
			{hear(gputest.XID(gputest.GPU(1), 48)), marks{1: gpu.ReasonXID}},
			{func(h health.State) health.State {
				return h.SetUnwatchable(gpu.Fault{Reason: gpu.ReasonUnwatched}, true, now)
			},
				marks{0: gpu.ReasonUnwatched, 1: gpu.ReasonXID, 2: gpu.ReasonUnwatched, 3: gpu.ReasonUnwatched}},
			{func(h health.State) health.State { return h.ApplySnapshot(node, now).SetAllWatched(now) }, marks{}},
		},
		"an ECC error": {
			{hear(event(gpu.EventECC, 0)), marks{0: gpu.ReasonECC}},
			{see(node), marks{0: gpu.ReasonECC}},
		},
		"lost by event alone": {
			{hear(event(gpu.EventLost, 2)), marks{2: gpu.ReasonLost}},
			{see(node), marks{2: gpu.ReasonLost}},
		},
		"lost, as the source met it, and well since": {
			{hear(gputest.XID(gputest.GPU(2), 79)), marks{2: gpu.ReasonXID}},
			{hear(lostOnAccess(2)), marks{2: gpu.ReasonXID}},
			{see(node), marks{}},
		},
		"lost, as the source met it, and an XID after that": {
			{hear(lostOnAccess(2)), marks{2: gpu.ReasonLost}},
			{hear(gputest.XID(gputest.GPU(2), 79)), marks{2: gpu.ReasonLost}},
			{see(node), marks{2: gpu.ReasonLost}},
		},
		"lost, seen lost, seen well": {
			{hear(event(gpu.EventLost, 2)), marks{2: gpu.ReasonLost}},
			{see(with(2, gpu.ReasonLost)), marks{2: gpu.ReasonLost}},
			{see(node), marks{}},
		},
		"unreadable, then readable": {
			{see(with(3, gpu.ReasonUnreadable)), marks{3: gpu.ReasonUnreadable}},
			{see(node), marks{}},
		},
		"missing, then back": {
			{see(without(3)), marks{3: gpu.ReasonMissing}},
			{see(node), marks{}},
		},
		"unwatched, until it is watched": {
			{hear(event(gpu.EventUnwatched, 1)), marks{1: gpu.ReasonUnwatched}},
			{see(node), marks{1: gpu.ReasonUnwatched}},
			{func(h health.State) health.State { return h.SetWatched(gputest.GPU(1), now) }, marks{}},
		},
		"an event that names no GPU concerns all": {
			{hear(gputest.XID("", 79)), marks{0: gpu.ReasonXID, 1: gpu.ReasonXID, 2: gpu.ReasonXID, 3: gpu.ReasonXID}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := health.New(gpu.Fault{}).ApplySnapshot(node, now)
			require.Empty(t, reasons(h))
			for i, s := range steps {
				before := reasons(h)
				next := s.do(h)
				require.Equal(t, s.want, reasons(next), "step %d", i+1)
				require.Equal(t, before, reasons(h), "a State is never changed")
				h = next
			}
		})
	}
}

// A program's fault right after a reset, before a snapshot has shown the GPU, needs no second reset.
func TestALesserFaultAfterAResetIsOneOfItsOwn(t *testing.T) {
	h := health.New(gpu.Fault{}).ApplySnapshot(node, now).ApplyEvent(gputest.XID(gputest.GPU(1), 95), now)
	require.Equal(t, nodestate.Evidence(""), h.Faults()[0].Evidence)
	h = h.ApplySnapshot(without(1), now).ApplyEvent(gputest.XID(gputest.GPU(1), 69), now)
	require.Len(t, h.Faults(), 1)
	require.Equal(t, uint64(69), h.Faults()[0].XID)
	require.Equal(t, nodestate.EvidenceQuiet, h.Faults()[0].Needs)
	h = h.ApplyEvent(gputest.XID(gputest.GPU(1), 95), now)
	require.NotEqual(t, nodestate.EvidenceQuiet, h.Faults()[0].Needs, "a grave one does")
}

func TestFirstFaultStays(t *testing.T) {
	h := health.New(gpu.Fault{}).ApplySnapshot(node, now).
		ApplyEvent(gputest.XID(gputest.GPU(0), 79), now).
		ApplyEvent(event(gpu.EventLost, 0), now.Add(time.Minute)).
		ApplySnapshot(with(0, gpu.ReasonLost), now.Add(time.Hour))
	f, since := h.Verdict(gputest.GPU(0))
	require.Equal(t, gpu.ReasonXID, f.Reason)
	require.EqualValues(t, 79, f.XID)
	require.Contains(t, f.Message, "XID 79")
	require.Equal(t, now, since)
}

func TestGPUWithoutUUIDIsIdentifiedByAddress(t *testing.T) {
	s := node.Clone()
	s.Devices[1].UUID = ""
	s.Devices[1].Fault = gpu.Fault{Reason: gpu.ReasonLost, Message: "gone from the bus"}
	h := health.New(gpu.Fault{}).ApplySnapshot(node, now).ApplySnapshot(s, now)
	require.Equal(t, marks{1: gpu.ReasonLost}, reasons(h))
	require.Len(t, h.GPUs(), 4)
}

// A reopened source has forgotten which GPU was where.
func TestGPUThatMayBeTheNamelessOneIsNotMissing(t *testing.T) {
	h := watched(node).ApplyEvent(gputest.XID(gputest.GPU(1), 48), now)
	s := node.Clone()
	s.Devices[1] = gpu.Device{Index: 1, Fault: gpu.Fault{Reason: gpu.ReasonUnreadable}}
	require.Equal(t, map[int]gpu.Reason{1: gpu.ReasonXID}, reasons(h.ApplySnapshot(s, now).ApplySnapshot(node, now)), "that is no reset")
}

func TestDoubtAppliesToAGPUFirstKnownFromAnEvent(t *testing.T) {
	doubt := gpu.Fault{Reason: health.ReasonForgotten}
	for _, e := range []gpu.Event{gputest.XID(gputest.GPU(1), 94), event(gpu.EventUnwatched, 1)} {
		h := health.New(doubt).SetAllWatched(now).ApplyEvent(e, now).ApplySnapshot(node, now).SetWatched(gputest.GPU(1), now)
		require.Equal(t, health.ReasonForgotten, reasons(probeDue(h, node, after(6), true))[1])
	}
}

func TestDoubtAppliesToEveryGPU(t *testing.T) {
	h := health.New(gpu.Fault{Reason: health.ReasonForgotten, Message: "remove the file"}).ApplySnapshot(node, now)
	require.Len(t, reasons(h), 4)
	require.Len(t, reasons(h.ApplySnapshot(node, now)), 4)
	require.Len(t, reasons(health.Restore(file(h)).ApplySnapshot(node, now)), 4, "also by the next process")
	h = h.ApplySnapshot(with(2, gpu.ReasonResetNeeded), now).ApplySnapshot(node, now)
	require.Len(t, reasons(h), 3)
}

// file is the state as the plugin writes it.
func file(h health.State) nodestate.State {
	r := nodestate.Resource{Name: "nvidia.com/gpu"}
	for _, d := range plan.Devices(h) {
		s := nodestate.Device{ID: d.ID, GPU: d.GPU, Health: nodestate.Healthy}
		if d.NUMANode >= 0 {
			s.NUMANode = &d.NUMANode
		}
		r.Devices = append(r.Devices, s)
	}
	return nodestate.State{
		Driver:       &nodestate.DriverInfo{Version: h.DriverVersion()},
		DevicePlugin: &nodestate.DevicePluginInfo{Resources: []nodestate.Resource{r}, Faults: h.Faults()},
	}
}

func TestGPUStaysUnhealthyUntilThereIsEvidence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := health.New(gpu.Fault{}).ApplySnapshot(node, now).ApplyEvent(gputest.XID(gputest.GPU(2), 79), now)
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			i := rapid.SampledFrom([]int{0, 1, 3}).Draw(t, "other")
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				h = h.ApplySnapshot(with(i, gpu.ReasonLost), now)
			case 1:
				h = h.ApplySnapshot(without(i), now)
			case 2:
				h = h.SetAllWatched(now).SetWatched(gputest.GPU(2), now)
			case 3:
				h = h.ApplyEvent(event(gpu.EventLost, i), now)
			default:
				h = health.Restore(file(h)).ApplySnapshot(node, now)
			}
			require.Equal(t, gpu.ReasonXID, reasons(h)[2])
		}
	})
}

func TestFaultsOfOneGPUAffectNoOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		i := rapid.IntRange(0, 3).Draw(t, "gpu")
		h := health.New(gpu.Fault{}).ApplySnapshot(node, now)
		for range rapid.IntRange(1, 10).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				h = h.ApplyEvent(gputest.XID(gputest.GPU(i), 79), now)
			case 1:
				h = h.ApplySnapshot(with(i, gpu.ReasonLost), now)
			case 2:
				h = h.ApplySnapshot(without(i), now)
			default:
				h = h.ApplyEvent(event(gpu.EventUnwatched, i), now)
			}
			for j := range reasons(h) {
				require.Equal(t, i, j)
			}
		}
	})
}

// Whoever is given the UUID may get either of them.
func TestOfGPUsWithOneUUIDTheLostOneDecides(t *testing.T) {
	twins := func(faults ...gpu.Reason) gpu.Snapshot {
		s := gputest.Node("h100-sxm", len(faults)+1)
		for i, reason := range faults {
			s.Devices[i].UUID, s.Devices[i].Fault.Reason = gputest.GPU(0), reason
		}
		return s
	}
	for want, cases := range map[gpu.Reason][][]gpu.Reason{
		gpu.ReasonLost:       {{gpu.ReasonLost, ""}, {"", gpu.ReasonLost}, {gpu.ReasonUnreadable, gpu.ReasonLost, ""}, {gpu.ReasonLost, gpu.ReasonUnreadable}},
		gpu.ReasonUnreadable: {{"", gpu.ReasonUnreadable}, {gpu.ReasonUnreadable, ""}},
		"":                   {{"", ""}},
	} {
		for _, faults := range cases {
			s := twins(faults...)
			h := health.New(gpu.Fault{}).ApplySnapshot(s, now)
			f, _ := h.Verdict(gputest.GPU(0))
			require.Equal(t, want, f.Reason, "%v", faults)
			neighbour, _ := h.Verdict(gputest.GPU(len(faults)))
			require.Empty(t, neighbour.Reason)
			again, _ := h.ApplySnapshot(s, now).Verdict(gputest.GPU(0))
			require.Equal(t, want, again.Reason, "%v", faults)
		}
	}
}
