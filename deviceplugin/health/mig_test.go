package health_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// divided has two GPUs of four MIG devices each, in GPU instances 1 to 4.
var divided = gputest.Node("a100-mig", 2)

// instance is an XID that the driver attributes to a part of the GPU.
func instance(gpu gpu.UUID, gi, ci int, xid uint64) gpu.Event {
	e := gputest.XID(gpu, xid)
	e.GPUInstance, e.ComputeInstance = gi, ci
	return e
}

// unhealthy lists the GPUs and MIG devices that must not be allocated, with the reason.
func unhealthy(h health.State, s gpu.Snapshot) map[gpu.UUID]gpu.Reason {
	out := map[gpu.UUID]gpu.Reason{}
	for _, d := range s.Devices {
		for _, id := range parts(d) {
			if f, _ := h.Verdict(id); f.Reason != "" {
				out[id] = f.Reason
			}
		}
	}
	return out
}

func parts(d gpu.Device) []gpu.UUID {
	ids := []gpu.UUID{d.UUID}
	for _, m := range d.MIG {
		ids = append(ids, m.UUID)
	}
	return ids
}

func TestXIDOfAMIGInstanceAffectsItsDevices(t *testing.T) {
	gpu0, gpu1 := divided.Devices[0], divided.Devices[1]
	all := map[gpu.UUID]gpu.Reason{}
	for _, id := range parts(gpu0) {
		all[id] = gpu.ReasonXID
	}
	second := map[gpu.UUID]gpu.Reason{gpu0.UUID: gpu.ReasonXID, gpu0.MIG[1].UUID: gpu.ReasonXID}
	for name, c := range map[string]struct {
		event gpu.Event
		want  map[gpu.UUID]gpu.Reason
	}{
		"one that stays there":                     {instance(gpu0.UUID, 2, 0, 94), second},
		"of a whole GPU instance":                  {instance(gpu0.UUID, 2, -1, 94), second},
		"of no instance":                           {instance(gpu0.UUID, -1, -1, 94), all},
		"of no GPU instance, whatever follows":     {instance(gpu0.UUID, -1, 0, 94), all},
		"one that needs the GPU to be reset":       {instance(gpu0.UUID, 2, 0, 95), all},
		"one that nobody knows":                    {instance(gpu0.UUID, 2, 0, 1234), all},
		"of a compute instance that is not there":  {instance(gpu0.UUID, 2, 5, 94), second},
		"one that is ignored":                      {instance(gpu0.UUID, 2, 0, 31), map[gpu.UUID]gpu.Reason{}},
		"of another GPU's instance with that name": {instance(gpu1.UUID, 2, 0, 94), map[gpu.UUID]gpu.Reason{gpu1.UUID: gpu.ReasonXID, gpu1.MIG[1].UUID: gpu.ReasonXID}},
	} {
		t.Run(name, func(t *testing.T) {
			h := health.New(gpu.Fault{}).ApplySnapshot(divided, now).ApplyEvent(c.event, now)
			require.Equal(t, c.want, unhealthy(h, divided))
			again := health.Restore(file(h)).ApplySnapshot(divided, now)
			require.Equal(t, c.want, unhealthy(again, divided), "also in the next process")
		})
	}
}

// They share memory and engines, so a fault of one affects all.
func TestComputeInstancesShareTheFaultsOfTheirGPUInstance(t *testing.T) {
	s := divided.Clone()
	s.Devices[0].MIG[1].GPUInstance, s.Devices[0].MIG[1].ComputeInstance = 1, 1
	mig := s.Devices[0].MIG
	want := map[gpu.UUID]gpu.Reason{s.Devices[0].UUID: gpu.ReasonXID, mig[0].UUID: gpu.ReasonXID, mig[1].UUID: gpu.ReasonXID}
	h := health.New(gpu.Fault{}).ApplySnapshot(s, now)
	for _, ci := range []int{-1, 0, 1} {
		require.Equal(t, want, unhealthy(h.ApplyEvent(instance(s.Devices[0].UUID, 1, ci, 32), now), s))
	}
	gi, ci := 1, 1
	old := file(h)
	old.DevicePlugin.Faults = []nodestate.Fault{{GPU: s.Devices[0].UUID, GPUInstance: &gi, ComputeInstance: &ci, Reason: gpu.ReasonXID, XID: 32, Since: now, Needs: "quiet"}}
	require.Equal(t, want, unhealthy(health.Restore(old).ApplySnapshot(s, now), s), "also what an earlier version had noted")
}

// The memory of a MIG GPU is the only source of its devices if it never comes back.
func TestRecallKeepsMIGDevicesWithoutAFault(t *testing.T) {
	parent := divided.Devices[0]
	zero := 0
	state := nodestate.State{DevicePlugin: &nodestate.DevicePluginInfo{}}
	var list nodestate.Resource
	for _, m := range []gpu.MIGDevice{parent.MIG[2], parent.MIG[0]} {
		list.Devices = append(list.Devices, nodestate.Device{ID: string(m.UUID), GPU: m.UUID, NUMANode: &zero, MIG: &nodestate.MIG{
			Parent: parent.UUID, Index: m.Index, Profile: m.Profile, GPUInstance: m.GPUInstance, ComputeInstance: m.ComputeInstance,
		}})
	}
	state.DevicePlugin.Resources = []nodestate.Resource{list, list} // a device may be listed under two names
	h := health.Restore(state).ApplySnapshot(gpu.Snapshot{Driver: divided.Driver, Devices: divided.Devices[1:]}, now)
	known := h.GPUs()
	require.Len(t, known, 2)
	d := known[0].Device
	require.Equal(t, parent.UUID, d.UUID)
	require.True(t, d.MIGEnabled)
	require.Zero(t, d.NUMANode)
	require.Equal(t, []gpu.UUID{parent.MIG[0].UUID, parent.MIG[2].UUID}, []gpu.UUID{d.MIG[0].UUID, d.MIG[1].UUID})
	require.Equal(t, parent.MIG[2].Profile, d.MIG[1].Profile)
	for _, m := range d.MIG {
		f, _ := h.Verdict(m.UUID)
		require.Equal(t, gpu.ReasonMissing, f.Reason)
	}
	require.Len(t, h.ApplySnapshot(divided, now).GPUs()[0].Device.MIG, 4, "what the driver says counts")
}

func TestMIGDevicesFollowTheirGPU(t *testing.T) {
	for _, reason := range []gpu.Reason{gpu.ReasonLost, gpu.ReasonUnreadable, gpu.ReasonResetNeeded} {
		broken := divided.Clone()
		broken.Devices[0].Fault = gpu.Fault{Reason: reason}
		broken.Devices[0].MIGEnabled, broken.Devices[0].MIG = false, nil // an unreadable GPU lists none
		h := health.New(gpu.Fault{}).ApplySnapshot(divided, now).ApplySnapshot(broken, now)
		want := map[gpu.UUID]gpu.Reason{}
		for _, id := range parts(divided.Devices[0]) {
			want[id] = reason
		}
		require.Equal(t, want, unhealthy(h, divided))
		require.Len(t, h.GPUs()[0].Device.MIG, 4, "so that people see them")
		require.Empty(t, unhealthy(h.ApplySnapshot(divided, now), divided))
	}
	gone := divided.Clone()
	gone.Devices = gone.Devices[1:]
	require.Len(t, unhealthy(health.New(gpu.Fault{}).ApplySnapshot(divided, now).ApplySnapshot(gone, now), divided), 5)
}

func TestAResetHealsEveryInstance(t *testing.T) {
	id := divided.Devices[0].UUID
	out := divided.Clone()
	out.Devices[0].Fault = gpu.Fault{Reason: gpu.ReasonResetNeeded}
	h := health.New(gpu.Fault{}).ApplySnapshot(divided, now).
		ApplyEvent(instance(id, 1, 0, 94), now).ApplyEvent(instance(id, 3, 0, 32), now.Add(time.Second))
	require.Len(t, unhealthy(h, divided), 3)
	f, since := h.Verdict(id)
	require.EqualValues(t, 94, f.XID, "the GPU as a whole has the first fault of its parts")
	require.Equal(t, now, since)
	require.Len(t, unhealthy(h.ApplySnapshot(divided, now), divided), 3)
	require.Empty(t, unhealthy(h.ApplySnapshot(out, now).ApplySnapshot(divided, now), divided))
}

// redivided returns the node with another layout of its first GPU.
func redivided(change func(*gpu.Device)) gpu.Snapshot {
	s := divided.Clone()
	change(&s.Devices[0])
	return s
}

// A program can cause it at any time, and it has ended with its instance.
func TestAContainedFaultEndsWithItsInstance(t *testing.T) {
	id, attacker := divided.Devices[0].UUID, divided.Devices[0].MIG[1]
	placed := redivided(func(d *gpu.Device) {
		d.Instances = []gpu.Instance{{ID: 1, Profile: 9, Start: 0, Size: 4}, {ID: 2, Profile: 19, Start: 4, Size: 1}, {ID: 3, Profile: 19, Start: 5, Size: 1}, {ID: 4, Profile: 19, Start: 6, Size: 1}}
	})
	own := map[gpu.UUID]gpu.Reason{id: gpu.ReasonXID, attacker.UUID: gpu.ReasonXID}
	without := func(d *gpu.Device) {
		d.MIG = slices.DeleteFunc(d.MIG, func(m gpu.MIGDevice) bool { return m.GPUInstance == 2 })
		d.Instances = slices.DeleteFunc(d.Instances, func(i gpu.Instance) bool { return i.ID == 2 })
	}
	for name, c := range map[string]struct {
		before, after gpu.Snapshot
		kept          bool
	}{
		"nothing has changed":    {divided, divided, true},
		"nothing has moved":      {placed, placed, true},
		"it is gone":             {divided, redivided(without), false},
		"MIG mode is off":        {divided, redivided(func(d *gpu.Device) { d.MIGEnabled, d.MIG = false, nil }), false},
		"another has its number": {divided, redivided(func(d *gpu.Device) { d.MIG[1].UUID = "MIG-11111111-0000-4000-8000-000000000000" }), false},
		"another has its number, elsewhere": {placed, redivided(func(d *gpu.Device) {
			d.Instances = slices.Clone(placed.Devices[0].Instances)
			d.Instances[1].Start = 7
		}), false},
		"it has no MIG device now": {placed, redivided(func(d *gpu.Device) {
			d.Instances = slices.Clone(placed.Devices[0].Instances)
			d.MIG = slices.DeleteFunc(d.MIG, func(m gpu.MIGDevice) bool { return m.GPUInstance == 2 })
		}), true},
		"the GPU cannot be read": {divided, redivided(func(d *gpu.Device) { d.Fault, d.MIG = gpu.Fault{Reason: gpu.ReasonUnreadable}, nil }), true},
	} {
		t.Run(name, func(t *testing.T) {
			h := health.New(gpu.Fault{}).ApplySnapshot(c.before, now).ApplyEvent(instance(id, 2, 0, 69), now)
			require.Equal(t, own, unhealthy(h, c.before), "no other is concerned while it is there")
			faults := len(h.ApplySnapshot(c.after, now).Faults())
			require.Equal(t, c.kept, faults > 0)
			if !c.kept {
				require.Empty(t, unhealthy(h.ApplySnapshot(c.after, now), c.after))
			}
		})
	}
	h := health.New(gpu.Fault{}).ApplySnapshot(placed, now).ApplyEvent(instance(id, 2, 0, 69), now).ApplyEvent(instance(id, 3, 0, 69), now)
	h = h.ApplyDestroyed(gpu.Placement{GPU: id, Profile: 19, Start: 4, Size: 1}, now)
	require.Equal(t, map[gpu.UUID]gpu.Reason{id: gpu.ReasonXID, divided.Devices[0].MIG[2].UUID: gpu.ReasonXID}, unhealthy(h, placed), "before the GPU is read again")
	require.Equal(t, unhealthy(h, placed), unhealthy(h.ApplyDestroyed(gpu.Placement{GPU: "GPU-other", Start: 5, Size: 1}, now), placed))
}

// A tenant's partition is created, faults and is destroyed before the GPU is read, and the next has its number.
func TestAFaultOfAnInstanceThatWasNeverListedIsNotTheNextOnes(t *testing.T) {
	id := divided.Devices[0].UUID
	next := redivided(func(d *gpu.Device) {
		d.Instances = []gpu.Instance{{ID: 6, Profile: 19, Start: 5, Size: 1}}
		d.MIG = append(d.MIG, gpu.MIGDevice{Index: 4, UUID: "MIG-next", GPUInstance: 6})
	})
	h := health.New(gpu.Fault{}).ApplySnapshot(divided, now).ApplyEvent(instance(id, 6, 0, 69), now)
	h = h.ApplyDestroyed(gpu.Placement{GPU: id, Profile: 19, Start: 4, Size: 1}, now)
	made := gpu.Partition{Placement: gpu.Placement{GPU: id, Profile: 19, Start: 5, Size: 1}, GPUInstance: 6}
	require.Empty(t, unhealthy(h.ApplyCreated(made, now).ApplySnapshot(next, now), next))
	made.GPUInstance = 5
	require.Len(t, h.ApplyCreated(made, now).Faults(), 1)
	made.GPU = "GPU-other"
	require.Equal(t, h, h.ApplyCreated(made, now))
}

// A partition is created and its program faults before the GPU is read again.
func TestAContainedFaultOfANewInstanceConcernsNoOther(t *testing.T) {
	id := divided.Devices[0].UUID
	h := health.New(gpu.Fault{}).ApplySnapshot(divided, now).ApplyEvent(instance(id, 6, 0, 69), now)
	require.Equal(t, map[gpu.UUID]gpu.Reason{id: gpu.ReasonXID}, unhealthy(h, divided))
	again := health.Restore(file(h))
	require.Equal(t, map[gpu.UUID]gpu.Reason{id: gpu.ReasonXID}, unhealthy(again.ApplyEvent(instance(id, 6, 0, 69), now), gpu.Snapshot{Devices: []gpu.Device{{UUID: id}}}))
	require.Empty(t, unhealthy(h.ApplySnapshot(divided, now), divided), "it is gone again")
	more := redivided(func(d *gpu.Device) {
		d.MIG = append(d.MIG, gpu.MIGDevice{Index: 4, UUID: "MIG-new", GPUInstance: 6})
	})
	h = h.ApplySnapshot(more, now)
	require.Equal(t, map[gpu.UUID]gpu.Reason{id: gpu.ReasonXID, "MIG-new": gpu.ReasonXID}, unhealthy(h, more))
	whole, _ := h.WholeVerdict(id)
	require.Empty(t, whole.Reason, "of all that it has, and may get")
	for at, want := range map[int]gpu.Reason{6: gpu.ReasonXID, 2: "", 9: ""} {
		f, _ := h.InstanceVerdict(id, at)
		require.Equal(t, want, f.Reason, at)
	}
}

// The broken hardware of an instance may be part of any other after a new division.
func TestAFaultThatNeedsAResetOutlivesItsInstance(t *testing.T) {
	id := divided.Devices[0].UUID
	anew := redivided(func(d *gpu.Device) {
		*d = gputest.WithMIG(*d, "3g.40gb")
		d.MIG[0].UUID = "MIG-11111111-0000-4000-8000-000000000000"
	})
	strict := health.DefaultPolicy().With(health.Changes{XIDs: map[uint64]health.Rule{94: {Recovery: gpu.RecoveryReset}}})
	h := health.New(gpu.Fault{}).WithPolicy(strict).ApplySnapshot(divided, now).ApplyEvent(instance(id, 2, 0, 94), now)
	require.Len(t, unhealthy(h, divided), 2)
	whole, _ := h.WholeVerdict(id)
	require.Empty(t, whole.Reason)
	h = h.ApplySnapshot(anew, now)
	require.Len(t, unhealthy(h, anew), 2, "the GPU and its one MIG device")
	whole, _ = h.WholeVerdict(id)
	require.Equal(t, gpu.ReasonXID, whole.Reason)
	require.Len(t, unhealthy(h.ApplySnapshot(divided, now), divided), 2, "it is the same instance as before")
	require.Len(t, unhealthy(h.ApplyDestroyed(gpu.Placement{GPU: id}, now), anew), 2)
	require.Len(t, unhealthy(h.ApplyCreated(gpu.Partition{Placement: gpu.Placement{GPU: id}, GPUInstance: 2}, now), anew), 2)
	off := redivided(func(d *gpu.Device) { d.MIGEnabled, d.MIG = false, nil })
	require.Len(t, unhealthy(h.ApplySnapshot(off, now), off), 1, "the GPU")
}

func TestUnknownDeviceIsNotHealthy(t *testing.T) {
	h := health.New(gpu.Fault{}).ApplySnapshot(divided, now)
	for _, id := range []gpu.UUID{"", "GPU-x", "MIG-x"} {
		f, _ := h.Verdict(id)
		require.Equal(t, gpu.ReasonMissing, f.Reason)
		require.False(t, h.AwaitsReset(id))
	}
}

func TestRememberedMIGDevicesAreNoGPUs(t *testing.T) {
	mig := divided.Devices[0].MIG[0].UUID
	h := health.Restore(nodestate.State{DevicePlugin: &nodestate.DevicePluginInfo{Resources: []nodestate.Resource{
		{Name: "nvidia.com/mig-3g.40gb", Devices: []nodestate.Device{{ID: string(mig), GPU: mig, Health: nodestate.Healthy}}},
	}}})
	f, _ := h.Verdict(mig)
	require.Equal(t, gpu.ReasonMissing, f.Reason, "until it is seen")
	require.Empty(t, h.GPUs())
	require.Len(t, h.ApplySnapshot(divided, now).GPUs(), 2)
	require.Empty(t, unhealthy(h.ApplySnapshot(divided, now), divided))
}

func TestFaultOfOneInstanceAffectsNoOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := divided.Devices[rapid.IntRange(0, 1).Draw(t, "gpu")]
		m := d.MIG[rapid.IntRange(0, 3).Draw(t, "mig")]
		h := health.New(gpu.Fault{}).ApplySnapshot(divided, now)
		for range rapid.IntRange(1, 10).Draw(t, "steps") {
			ci := rapid.SampledFrom([]int{-1, 0}).Draw(t, "compute instance")
			h = h.ApplyEvent(instance(d.UUID, m.GPUInstance, ci, rapid.SampledFrom([]uint64{8, 32, 94}).Draw(t, "xid")), now)
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				h = h.ApplySnapshot(divided, now)
			case 1:
				h = health.Restore(file(h)).ApplySnapshot(divided, now)
			}
			require.Equal(t, map[gpu.UUID]gpu.Reason{d.UUID: gpu.ReasonXID, m.UUID: gpu.ReasonXID}, unhealthy(h, divided))
		}
	})
}

// A GPU that is not divided has no instances, whatever its driver says of an error.
func TestAnErrorOfAGPUThatIsNotDividedIsOneOfTheWholeGPU(t *testing.T) {
	h := health.New(gpu.Fault{}).ApplySnapshot(node, now).SetAllWatched(now)
	h = h.ApplyEvent(instance(gputest.GPU(1), 0, 0, 69), now)
	h = h.ApplySnapshot(node, now)
	require.Equal(t, marks{1: gpu.ReasonXID}, reasons(h), "it has not been quiet yet")
	due := now.Add(health.DefaultQuietPeriod)
	require.Equal(t, []gpu.UUID{gputest.GPU(1)}, h.DueProbes(due))
	h = h.ApplyProbe(health.Probe{ID: gputest.GPU(1), Began: due, Passed: true}, due.Add(time.Second)).ApplySnapshot(node, due)
	require.Empty(t, reasons(h))
}
