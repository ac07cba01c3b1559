package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// history returns the events of slices from an index on, and how many there are.
func (s *apiServer) history(t *testing.T, from int) (all []resourceapi.ResourceSlice, end int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events[from:] {
		var one resourceapi.ResourceSlice
		require.NoError(t, json.Unmarshal(e.Object.Raw, &one))
		all = append(all, one)
	}
	return all, len(s.events)
}

// The scheduler may look at any moment.
func TestWhatIsPublishedNeverChangesWhilePartitionsComeAndGo(t *testing.T) {
	t.Parallel()
	n := newMIGNode(t, "h100-sxm", "2g.20gb@2")
	n.startDevicePlugin()
	n.start("pod-1")
	client := n.register(t, "pod-1")
	before := slices.Sorted(maps.Keys(n.waitPartitions()))
	_, start := n.api.history(t, 0)

	const rounds = 12
	var tenants sync.WaitGroup
	for worker, place := range []int{0, 1, 4, 5, 6} {
		c := n.claim("worker-"+strconv.Itoa(worker), fmt.Sprintf(small, place))
		tenants.Go(func() {
			for range rounds {
				_, refusal, err := prepare(t.Context(), client, c)
				if err == nil && refusal == "" {
					refusal, err = unprepare(t.Context(), client, c)
				}
				if err != nil || refusal != "" {
					t.Errorf("claim %s: %v %s", c.Name, err, refusal)
					return
				}
			}
		})
	}
	tenants.Wait()
	n.waitStarts("all are gone, and the person's stays", 2)
	changes, _ := n.api.history(t, start)
	for _, slice := range changes {
		for _, d := range slice.Spec.Devices {
			require.Contains(t, before, d.Name)
			require.Empty(t, d.Taints, d.Name)
		}
	}
	require.Empty(t, changes, "not for a moment")
	after, _ := n.api.devices()
	require.Equal(t, before, slices.Sorted(maps.Keys(after)))
}

// A tenant whose program faults again and again takes nothing from the others on the GPU.
func TestATenantThatCrashesTakesNothingFromItsNeighbours(t *testing.T) {
	t.Parallel()
	n := newMIGNode(t, "h100-sxm", "2g.20gb@2")
	n.startDevicePlugin()
	n.start("pod-1", "--evict=69")
	client := n.register(t, "pod-1")
	n.waitPartitions()
	victim := n.claim("victim", large)
	_, refusal, err := prepare(t.Context(), client, victim)
	require.NoError(t, err)
	require.Empty(t, refusal)
	_, start := n.api.history(t, 0)
	its := fmt.Sprintf(small, 1)
	for round := range 3 {
		attacker := n.claim("attacker-"+strconv.Itoa(round), its)
		_, refusal, err := prepare(t.Context(), client, attacker)
		require.NoError(t, err)
		require.Empty(t, refusal, "no fault of before is left at the place")
		g := n.waitInventory("both exist", func(g nodestate.GPU) bool { return slices.Equal(starts(g), []int{1, 2, 4}) })
		at := slices.IndexFunc(g.Instances, func(i nodestate.GPUInstance) bool { return i.Start == 1 })
		n.sim("xid", "--gpu", "0", "--xid", "69", "--gi", strconv.Itoa(g.Instances[at].ID), "--ci", "0")
		n.waitDevices("its own partition has a taint", func(devices map[string]resourceapi.Device) bool { return len(devices[its].Taints) == 1 })
		refusal, err = unprepare(t.Context(), client, attacker)
		require.NoError(t, err)
		require.Empty(t, refusal)
		n.waitDevices("the fault ends with the partition", untaintedAll)
	}
	changes, _ := n.api.history(t, start)
	require.NotEmpty(t, changes)
	for _, slice := range changes {
		for _, d := range slice.Spec.Devices {
			if d.Name != its {
				require.Empty(t, d.Taints, d.Name)
				continue
			}
			for _, taint := range d.Taints {
				require.Equal(t, resourceapi.DeviceTaintEffectNoExecute, taint.Effect)
			}
		}
	}
	refusal, err = unprepare(t.Context(), client, victim)
	require.NoError(t, err)
	require.Empty(t, refusal)
}

// A pod on it can end, so that the node can be drained.
func TestAPartitionOnALostGPUCanEnd(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"calls", "gone", "unknown"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			n := newMIGNode(t, "h100-sxm", "2g.20gb@2")
			n.startDevicePlugin()
			n.start("pod-1")
			client := n.register(t, "pod-1")
			n.waitPartitions()
			c, its := n.claim("c", fmt.Sprintf(small, 0)), fmt.Sprintf(small, 0)
			_, refusal, err := prepare(t.Context(), client, c)
			require.NoError(t, err)
			require.Empty(t, refusal)
			id := n.waitInventory("it exists", func(g nodestate.GPU) bool { return slices.Equal(starts(g), []int{0, 2}) }).UUID
			n.sim("lose", "--gpu", "0", "--how", how)
			n.waitDevices("the GPU is lost", func(devices map[string]resourceapi.Device) bool { return len(devices[its].Taints) == 1 })
			began := time.Now()
			refusal, err = unprepare(t.Context(), client, c)
			require.NoError(t, err)
			require.Empty(t, refusal)
			require.Less(t, time.Since(began), 10*time.Second, "at once")

			n.sim("restore", "--gpu", string(id))
			n.waitInventory("what is left is destroyed when the GPU returns", func(g nodestate.GPU) bool { return slices.Equal(starts(g), []int{2}) })
			n.waitDevices("the GPU is back", untaintedAll)
		})
	}
}
