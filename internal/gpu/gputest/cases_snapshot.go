package gputest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/internal/gpu"
)

var snapshotCases = []Case{
	{"SnapshotIsInOrder", snapshotIsInOrder},
	{"SnapshotOfAnUnchangedNodeIsEqual", snapshotIsStable},
	{"SnapshotIsImmutable", snapshotIsImmutable},
	{"SnapshotEndsWithItsContext", snapshotEndsWithItsContext},
	{"SnapshotsConcurrentlyWhileWatching", snapshotsConcurrently},
	{"MIGLayoutIsSeen", migLayoutIsSeen},
	{"DriverFailureIsItsSentinel", driverFailureIsItsSentinel},
	{"CloseTwice", closeTwice},
}

func snapshotIsInOrder(t *testing.T, f Fixture) {
	s := snapshot(t, f.Source)
	pick(t, s)
	require.NotEmpty(t, s.Driver.Version)
	require.NotEmpty(t, s.Driver.CUDAVersion)
	place := map[gpu.UUID]int{}
	for i, d := range s.Devices {
		require.Equal(t, i, d.Index, "a healthy node's GPUs are numbered from 0")
		id, err := gpu.ParseUUID(string(d.UUID))
		require.NoError(t, err)
		require.False(t, id.IsMIG())
		address, err := gpu.ParsePCIAddress(string(d.PCI))
		require.NoError(t, err)
		require.Equal(t, address, d.PCI, "PCI addresses are as sysfs spells them")
		require.NotEmpty(t, d.Product)
		require.Positive(t, d.MemoryBytes)
		require.Positive(t, d.Compute.Major)
		require.GreaterOrEqual(t, d.NUMANode, -1)
		require.GreaterOrEqual(t, d.Minor, 0)
		require.NotContains(t, place, d.UUID, "a GPU stands in the snapshot once")
		place[d.UUID] = i
	}
	require.True(t, s.Equal(s.Sorted()), "devices and links must be in order")
	require.Len(t, s.Links, len(s.Devices)*(len(s.Devices)-1)/2, "each pair is linked in some way, once")
	seen := map[[2]gpu.UUID]bool{}
	for _, l := range s.Links {
		require.Contains(t, place, l.A)
		require.Contains(t, place, l.B)
		require.Less(t, place[l.A], place[l.B])
		require.False(t, seen[[2]gpu.UUID{l.A, l.B}], "link %v is listed twice", l)
		seen[[2]gpu.UUID{l.A, l.B}] = true
		require.Equal(t, l.Kind == gpu.LinkNVLink, l.Lanes > 0, "only NVLink has lanes: %+v", l)
	}
}

func snapshotIsStable(t *testing.T, f Fixture) {
	first, second := snapshot(t, f.Source), snapshot(t, f.Source)
	require.True(t, first.Equal(second), "first %+v\nthen %+v", first, second)
}

func snapshotIsImmutable(t *testing.T, f Fixture) {
	before := snapshot(t, f.Source)
	kept := before.Clone()
	a, _ := pick(t, before)

	// Later changes of the source must not appear in an earlier snapshot …
	changed := false
	for _, lose := range f.Lose {
		lose(a)
		changed = true
		break
	}
	if !changed && f.SetMIG != nil {
		f.SetMIG(pickMIG(t, before), "1g.10gb", "2g.20gb")
	}
	now := snapshot(t, f.Source)
	require.True(t, before.Equal(kept))

	// … and a caller's changes of a snapshot must not appear in the next.
	kept = now.Clone()
	for i := range now.Devices {
		now.Devices[i].UUID = "GPU-overwritten"
		for j := range now.Devices[i].MIG {
			now.Devices[i].MIG[j].UUID = "MIG-overwritten"
		}
	}
	for i := range now.Links {
		now.Links[i] = gpu.Link{}
	}
	next := snapshot(t, f.Source)
	require.True(t, next.Equal(kept), "want %+v\ngot %+v", kept, next)
}

func snapshotEndsWithItsContext(t *testing.T, f Fixture) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := f.Source.Snapshot(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func snapshotsConcurrently(t *testing.T, f Fixture) {
	a, _ := pick(t, snapshot(t, f.Source))
	r := watch(t, f.Source, nil)
	want := snapshot(t, f.Source)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	for range 8 {
		group.Go(func() error {
			for range 5 {
				s, err := f.Source.Snapshot(ctx)
				if err != nil {
					return err
				}
				if !s.Equal(want) {
					t.Errorf("want %+v\ngot %+v", want, s)
				}
			}
			return nil
		})
	}
	if f.XID != nil {
		for range 10 {
			f.XID(a, harmless)
		}
	}
	require.NoError(t, group.Wait())
	if f.XID != nil {
		r.wait("ten XIDs", count(gpu.EventXID, 10))
	}
}

func migLayoutIsSeen(t *testing.T, f Fixture) {
	skipUnless(t, f.SetMIG != nil, "a MIG layout")
	before := snapshot(t, f.Source)
	id := pickMIG(t, before)
	f.SetMIG(id, "1g.10gb", "2g.20gb")
	divided := snapshot(t, f.Source)
	d, ok := divided.Device(id)
	require.True(t, ok)
	require.True(t, d.MIGEnabled)
	require.Len(t, d.MIG, 2)
	profiles := []string{d.MIG[0].Profile, d.MIG[1].Profile}
	slices.Sort(profiles)
	require.Equal(t, []string{"1g.10gb", "2g.20gb"}, profiles)
	require.NotEqual(t, d.MIG[0].UUID, d.MIG[1].UUID)
	require.NotEqual(t, d.MIG[0].GPUInstance, d.MIG[1].GPUInstance)
	for i, m := range d.MIG {
		require.Equal(t, i, m.Index)
		uuid, err := gpu.ParseUUID(string(m.UUID))
		require.NoError(t, err)
		require.True(t, uuid.IsMIG())
		require.Positive(t, m.Attributes.Multiprocessors)
		require.Less(t, m.Attributes.Multiprocessors, 200, "no GPU has as many")
		require.Positive(t, m.MemoryBytes)
		require.Less(t, m.MemoryBytes, d.MemoryBytes)
	}
	for _, other := range divided.Devices {
		if other.UUID != id {
			was, _ := before.Device(other.UUID)
			require.True(t, was.Equal(other), "dividing one GPU must not change another")
		}
	}
	f.SetMIG(id)
	after := snapshot(t, f.Source)
	require.True(t, before.Equal(after), "with MIG off again all is as it was: want %+v\ngot %+v", before, after)
}

func driverFailureIsItsSentinel(t *testing.T, f Fixture) {
	skipUnless(t, len(f.Broken) > 0, "a driver that fails")
	sentinels := []error{gpu.ErrNoDriver, gpu.ErrNoPermission, gpu.ErrVersionMismatch}
	for _, sentinel := range sentinels {
		t.Run(sentinel.Error(), func(t *testing.T) {
			fail := f.Broken[sentinel]
			skipUnless(t, fail != nil, sentinel.Error())
			err := fail()
			for _, other := range sentinels {
				require.Equal(t, errors.Is(sentinel, other), errors.Is(err, other), "%v: %v", other, err)
			}
			require.NotEqual(t, sentinel.Error(), err.Error(), "the error must say more than the sentinel")
		})
	}
}

func closeTwice(t *testing.T, f Fixture) {
	snapshot(t, f.Source)
	require.NoError(t, f.Source.Close())
	require.NoError(t, f.Source.Close())
	_, err := f.Source.Snapshot(t.Context())
	require.Error(t, err, "a closed source has no snapshots")
	require.Error(t, f.Source.Watch(t.Context(), nil, func(gpu.Event) {}), "a closed source cannot be watched")
}
