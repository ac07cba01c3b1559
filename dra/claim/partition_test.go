package claim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/dra/inventory"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/partition"
)

// layout is the MIG layout of GPUs, as a driver keeps it.
type layout struct {
	there   map[gpu.Placement]bool
	create  error // what CreatePartition returns next
	destroy error
	killed  func() // called once a partition has been created
}

func (l *layout) Instances(_ context.Context, id gpu.UUID) (all []gpu.Instance, err error) {
	for at := range l.there {
		if at.GPU == id {
			all = append(all, gpu.Instance{Profile: at.Profile, Start: at.Start, Size: at.Size})
		}
	}
	return all, nil
}

func (l *layout) CreatePartition(_ context.Context, at gpu.Placement) (gpu.Partition, error) {
	if err := l.create; err != nil && !errors.Is(err, gpu.ErrLeftover) {
		return gpu.Partition{}, err
	}
	for other := range l.there {
		if at.Overlaps(other) {
			return gpu.Partition{}, gpu.ErrNoRoom
		}
	}
	l.there[at] = true
	if l.killed != nil {
		l.killed()
	}
	return gpu.Partition{Placement: at, UUID: gpu.UUID(fmt.Sprintf("MIG-%d-%d", at.Profile, at.Start))}, l.create
}

func (l *layout) DestroyPartition(_ context.Context, at gpu.Placement) error {
	if l.destroy == nil {
		delete(l.there, at)
	}
	return l.destroy
}

// newMIGBench is a bench whose first GPU can be partitioned.
func newMIGBench(t *testing.T) (*bench, *layout) {
	b, l := newBench(t), &layout{there: map[gpu.Placement]bool{}}
	b.gpus[0].MIGEnabled = true
	b.gpus[0].Profiles = []nodestate.MIGProfile{
		{ID: 9, Name: "3g.40gb", Slices: 3, Size: 4, Count: 2, Starts: []int{0, 4}},
		{ID: 19, Name: "1g.10gb", Slices: 1, Size: 1, Count: 7, Starts: []int{0, 1, 2, 3, 4, 5, 6}},
	}
	b.Partitions = l
	b.AwaitCDIName = func(_ context.Context, id gpu.UUID) (string, error) { return b.CDIName(id) }
	b.Inventory = func() inventory.Inventory {
		s := b.state(time.Now())
		own, _, err := b.Store.Own(s)
		require.NoError(t, err)
		return inventory.New(s, b.problem, nil, own...)
	}
	return b, l
}

// state returns the device plugin's state, written at a time.
func (b *bench) state(written time.Time) nodestate.State {
	return nodestate.State{Time: written, DevicePlugin: &nodestate.DevicePluginInfo{
		Serve: b.serve, SwitchID: b.switchID, MIG: nodestate.MIGDynamic, Inventory: b.gpus,
	}}
}

func small(start int) gpu.Placement {
	return gpu.Placement{GPU: "GPU-0", Profile: 19, Start: start, Size: 1}
}

const (
	smallName = "gpu-0-mig-1g10gb-19-%d"
	largeName = "gpu-0-mig-3g40gb-9-4"
)

func (b *bench) record(t *testing.T) *Checkpoint {
	t.Helper()
	c, err := b.Store.Load(slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return c
}

func TestPartitionsLiveAsLongAsTheirClaim(t *testing.T) {
	b, l := newMIGBench(t)
	two := allocated("two", fmt.Sprintf(smallName, 0), largeName)
	b.requirePrepared(t, two, "MIG-19-0", "MIG-9-4")
	b.requirePrepared(t, two, "MIG-19-0", "MIG-9-4")
	require.Len(t, l.there, 2)
	require.Len(t, b.record(t).Partitions, 2)
	_, err := b.prepare(allocated("overlapping", fmt.Sprintf(smallName, 5)))
	require.ErrorContains(t, err, "device gpu-0-mig-1g10gb-19-5 is in use by claim team/two")
	_, err = b.prepare(asAdmin(allocated("admin", fmt.Sprintf(smallName, 2))))
	require.ErrorContains(t, err, "has no administrative access")

	l.destroy = fmt.Errorf("%w: busy", gpu.ErrInUse)
	require.ErrorContains(t, b.unprepare(two), "cannot be destroyed: the partition is in use: busy; next: end what uses it")
	require.NotNil(t, b.record(t).Find(two.UID), "it is still prepared")
	l.destroy = partition.ErrUnavailable
	require.ErrorContains(t, b.unprepare(two), "next: see that gpu-device-plugin runs on this node, with --mig=dynamic until the last claim")
	l.destroy = nil
	require.NoError(t, b.unprepare(two))
	require.NoError(t, b.unprepare(two))
	require.Empty(t, l.there)
	require.Empty(t, b.record(t).Partitions)

	b.requirePrepared(t, two, "MIG-19-0", "MIG-9-4")
	l.there = map[gpu.Placement]bool{} // a reboot
	b.Store.BootID = later
	b.requirePrepared(t, two, "MIG-19-0", "MIG-9-4")
	require.Len(t, l.there, 2)
}

func TestWhatIsHalfMadeIsRemoved(t *testing.T) {
	t.Run("the second partition cannot be created", func(t *testing.T) {
		b, l := newMIGBench(t)
		l.there[gpu.Placement{GPU: "GPU-0", Profile: 9, Start: 4, Size: 4}] = true // somebody's
		_, err := b.prepare(allocated("c", fmt.Sprintf(smallName, 0), largeName))
		require.ErrorIs(t, err, gpu.ErrNoRoom)
		require.Len(t, l.there, 1)
		require.Empty(t, b.record(t).Partitions)
		require.NoError(t, b.unprepare(allocated("c")))
		require.Len(t, l.there, 1, "nobody else's is destroyed")
	})
	t.Run("the driver fails", func(t *testing.T) {
		b, l := newMIGBench(t)
		l.create = partition.ErrUnavailable
		_, err := b.prepare(allocated("c", fmt.Sprintf(smallName, 0)))
		require.ErrorContains(t, err, "next: see that gpu-device-plugin runs on this node with --mig=dynamic")
		require.Empty(t, b.record(t).Partitions)
	})
	t.Run("nobody knows whether it was created", func(t *testing.T) {
		b, l := newMIGBench(t)
		l.create, l.destroy = gpu.ErrLeftover, errors.New("NVML hangs")
		_, err := b.prepare(allocated("c", fmt.Sprintf(smallName, 0)))
		require.ErrorIs(t, err, gpu.ErrLeftover)
		require.Equal(t, []OwnPartition{{small(0), "uid-c"}}, b.record(t).Partitions)
		l.create, l.destroy = nil, nil
		b.requirePrepared(t, allocated("other", fmt.Sprintf(smallName, 1)), "MIG-19-1")
		require.Equal(t, map[gpu.Placement]bool{small(1): true}, l.there)
	})
	t.Run("the toolkit does not name it", func(t *testing.T) {
		b, l := newMIGBench(t)
		b.cdi["MIG-19-0"] = errors.New("not named")
		_, err := b.prepare(allocated("c", fmt.Sprintf(smallName, 0)))
		require.ErrorContains(t, err, "no container can be given it: not named")
		require.Empty(t, l.there)
		require.Empty(t, b.record(t).Partitions)
	})
	t.Run("the record cannot be written", func(t *testing.T) {
		b, l := newMIGBench(t)
		b.Store.Path = filepath.Join(t.TempDir(), "gone", "checkpoint.json")
		_, err := b.prepare(allocated("c", fmt.Sprintf(smallName, 0)))
		require.Error(t, err)
		require.Empty(t, l.there, "what cannot be recorded is not created")
	})
	t.Run("the process is killed", func(t *testing.T) {
		b, l := newMIGBench(t)
		l.killed = func() { panic("killed") }
		require.Panics(t, func() { _, _ = b.prepare(allocated("c", fmt.Sprintf(smallName, 0))) })
		require.Len(t, l.there, 1)
		l.killed = nil
		require.NoError(t, b.Recover(t.Context()))
		require.Empty(t, l.there)
		require.Empty(t, b.record(t).Partitions)
	})
}

// The device plugin's state has a partition for a moment after it was destroyed. It is offered to nobody as if
// a person had created it.
func TestADestroyedPartitionStaysThisDriversWhileAStateHasIt(t *testing.T) {
	b, _ := newMIGBench(t)
	claim := allocated("c", fmt.Sprintf(smallName, 2))
	b.requirePrepared(t, claim, "MIG-19-2")
	before := time.Now()
	require.NoError(t, b.unprepare(claim))
	b.gpus[0].Instances = []nodestate.GPUInstance{{ID: 7, Profile: 19, Start: 2, Size: 1}}
	own := func(s nodestate.State) ([]gpu.Placement, time.Time) {
		t.Helper()
		places, until, err := b.Store.Own(s)
		require.NoError(t, err)
		return places, until
	}

	places, until := own(b.state(before))
	require.Equal(t, []gpu.Placement{small(2)}, places, "the state is older than the end of the partition")
	require.Zero(t, until, "a later state will follow")
	places, until = own(b.state(time.Now()))
	require.Equal(t, []gpu.Placement{small(2)}, places, "the state may be of a reading from before")
	require.WithinRange(t, until, before.Add(settleTime), time.Now().Add(settleTime))

	now := b.state(time.Now())
	record := b.record(t)
	record.Destroyed[0].Time = time.Now().Add(time.Hour)
	data, err := encode(record) // not by Save, which would drop it
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(b.Store.Path, append(data, '\n'), 0o600))
	places, _ = own(now)
	require.Empty(t, places, "the clock was set back, and a person has created one there")

	record.Destroyed[0].Time = before.Add(-settleTime)
	require.NoError(t, b.Store.Save(record))
	places, until = own(b.state(time.Now()))
	require.Empty(t, places, "a person has created one there")
	require.Zero(t, until)
	record.Destroyed[0].Time = record.Destroyed[0].Time.Add(-destroyedLimit)
	require.NoError(t, b.Store.Save(record))
	require.Empty(t, b.record(t).Destroyed, "it is of no use any more")
}

func TestARecordThatCannotBeReadIsNotAnEmptyOne(t *testing.T) {
	b, _ := newMIGBench(t)
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(b.Store.Path), "file"), nil, 0o600))
	b.Store.Path = filepath.Join(filepath.Dir(b.Store.Path), "file", "checkpoint.json")
	_, _, err := b.Store.Own(b.state(time.Now()))
	require.ErrorContains(t, err, "read the record of prepared claims")
}

// A pod on a lost GPU can end: what is left of its partition is destroyed if the GPU returns without a reset.
func TestAPartitionOnALostGPUIsUnpreparedAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		lose, restore func(*bench, *layout)
	}{
		"by its state": {
			func(b *bench, l *layout) {
				b.gpus[0].Condition = nodestate.Condition{Health: nodestate.Unhealthy, Reason: gpu.ReasonMissing}
				l.destroy = errors.New("nobody may ask the driver")
			},
			func(b *bench, l *layout) { b.gpus[0].Condition = b.gpus[1].Condition },
		},
		"by the driver": {
			func(_ *bench, l *layout) { l.destroy = fmt.Errorf("%w: it is lost", gpu.ErrUnreachable) },
			func(*bench, *layout) {},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, l := newMIGBench(t)
			claim, neighbour := allocated("c", fmt.Sprintf(smallName, 0)), allocated("neighbour", "gpu-1")
			b.requirePrepared(t, claim, "MIG-19-0")
			c.lose(b, l)
			require.NoError(t, b.unprepare(claim))
			require.NoError(t, b.unprepare(claim))
			require.Nil(t, b.record(t).Find(claim.UID))
			require.Equal(t, []OwnPartition{{small(0), claim.UID}}, b.record(t).Partitions, "it is remembered")
			b.requirePrepared(t, neighbour, "GPU-1")
			require.Len(t, l.there, 1)

			c.restore(b, l)
			l.destroy = nil
			require.True(t, b.HasLeftovers(b.Inventory()))
			require.NoError(t, b.Recover(t.Context()))
			require.Empty(t, l.there)
			require.Empty(t, b.record(t).Partitions)
			require.False(t, b.HasLeftovers(b.Inventory()))
			b.requirePrepared(t, allocated("next", fmt.Sprintf(smallName, 0)), "MIG-19-0")
		})
	}
}

// The place of what is left is nobody's.
func TestTheRestOfAPartitionKeepsItsPlace(t *testing.T) {
	b, l := newMIGBench(t)
	claim := allocated("c", fmt.Sprintf(smallName, 5))
	b.requirePrepared(t, claim, "MIG-19-5")
	l.destroy = fmt.Errorf("%w: it hangs", gpu.ErrUnreachable)
	require.NoError(t, b.unprepare(claim))
	b.requireRefused(t, allocated("next", largeName), "is in use by what is left of a partition, which cannot be destroyed yet; next: ")
	b.requirePrepared(t, allocated("beside", fmt.Sprintf(smallName, 0)), "MIG-19-0")
}

// The device plugin tells when the reading began that has an instance, however long it took.
func TestAPartitionIsThisDriversInAReadingFromBeforeItsEnd(t *testing.T) {
	b, _ := newMIGBench(t)
	claim := allocated("c", fmt.Sprintf(smallName, 2))
	b.requirePrepared(t, claim, "MIG-19-2")
	before := time.Now()
	require.NoError(t, b.unprepare(claim))
	b.gpus[0].Instances = []nodestate.GPUInstance{{ID: 7, Profile: 19, Start: 2, Size: 1}}
	record := b.record(t)
	for i := range record.Destroyed {
		record.Destroyed[i].Time = record.Destroyed[i].Time.Add(-2 * settleTime)
	}
	require.NoError(t, b.Store.Save(record))
	slow := b.state(time.Now())
	slow.DevicePlugin.LayoutRead = before.Add(-2 * settleTime)
	own, until, err := b.Store.Own(slow)
	require.NoError(t, err)
	require.Equal(t, []gpu.Placement{small(2)}, own, "the driver hung while the GPUs were read")
	require.Zero(t, until)

	later := b.state(time.Now())
	later.DevicePlugin.LayoutRead = time.Now()
	own, _, err = b.Store.Own(later)
	require.NoError(t, err)
	require.Empty(t, own, "a person has created one there since")
}
