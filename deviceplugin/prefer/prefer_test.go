package prefer_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/deviceplugin/prefer"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

func TestPreferredDevicesAreNearToEachOther(t *testing.T) {
	pcie := gputest.Node("l40s", 8) // pairs on a PCIe switch, two NUMA nodes
	nvswitch := gputest.Node("h100-sxm", 8)
	cube := wired(8, meshed)
	quads := wired(8, bridged(4, 6))
	// Four pairs, joined by NVLink bridges across the order of the indexes.
	across := wired(8, func(a, b int) int {
		if a%4 == b%4 {
			return 4
		}
		return 0
	})
	none := gputest.Node("t4", 8)
	none.Links = nil
	for name, c := range map[string]struct {
		node               gpu.Snapshot
		available, include []string
		size               int
		want               []string
	}{
		"a pair":                              {pcie, ids(pcie), nil, 2, gpus(0, 1)},
		"a pair, of which one is given":       {pcie, ids(pcie), gpus(5), 2, gpus(4, 5)},
		"four of one node":                    {pcie, gpus(0, 2, 4, 5, 6, 7), nil, 4, gpus(4, 5, 6, 7)},
		"one, from a pair that is broken":     {pcie, gpus(0, 1, 3, 4, 5), nil, 1, gpus(3)},
		"one, from a quad that is broken":     {quads, gpus(0, 1, 2, 3, 5, 6, 7), nil, 1, gpus(5)},
		"two, from a quad that is broken":     {quads, gpus(0, 1, 2, 3, 5, 6, 7), nil, 2, gpus(5, 6)},
		"three":                               {pcie, gpus(0, 1, 2, 4, 6, 7), nil, 3, gpus(0, 1, 2)},
		"all":                                 {pcie, ids(pcie), nil, 8, ids(pcie)},
		"none":                                {pcie, ids(pcie), nil, 0, nil},
		"NVSwitch: one NUMA node":             {nvswitch, gpus(0, 1, 4, 5, 6, 7), nil, 4, gpus(4, 5, 6, 7)},
		"a bridge before a switch":            {across, ids(across), nil, 2, gpus(0, 4)},
		"two bridges":                         {across, gpus(0, 1, 2, 4, 5), nil, 4, gpus(0, 1, 4, 5)},
		"cube mesh: a quad":                   {cube, ids(cube), nil, 4, gpus(0, 1, 2, 3)},
		"cube mesh: two lanes, not across":    {cube, ids(cube), nil, 2, gpus(0, 3)},
		"strangers are taken last":            {pcie, append(gpus(2, 3), "stranger"), nil, 2, gpus(2, 3)},
		"strangers are taken":                 {pcie, append(gpus(2), "b", "a"), nil, 2, append(gpus(2), "a")},
		"one alone is not a stranger":         {pcie, append(gpus(2), "stranger"), nil, 1, gpus(2)},
		"a stranger that is given":            {pcie, append(gpus(2, 3, 4), "b", "a"), []string{"b"}, 3, append(gpus(2, 3), "b")},
		"asked for twice":                     {pcie, append(gpus(0, 1, 2), gpus(0, 1)...), nil, 2, gpus(0, 1)},
		"given twice":                         {pcie, gpus(0, 1, 2), gpus(2, 2), 2, gpus(0, 2)},
		"given counts as available":           {pcie, gpus(0, 1, 2), gpus(3), 2, gpus(2, 3)},
		"no links: a NUMA node":               {none, gpus(2, 3, 4, 5, 6), nil, 3, gpus(4, 5, 6)},
		"the pair that can be had with a GPU": {across, gpus(1, 2, 3, 5), gpus(3), 2, gpus(2, 3)},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := chooser(c.node).Prefer(c.available, c.include, c.size)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestLostGPUIsChosenLastAndAffectsNoOther(t *testing.T) {
	s := gputest.Node("l40s", 8)
	devices := whole(s)
	s.Devices = s.Devices[1:] // what was GPU 0 is gone, and its links lead nowhere
	c := prefer.New(prefer.NewTopology(s), devices, prefer.Options{})
	for size, want := range map[int][]string{1: gpus(1), 2: gpus(2, 3), 4: gpus(4, 5, 6, 7), 7: gpus(1, 2, 3, 4, 5, 6, 7), 8: append(gpus(1, 2, 3, 4, 5, 6, 7), gpus(0)...)} {
		got, err := c.Prefer(gpus(0, 1, 2, 3, 4, 5, 6, 7), nil, size)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// The choice among the neighbours of a broken GPU ignores it.
func TestUnhealthyDevicesAreChosenLast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := random(t, 2, 12)
		o := prefer.Options{Policy: prefer.Policy(rapid.IntRange(0, 3).Draw(t, "policy"))}
		devices := parts(s, rapid.IntRange(1, 3).Draw(t, "replicas"))
		broken := s.Devices[rapid.IntRange(0, len(s.Devices)-1).Draw(t, "broken")].UUID
		var sound []string
		for i, d := range devices {
			devices[i].LastResort = d.GPU == broken
			if d.GPU != broken {
				sound = append(sound, d.ID)
			}
		}
		size := rapid.IntRange(1, len(devices)).Draw(t, "size")
		c := prefer.New(prefer.NewTopology(s), devices, o)
		got, err := c.Prefer(names(devices), nil, size)
		require.NoError(t, err)
		require.Len(t, got, size)
		if size > len(sound) {
			require.Subset(t, got, sound)
			return
		}
		want, err := c.Prefer(sound, nil, size)
		require.NoError(t, err)
		require.Equal(t, want, got)
	})
}

func TestImpossibleRequestsAreErrors(t *testing.T) {
	node := gputest.Node("t4", 4)
	for want, c := range map[string]struct {
		include []string
		size    int
	}{
		"cannot choose 5 devices, 0 of them to be included, from 4 available ones":  {nil, 5},
		"cannot choose -1 devices, 0 of them to be included, from 4 available ones": {nil, -1},
		"cannot choose 1 devices, 2 of them to be included, from 4 available ones":  {gpus(0, 1), 1},
	} {
		_, err := chooser(node).Prefer(ids(node), c.include, c.size)
		require.EqualError(t, err, want)
	}
}

func TestPreferIsSafeForConcurrentUse(t *testing.T) {
	s := wired(16, bridged(4, 6))
	c := chooser(s)
	want, err := c.Prefer(ids(s), nil, 3)
	require.NoError(t, err)
	var calls sync.WaitGroup
	answers := make([][]string, 8)
	for i := range answers {
		calls.Go(func() {
			for range 50 {
				answers[i], _ = c.Prefer(ids(s), nil, 3)
			}
		})
	}
	calls.Wait()
	for _, got := range answers {
		require.Equal(t, want, got)
	}
}

func TestEmptyTopologyIsNoError(t *testing.T) {
	c := prefer.New(prefer.NewTopology(gputest.Node("t4", 1)), nil, prefer.Options{})
	got, err := c.Prefer([]string{"b", "a"}, nil, 1)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, got)
}

func TestPreferReturnsAValidChoice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := random(t, 1, 18)
		o := prefer.Options{Policy: prefer.Policy(rapid.IntRange(0, 3).Draw(t, "policy"))}
		devices := parts(s, rapid.IntRange(1, 4).Draw(t, "replicas"))
		s.Devices = s.Devices[rapid.IntRange(0, 1).Draw(t, "lost"):]
		all := append(names(devices), "stranger", "another")
		available := rapid.Permutation(all).Draw(t, "available")[:rapid.IntRange(1, len(all)).Draw(t, "free")]
		include := slices.Clone(available[:rapid.IntRange(0, len(available)).Draw(t, "include")])
		size := rapid.IntRange(len(include), len(available)).Draw(t, "size")
		got, err := prefer.New(prefer.NewTopology(s), devices, o).Prefer(available, include, size)
		require.NoError(t, err)
		require.Len(t, got, size)
		require.Subset(t, available, got)
		require.Subset(t, got, include)
		require.Len(t, slices.Compact(slices.Sorted(slices.Values(got))), size)

		again := append(rapid.Permutation(available).Draw(t, "order"), available[0])
		same, err := prefer.New(prefer.NewTopology(s), devices, o).Prefer(again, append(include, include...), size)
		require.NoError(t, err)
		require.Equal(t, got, same, "the same question gets the same answer")
	})
}
