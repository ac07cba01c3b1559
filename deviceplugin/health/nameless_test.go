package health_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

// nodeWithout returns the node where some GPUs are gone and others cannot be read at
// all.
func nodeWithout(gone, broken map[int]bool) gpu.Snapshot {
	s := node.Clone()
	s.Devices = nil
	for i, d := range node.Devices {
		if gone[i] {
			continue
		}
		if broken[i] {
			d = gpu.Device{NUMANode: -1, Minor: -1, Fault: gpu.Fault{Reason: gpu.ReasonUnreadable, Message: "unknown error"}}
		}
		d.Index = len(s.Devices)
		s.Devices = append(s.Devices, d)
	}
	return s
}

func TestNamelessGPUDoesNotHideAMissingOne(t *testing.T) {
	h := health.New(gpu.Fault{}).ApplySnapshot(node, now).ApplyEvent(gputest.XID(gputest.GPU(0), 48), now).ApplyEvent(gputest.XID(gputest.GPU(3), 48), now)
	h = h.ApplySnapshot(nodeWithout(map[int]bool{0: true}, map[int]bool{2: true}), now)
	require.Equal(t, marks{0: gpu.ReasonXID, 2: gpu.ReasonUnreadable, 3: gpu.ReasonXID}, reasons(h))
	h = h.ApplySnapshot(node, now)
	require.Equal(t, marks{3: gpu.ReasonXID}, reasons(h), "GPU 0 was seen out of service: the broken one was after GPU 1")
}

func TestGPUThatMayBeNamelessIsNotKnownToBeMissing(t *testing.T) {
	for name, c := range map[string]struct {
		gone, broken map[int]bool
		knows        func(health.State) health.State
	}{
		"next to each other": {map[int]bool{1: true}, map[int]bool{2: true}, func(h health.State) health.State { return h }},
		"remembered, without an address": {map[int]bool{1: true}, map[int]bool{3: true},
			func(h health.State) health.State { return health.Restore(file(h)) }},
	} {
		t.Run(name, func(t *testing.T) {
			h := c.knows(health.New(gpu.Fault{}).ApplySnapshot(node, now).ApplyEvent(gputest.XID(gputest.GPU(1), 48), now))
			h = h.ApplySnapshot(nodeWithout(c.gone, c.broken), now).ApplySnapshot(node, now)
			require.Equal(t, marks{1: gpu.ReasonXID}, reasons(h))
		})
	}
	// The indices contradict the addresses, so they are ignored.
	h := health.New(gpu.Fault{}).ApplySnapshot(node, now).ApplyEvent(gputest.XID(gputest.GPU(0), 48), now)
	odd := nodeWithout(map[int]bool{0: true}, map[int]bool{2: true})
	odd.Devices[0], odd.Devices[2] = odd.Devices[2], odd.Devices[0]
	odd.Devices[0].Index, odd.Devices[2].Index = 0, 2
	require.Equal(t, marks{0: gpu.ReasonXID}, reasons(h.ApplySnapshot(odd, now).ApplySnapshot(node, now)))
}

// Whatever is gone or broken, only a GPU that is gone for sure counts as out of
// service, and every absent GPU is unhealthy.
func TestOnlyAGPUMissingForSureCountsAsReset(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gone, broken := map[int]bool{}, map[int]bool{}
		h := health.New(gpu.Fault{}).ApplySnapshot(node, now)
		for i := range node.Devices {
			switch rapid.IntRange(0, 2).Draw(t, fmt.Sprint("GPU ", i)) {
			case 0:
				gone[i] = true
			case 1:
				broken[i] = true
			}
			h = h.ApplyEvent(gputest.XID(gputest.GPU(i), 48), now)
		}
		h = h.ApplySnapshot(nodeWithout(gone, broken), now)
		require.Len(t, reasons(h), len(node.Devices))
		h = h.ApplySnapshot(node, now)
		for i := range node.Devices {
			if _, unhealthy := reasons(h)[i]; !gone[i] {
				require.True(t, unhealthy, "GPU %d was never out of service", i)
			}
		}
	})
}
