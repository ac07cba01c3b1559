package prefer_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/deviceplugin/prefer"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

// sets calls each with every subset of the IDs of that size.
func sets(all []string, size int, begun []string, each func([]string)) {
	switch {
	case size == 0:
		each(begun)
	case len(all) >= size:
		sets(all[1:], size-1, append(slices.Clip(begun), all[0]), each)
		sets(all[1:], size, begun, each)
	}
}

func TestRateIsTheShareOfTheBestScore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := random(t, 2, 8)
		c, list, all := chooser(s), allocatable(s), ids(s)
		size := rapid.IntRange(2, len(all)).Draw(t, "size")
		chosen := rapid.Permutation(all).Draw(t, "chosen")[:size]
		best := 0
		sets(all, size, nil, func(set []string) { best = max(best, worth(list, set)) })
		ratio, ok := c.Rate(chosen)
		require.Equal(t, best > 0, ok)
		if ok {
			require.InDelta(t, float64(worth(list, chosen))/float64(best), ratio, 1e-9)
		}
	})
}

func TestEveryChoiceOnAnEmptyNodeIsTheBest(t *testing.T) {
	for _, m := range machines(8) {
		c, all := chooser(m.node), ids(m.node)
		for size := 2; size <= 8; size++ {
			chosen, err := c.Prefer(all, nil, size)
			require.NoError(t, err)
			if ratio, ok := c.Rate(chosen); ok {
				require.InDelta(t, 1, ratio, 0, "%s: %d", m.name, size)
			}
		}
	}
}

func TestBrokenPairHasALowerRate(t *testing.T) {
	s := wired(8, bridged(2, 4))
	c := chooser(s)
	ratio, ok := c.Rate(gpus(0, 1))
	require.True(t, ok)
	require.InDelta(t, 1, ratio, 0)
	ratio, ok = c.Rate(gpus(1, 2))
	require.True(t, ok)
	require.Less(t, ratio, 0.5)
}

func TestIncomparableChoicesAreNotRated(t *testing.T) {
	s := gputest.Node("l40s", 4)
	for name, given := range map[string][]string{"nothing": nil, "one GPU": gpus(2), "one GPU twice": gpus(2, 2), "one that is not known": append(gpus(2), "GPU-gone")} {
		_, ok := chooser(s).Rate(given)
		require.False(t, ok, name)
	}
	_, ok := prefer.New(prefer.NewTopology(s), whole(s), prefer.Options{Policy: prefer.Packed}).Rate(gpus(0, 1))
	require.False(t, ok, "nearness is not what the policy looks for")
	_, ok = prefer.New(prefer.NewTopology(gpu.Snapshot{}), whole(s), prefer.Options{}).Rate(gpus(0, 1))
	require.False(t, ok, "no GPU is known")
}

func TestEqualTopologies(t *testing.T) {
	s := wired(4, bridged(2, 4))
	require.True(t, prefer.NewTopology(s).Equal(prefer.NewTopology(s.Clone())))
	require.False(t, prefer.NewTopology(s).Equal(prefer.NewTopology(wired(4, bridged(2, 2)))))
	other := s.Clone()
	other.Devices[3].UUID = "GPU-new"
	require.False(t, prefer.NewTopology(s).Equal(prefer.NewTopology(other)))
}

func BenchmarkRate(b *testing.B) {
	s := gputest.Node("dgx-2", 16)
	c := chooser(s)
	for b.Loop() {
		c.Rate(ids(s)[:8])
	}
}
