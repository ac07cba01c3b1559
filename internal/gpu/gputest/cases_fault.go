package gputest

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
)

var faultCases = []Case{
	{"LostGPULeavesNeighboursHealthy", lostGPULeavesNeighboursHealthy},
	{"LostGPUIsSeenAtTheStart", lostGPUIsSeenAtTheStart},
	{"LostGPUCanComeBack", lostGPUCanComeBack},
	{"RowsThatWaitAreReported", rowsThatWaitAreReported},
}

// eachLoss runs a case for each way in which a GPU can be lost, one after the
// other on the same node, which the case must leave as it was.
func eachLoss(t *testing.T, f Fixture, run func(t *testing.T, way string, lose func(gpu.UUID))) {
	skipUnless(t, len(f.Lose) > 0 && f.Restore != nil, "a lost GPU")
	for _, way := range slices.Sorted(maps.Keys(f.Lose)) {
		if !t.Run(way, func(t *testing.T) { run(t, way, f.Lose[way]) }) {
			return // the node is not in its original state
		}
	}
}

// requireLost checks that only the given GPU is broken, and is not hidden.
func requireLost(t *testing.T, before, now gpu.Snapshot, id gpu.UUID) {
	t.Helper()
	for _, was := range before.Devices {
		d, there := now.Device(was.UUID)
		if was.UUID != id {
			require.True(t, there, "the neighbour %s must stay", was.UUID)
			require.Zero(t, d.Fault, "the neighbour %s must stay healthy", was.UUID)
			continue
		}
		if there { // a GPU that the driver no longer counts is absent
			require.Contains(t, []gpu.Reason{gpu.ReasonLost, gpu.ReasonUnreadable}, d.Fault.Reason)
			require.NotEmpty(t, d.Fault.Message)
			require.Equal(t, was.PCI, d.PCI, "a GPU that was seen before keeps its place")
		}
	}
	require.True(t, now.Equal(now.Sorted()), "the snapshot must still be in order: %+v", now)
	for _, l := range now.Links {
		_, a := now.Device(l.A)
		_, b := now.Device(l.B)
		require.True(t, a && b, "link %+v leads to a GPU that is not there", l)
	}
}

// hasEventOf returns a condition for wait: an event concerns the GPU.
func hasEventOf(id gpu.UUID) func([]gpu.Event) bool {
	return func(events []gpu.Event) bool {
		return slices.ContainsFunc(events, func(e gpu.Event) bool {
			return e.UUID == id && (e.Kind == gpu.EventLost || e.Kind == gpu.EventChanged) ||
				e.UUID == "" && e.Kind == gpu.EventChanged
		})
	}
}

// harmless is an XID that programs cause. After other XIDs the driver may ask for a
// reset, which is a fault.
const harmless = 13

// hasXID returns a condition for wait. The loss itself may come with an XID.
func hasXID(id gpu.UUID, xid uint64) func([]gpu.Event) bool {
	return func(events []gpu.Event) bool {
		return slices.ContainsFunc(events, func(e gpu.Event) bool {
			return e.Kind == gpu.EventXID && e.UUID == id && e.XID == xid
		})
	}
}

func lostGPULeavesNeighboursHealthy(t *testing.T, f Fixture) {
	eachLoss(t, f, func(t *testing.T, way string, lose func(gpu.UUID)) {
		before := snapshot(t, f.Source)
		a, b := pick(t, before)
		r := watch(t, f.Source, nil)
		lose(a)
		r.wait("word of the lost GPU", hasEventOf(a))
		requireLost(t, before, snapshot(t, f.Source), a)
		if f.XID != nil {
			f.XID(b, harmless)
			events := r.wait("an XID of the neighbour", hasXID(b, harmless))
			for _, e := range events {
				require.False(t, e.UUID == b && e.Kind != gpu.EventXID, "the neighbour has nothing else to tell: %+v", e)
				require.False(t, e.UUID == "" && e.Kind != gpu.EventChanged, "the loss of one GPU is not that of all: %+v", e)
			}
		}
		require.Error(t, r.stop())
		f.Restore(a)
	})
}

func lostGPUIsSeenAtTheStart(t *testing.T, f Fixture) {
	eachLoss(t, f, func(t *testing.T, _ string, lose func(gpu.UUID)) {
		before := snapshot(t, f.Source)
		a, b := pick(t, before)
		lose(a)
		requireLost(t, before, snapshot(t, f.Source), a)
		if f.XID != nil { // a Watch that starts now must still watch the others
			r := watch(t, f.Source, nil)
			f.XID(b, harmless)
			r.wait("an XID of the neighbour", hasXID(b, harmless))
			require.Error(t, r.stop())
		}
		f.Restore(a)
	})
}

func lostGPUCanComeBack(t *testing.T, f Fixture) {
	eachLoss(t, f, func(t *testing.T, _ string, lose func(gpu.UUID)) {
		before := snapshot(t, f.Source)
		a, _ := pick(t, before)
		r := watch(t, f.Source, nil)
		lose(a)
		seen := len(r.wait("word of the lost GPU", hasEventOf(a)))
		requireLost(t, before, snapshot(t, f.Source), a)
		f.Restore(a)
		r.wait("word of the GPU that is back", func(events []gpu.Event) bool {
			return hasEventOf(a)(events[seen:]) && snapshot(t, f.Source).Equal(before)
		})
		if f.XID != nil {
			f.XID(a, harmless)
			// The event above may have been a late one of the loss. The source may
			// resume watching at any time, but it must resume.
			require.Eventually(t, func() bool {
				f.XID(a, harmless)
				return hasXID(a, harmless)(r.received())
			}, patience, 20*time.Millisecond, "the GPU that is back is not watched")
		}
		require.Error(t, r.stop())
	})
}

func rowsThatWaitAreReported(t *testing.T, f Fixture) {
	skipUnless(t, f.Remap != nil && f.Restore != nil, "rows that wait to be remapped")
	before := snapshot(t, f.Source)
	a, b := pick(t, before)
	r := watch(t, f.Source, nil)
	f.Remap(a)
	r.wait("word of the rows", func(events []gpu.Event) bool {
		return hasXID(a, 63)(events) || hasEventOf(a)(events)
	})
	now := snapshot(t, f.Source)
	d, there := now.Device(a)
	require.True(t, there)
	if d.OfflinesPages() {
		require.Zero(t, d.Fault)
		require.Equal(t, gpu.NoteRemapPending, d.Notes[0].Reason)
	} else {
		require.Equal(t, gpu.ReasonResetNeeded, d.Fault.Reason)
		require.NotEmpty(t, d.Fault.Message)
	}
	d, _ = now.Device(b)
	require.Zero(t, d.Fault, "the neighbour")
	f.Restore(a)
	after := snapshot(t, f.Source)
	require.True(t, before.Equal(after), "after the reset all is as it was: want %+v\ngot %+v", before, after)
	require.Error(t, r.stop())
}
