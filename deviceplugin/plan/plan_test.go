package plan_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

func ids(s gpu.Snapshot) []string {
	var out []string
	for _, d := range s.Devices {
		out = append(out, string(d.UUID))
	}
	return out
}

func gpus(indexes ...int) []string {
	var out []string
	for _, i := range indexes {
		out = append(out, string(gputest.GPU(i)))
	}
	return out
}

func TestEachGPUIsOneDeviceWhateverItsHealth(t *testing.T) {
	now := time.Unix(1, 0)
	s := gputest.Node("h100-sxm", 8)
	h := health.New(gpu.Fault{}).See(s, now).Hear(gputest.XID(gputest.GPU(6), 79), now)
	s.Devices = s.Devices[1:]
	devices := plan.Devices(h.See(s, now.Add(time.Hour)))
	require.Len(t, devices, 8)
	for i, d := range devices {
		require.Equal(t, string(gputest.GPU(i)), d.ID)
		require.Equal(t, i/4, d.NUMANode)
		require.Equal(t, i != 0 && i != 6, d.Healthy())
	}
	require.Equal(t, gpu.ReasonMissing, devices[0].Fault.Reason)
	require.Equal(t, now, devices[6].Since)
}

func TestAGPUThatCannotBeNamedIsNoDevice(t *testing.T) {
	s := gputest.Node("t4", 2)
	s.Devices[1].UUID = ""
	require.Len(t, plan.Devices(health.New(gpu.Fault{}).See(s, time.Now())), 1)
}

func TestPreferredDevicesAreNearToEachOther(t *testing.T) {
	pcie := gputest.Node("l40s", 8) // pairs on a PCIe switch, two NUMA nodes
	nvswitch := gputest.Node("h100-sxm", 8)
	// Four pairs, joined by NVLink bridges across the order of the indexes.
	bridged := gputest.Node("l40s", 8)
	for i, l := range bridged.Links {
		a, b := l.A[len(l.A)-1], l.B[len(l.B)-1]
		if a%4 == b%4 {
			bridged.Links[i].Kind, bridged.Links[i].Lanes = gpu.LinkNVLink, 4
		}
	}
	for name, c := range map[string]struct {
		node               gpu.Snapshot
		available, include []string
		size               int
		want               []string
	}{
		"a pair":                          {pcie, ids(pcie), nil, 2, gpus(0, 1)},
		"a pair, of which one is given":   {pcie, ids(pcie), gpus(5), 2, gpus(4, 5)},
		"four of one node":                {pcie, gpus(0, 2, 4, 5, 6, 7), nil, 4, gpus(4, 5, 6, 7)},
		"one, from a pair that is broken": {pcie, gpus(0, 1, 3, 4, 5), nil, 1, gpus(3)},
		"three":                           {pcie, gpus(0, 1, 2, 4, 6, 7), nil, 3, gpus(0, 1, 2)},
		"all":                             {pcie, ids(pcie), nil, 8, ids(pcie)},
		"none":                            {pcie, ids(pcie), nil, 0, nil},
		"NVSwitch: one NUMA node":         {nvswitch, gpus(0, 1, 4, 5, 6, 7), nil, 4, gpus(4, 5, 6, 7)},
		"a bridge before a switch":        {bridged, ids(bridged), nil, 2, gpus(0, 4)},
		"two bridges":                     {bridged, gpus(0, 1, 2, 4, 5), nil, 4, gpus(0, 1, 4, 5)},
		"strangers are taken last":        {pcie, append(gpus(2, 3), "stranger"), nil, 2, gpus(2, 3)},
		"asked for twice":                 {pcie, append(gpus(0, 1, 2), gpus(0, 1)...), nil, 2, gpus(0, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := plan.NewTopology(c.node).Prefer(c.available, c.include, c.size)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestWhatCannotBePreferredIsSaid(t *testing.T) {
	node := gputest.Node("t4", 4)
	topology := plan.NewTopology(node)
	for want, c := range map[string]struct {
		include []string
		size    int
	}{
		"cannot choose 5 devices":       {nil, 5},
		"cannot choose -1 devices":      {nil, -1},
		"cannot choose 1 devices":       {gpus(0, 1), 1},
		"must be included and is not a": {[]string{"GPU-x"}, 2},
	} {
		_, err := topology.Prefer(ids(node), c.include, c.size)
		require.ErrorContains(t, err, want)
	}
}

// random draws a node whose links are anything.
func random(t *rapid.T, most int) gpu.Snapshot {
	s := gputest.Node("l40s", rapid.IntRange(1, most).Draw(t, "gpus"))
	for i := range s.Links {
		s.Links[i].Kind = gpu.LinkKind(rapid.IntRange(0, 7).Draw(t, "kind"))
		s.Links[i].Lanes = rapid.SampledFrom([]int{0, 0, 1, 2, 4, 18}).Draw(t, "lanes")
	}
	return s
}

func TestPreferIsAnAnswerToItsQuestion(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := random(t, 16)
		available := rapid.Permutation(ids(s)).Draw(t, "available")[:rapid.IntRange(1, len(s.Devices)).Draw(t, "free")]
		include := slices.Clone(available[:rapid.IntRange(0, len(available)).Draw(t, "include")])
		size := rapid.IntRange(len(include), len(available)).Draw(t, "size")
		topology := plan.NewTopology(s)
		got, err := topology.Prefer(available, include, size)
		require.NoError(t, err)
		require.Len(t, got, size)
		require.Subset(t, available, got)
		require.Subset(t, got, include)
		require.Len(t, slices.Compact(slices.Sorted(slices.Values(got))), size)

		again, err := plan.NewTopology(s).Prefer(rapid.Permutation(available).Draw(t, "order"), include, size)
		require.NoError(t, err)
		require.Equal(t, got, again, "the same question gets the same answer")
	})
}

// nearness is the same measure, computed in another way.
func nearness(s gpu.Snapshot, chosen []string) int {
	sum := 0
	for _, l := range s.Links {
		if slices.Contains(chosen, string(l.A)) && slices.Contains(chosen, string(l.B)) {
			a, _ := s.Device(l.A)
			b, _ := s.Device(l.B)
			sum += 64*l.Lanes + 2*int(l.Kind)
			if a.NUMANode == b.NUMANode {
				sum++
			}
		}
	}
	return sum
}

func TestNoPairIsNearerThanThePreferredOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := random(t, 16)
		if len(s.Devices) < 2 {
			t.Skip("one GPU")
		}
		got, err := plan.NewTopology(s).Prefer(ids(s), nil, 2)
		require.NoError(t, err)
		for i, a := range ids(s) {
			for _, b := range ids(s)[:i] {
				require.GreaterOrEqual(t, nearness(s, got), nearness(s, []string{a, b}))
			}
		}
	})
}

// On machines as they are built, growing from each device is as good as trying
// every set.
func TestPreferIsAsGoodAsTryingAll(t *testing.T) {
	for _, profile := range []string{"t4", "l40s", "a100-80gb", "h100-sxm", "mixed"} {
		s := gputest.Node(profile, 8)
		topology := plan.NewTopology(s)
		for size := 1; size <= 8; size++ {
			best := 0
			for mask := range 1 << 8 {
				var set []string
				for i, id := range ids(s) {
					if mask>>i&1 == 1 {
						set = append(set, id)
					}
				}
				if len(set) == size {
					best = max(best, nearness(s, set))
				}
			}
			got, err := topology.Prefer(ids(s), nil, size)
			require.NoError(t, err)
			require.Equal(t, best, nearness(s, got), "%s, %d", profile, size)
		}
	}
}

func BenchmarkPrefer(b *testing.B) {
	s := gputest.Node("dgx-2", 16)
	topology := plan.NewTopology(s)
	all := ids(s)
	for _, size := range []int{2, 3, 4, 8} {
		b.Run(fmt.Sprintf("%d of 16", size), func(b *testing.B) {
			for b.Loop() {
				if _, err := topology.Prefer(all, nil, size); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
