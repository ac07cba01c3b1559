package gputest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestSourceConforms(t *testing.T) {
	gputest.Conformance(t, func(*testing.T) gputest.Fixture {
		node := gputest.Node("a100-80gb", 4)
		s := gputest.New(node)
		broken := func(sentinel error) func() error {
			return func() error {
				other := gputest.New(node)
				other.Fail(fmt.Errorf("loading libnvidia-ml.so.1: %w", sentinel))
				_, err := other.Snapshot(t.Context())
				return err
			}
		}
		lost := func(reason gpu.Reason) func(gpu.UUID) {
			return func(id gpu.UUID) { s.FailDevice(id, gpu.Fault{Reason: reason, Message: "NVML says that it is lost"}) }
		}
		return gputest.Fixture{
			Source: s,
			XID:    func(id gpu.UUID, xid uint64) { s.Emit(gputest.XID(id, xid)) },
			MIGXID: func(id gpu.UUID, gi, ci int, xid uint64) {
				e := gputest.XID(id, xid)
				e.GPUInstance, e.ComputeInstance = gi, ci
				s.Emit(e)
			},
			Remap: func(id gpu.UUID) {
				s.Update(func(n *gpu.Snapshot) {
					i := slices.IndexFunc(n.Devices, func(d gpu.Device) bool { return d.UUID == id })
					n.Devices[i].Remap, n.Devices[i].Notes = gpu.RemapPending, []gpu.Note{{Reason: gpu.NoteRemapPending, Message: "reset it when it is idle"}}
				})
			},
			ECC: func(id gpu.UUID) { s.Emit(gputest.Event(gpu.EventECC, id, "")) },
			Lose: map[string]func(gpu.UUID){
				"calls":   lost(gpu.ReasonLost),
				"unknown": lost(gpu.ReasonUnreadable),
				"gone": func(id gpu.UUID) {
					s.Update(func(n *gpu.Snapshot) { *n = without(*n, id) })
				},
			},
			Restore: func(gpu.UUID) { s.Set(node) },
			SetMIG: func(id gpu.UUID, layout ...string) {
				s.Update(func(n *gpu.Snapshot) {
					for i, d := range n.Devices {
						if d.UUID == id && len(layout) > 0 {
							n.Devices[i] = gputest.WithMIG(d, layout...)
						} else if d.UUID == id {
							n.Devices[i].MIGEnabled, n.Devices[i].MIG = false, nil
						}
					}
				})
			},
			Broken: map[error]func() error{
				gpu.ErrNoDriver:        broken(gpu.ErrNoDriver),
				gpu.ErrNoPermission:    broken(gpu.ErrNoPermission),
				gpu.ErrVersionMismatch: broken(gpu.ErrVersionMismatch),
			},
		}
	})
}

// without takes a GPU off the node; the indexes of later ones move down.
func without(s gpu.Snapshot, id gpu.UUID) gpu.Snapshot {
	out := gpu.Snapshot{Driver: s.Driver}
	for _, d := range s.Devices {
		if d.UUID != id {
			d.Index = len(out.Devices)
			out.Devices = append(out.Devices, d)
		}
	}
	for _, l := range s.Links {
		if l.A != id && l.B != id {
			out.Links = append(out.Links, l)
		}
	}
	return out
}

func TestFailEndsTheRunningWatch(t *testing.T) {
	s := gputest.New(gputest.Node("t4", 1))
	gone := errors.New("module unloaded")
	err := s.Watch(t.Context(), func() { s.Fail(gone); s.Fail(nil) }, func(gpu.Event) {})
	require.ErrorIs(t, err, gone, "also when all is well again before Watch could look")
	_, err = s.Snapshot(t.Context())
	require.NoError(t, err)
}

func TestFailedWatchLeavesSnapshots(t *testing.T) {
	s := gputest.New(gputest.Node("t4", 1))
	s.FailWatch(errors.New("no event sets"))
	require.ErrorContains(t, s.Watch(t.Context(), nil, func(gpu.Event) {}), "no event sets")
	_, err := s.Snapshot(t.Context())
	require.NoError(t, err)
}

func TestGPUThatCannotBeWatchedIsToldAtTheStart(t *testing.T) {
	s := gputest.New(gputest.Node("h100-sxm", 2))
	s.Unwatch(gputest.GPU(1), "too old")
	ctx, cancel := context.WithCancel(t.Context())
	var got []gpu.Event
	err := s.Watch(ctx, nil, func(e gpu.Event) { got = append(got, e); cancel() })
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, got, 1)
	require.Equal(t, gpu.EventUnwatched, got[0].Kind)
	require.Equal(t, gputest.GPU(1), got[0].UUID)
	require.Equal(t, "too old", got[0].Message)
}

func TestNodesAreSnapshotsInOrder(t *testing.T) {
	for _, name := range gputest.Profiles() {
		t.Run(name, func(t *testing.T) {
			s := gputest.Node(name, 0)
			require.NotEmpty(t, s.Devices)
			require.True(t, s.Equal(s.Sorted()))
			for _, d := range s.Devices {
				_, err := gpu.ParseUUID(string(d.UUID))
				require.NoError(t, err)
				for _, m := range d.MIG {
					_, err := gpu.ParseUUID(string(m.UUID))
					require.NoError(t, err)
					require.Positive(t, m.MemoryBytes)
				}
			}
		})
	}
	require.Len(t, gputest.Node("dgx-2", 0).Links, 16*15/2)
	require.Equal(t, 6, gputest.Node("dgx-2", 0).Links[0].Lanes)
	require.Len(t, gputest.Node("h100-sxm", 3).Devices, 3)
	require.Len(t, gputest.Node("a100-mig", 1).Devices[0].MIG, 4)
}
