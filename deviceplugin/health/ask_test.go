package health_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

// asking returns the node with drivers that can say what they want, and what the driver asks of GPU 1.
func asking(action gpu.RecoveryAction) gpu.Snapshot {
	s := node.Clone()
	for i := range s.Devices {
		s.Devices[i].Recovery = gpu.RecoverNothing
	}
	s.Devices[1].Recovery = action
	if action == gpu.RecoverReset {
		s.Devices[1].Fault = gpu.Fault{Reason: gpu.ReasonResetNeeded, Message: "the driver asks"}
	}
	return s
}

// XIDs 144 to 150 and those that nobody knows are errors or notices: the driver knows which.
func TestTheDriverDecidesOfSomeXIDs(t *testing.T) {
	for _, xid := range []uint64{144, 145, 146, 147, 148, 149, 150, 175, 1234} {
		e := gputest.XID(gputest.GPU(1), xid)

		h := health.New(gpu.Fault{}).ApplySnapshot(node, now).ApplyEvent(e, now)
		require.Equal(t, marks{1: gpu.ReasonXID}, reasons(h), "XID %d, and the driver cannot say", xid)
		require.False(t, h.Ignores(e))

		h = health.New(gpu.Fault{}).ApplySnapshot(asking(gpu.RecoverNothing), now).ApplyEvent(e, now)
		require.Empty(t, reasons(h), "XID %d", xid)
		require.True(t, h.Ignores(e))
		h = h.ApplySnapshot(asking(gpu.RecoverNothing), now)
		require.Empty(t, reasons(h), "XID %d, and the driver asks for nothing", xid)

		h = h.ApplySnapshot(asking(gpu.RecoverReset), now)
		fault, _ := h.Verdict(gputest.GPU(1))
		require.Equal(t, gpu.ReasonXID, fault.Reason)
		require.Equal(t, xid, fault.XID, "the XID is why the driver asks for a reset")
		require.True(t, h.AwaitsReset(gputest.GPU(1)))
		h = h.ApplySnapshot(asking(gpu.RecoverNothing), now)
		require.Empty(t, reasons(h), "the driver asks for nothing any more: it was reset")
	}
}

func TestAnOldXIDIsNotTheCauseOfALaterFault(t *testing.T) {
	h := health.New(gpu.Fault{}).ApplySnapshot(asking(gpu.RecoverNothing), now).ApplyEvent(gputest.XID(gputest.GPU(1), 149), now)
	h = h.ApplySnapshot(asking(gpu.RecoverReset), now.Add(time.Hour))
	require.Equal(t, marks{1: gpu.ReasonResetNeeded}, reasons(h))
}

func TestTheConfigurationDecidesOfMemoryThatWaits(t *testing.T) {
	waiting := func(fault gpu.Reason, action gpu.RecoveryAction) gpu.Snapshot {
		s := node.Clone()
		s.Devices[1].Remap, s.Devices[1].Fault.Reason, s.Devices[1].Recovery = gpu.RemapPending, fault, action
		return s
	}
	for choice, want := range map[string][3]marks{
		"":            {nil, {1: gpu.ReasonResetNeeded}, {1: gpu.ReasonResetNeeded}},
		"allocatable": {nil, nil, {1: gpu.ReasonResetNeeded}},
		"unhealthy":   {{1: gpu.ReasonResetNeeded}, {1: gpu.ReasonResetNeeded}, {1: gpu.ReasonResetNeeded}},
	} {
		h := health.New(gpu.Fault{}).WithPolicy(health.DefaultPolicy().With(health.Changes{Remap: choice}))
		for i, s := range []gpu.Snapshot{waiting("", ""), waiting(gpu.ReasonResetNeeded, ""), waiting(gpu.ReasonResetNeeded, gpu.RecoverReset)} {
			got := reasons(h.ApplySnapshot(s, now))
			require.Len(t, got, len(want[i]), "%q, case %d", choice, i)
			for gpu, reason := range want[i] {
				require.Equal(t, reason, got[gpu], "%q, case %d", choice, i)
			}
		}
	}
}

// A driver that asks for something else, or memory that waits, shows that nobody has reset the GPU.
func TestAGPUThatStillWaitsWasNotReset(t *testing.T) {
	for name, waits := range map[string]func(d *gpu.Device){
		"the driver asks for something else":     func(d *gpu.Device) { d.Recovery = gpu.RecoverDrainP2P },
		"for something that nobody knows":        func(d *gpu.Device) { d.Recovery = "Action20" },
		"memory waits, and may by configuration": func(d *gpu.Device) { d.Remap = gpu.RemapPending; d.Fault.Reason = gpu.ReasonResetNeeded },
	} {
		t.Run(name, func(t *testing.T) {
			h := health.New(gpu.Fault{}).WithPolicy(health.DefaultPolicy().With(health.Changes{Remap: "allocatable"})).
				ApplySnapshot(node, now).ApplyEvent(gputest.XID(gputest.GPU(1), 95), now).ApplySnapshot(asking(gpu.RecoverReset), now)
			s := asking(gpu.RecoverNothing)
			waits(&s.Devices[1])
			h = h.ApplySnapshot(s, now)
			require.Equal(t, marks{1: gpu.ReasonXID}, reasons(h))
			require.Empty(t, reasons(h.ApplySnapshot(asking(gpu.RecoverNothing), now)))
		})
	}
}

func TestADriverThatCannotBeAskedAnyMoreCountsAgainstTheGPU(t *testing.T) {
	h := health.New(gpu.Fault{}).ApplySnapshot(asking(gpu.RecoverNothing), now).ApplyEvent(gputest.XID(gputest.GPU(1), 144), now)
	h = h.ApplySnapshot(asking(""), now)
	require.Equal(t, marks{1: gpu.ReasonXID}, reasons(h))
}
