package prefer_test

import (
	"math/bits"
	"slices"
	"testing"

	"github.com/NVIDIA/go-gpuallocator/gpuallocator"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// best returns the highest go-gpuallocator score of a set of that size, by trying all.
func best(list gpuallocator.DeviceList, available, include []string, size int) int {
	most := -1
	for mask := range uint(1) << len(available) {
		if bits.OnesCount(mask) != size {
			continue
		}
		var set []string
		for i, id := range available {
			if mask>>i&1 == 1 {
				set = append(set, id)
			}
		}
		if !slices.ContainsFunc(include, func(id string) bool { return !slices.Contains(set, id) }) {
			most = max(most, worth(list, set))
		}
	}
	return most
}

// No set has a higher score than the preferred one: on every machine, of every
// size, with every pattern of GPUs that are free.
func TestNoSetScoresHigherThanThePreferredOne(t *testing.T) {
	for _, m := range machines(8) {
		t.Run(m.name, func(t *testing.T) {
			list, c, at := allocatable(m.node), chooser(m.node), places(m.node)
			// scores[mask] is that of the set, by index.
			scores := make([]int, 1<<8)
			for mask := range scores {
				scores[mask] = worth(list, named(mask))
			}
			for free := 1; free < 1<<8; free++ {
				available := named(free)
				for size := 1; size <= len(available); size++ {
					most := 0
					for mask, score := range scores {
						if mask&free == mask && bits.OnesCount(uint(mask)) == size {
							most = max(most, score)
						}
					}
					got, err := c.Prefer(available, nil, size)
					require.NoError(t, err)
					chosen := 0
					for _, i := range indexes(at, got) {
						chosen |= 1 << i
					}
					if chosen&^free != 0 || bits.OnesCount(uint(chosen)) != size || scores[chosen] != most {
						require.Fail(t, "not the best", "%d of %v: %v scores %d of %d", size, available, got, scores[chosen], most)
					}
				}
			}
		})
	}
}

func named(mask int) []string {
	var indexes []int
	for i := range 8 {
		if mask>>i&1 == 1 {
			indexes = append(indexes, i)
		}
	}
	return gpus(indexes...)
}

func TestNoSetScoresHigherOnAnyNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := random(t, 1, 11)
		available := rapid.Permutation(ids(s)).Draw(t, "available")[:rapid.IntRange(1, len(s.Devices)).Draw(t, "free")]
		include := slices.Clone(available[:rapid.IntRange(0, len(available)).Draw(t, "include")])
		size := rapid.IntRange(len(include), len(available)).Draw(t, "size")
		got, err := chooser(s).Prefer(available, include, size)
		require.NoError(t, err)
		list := allocatable(s)
		require.Equal(t, best(list, available, include, size), worth(list, got))
	})
}

// leaves lists the scores among the remaining GPUs: the weakest within each four of
// them, best first, and then that of each two.
func leaves(list gpuallocator.DeviceList, available, chosen []string) []int {
	rest := slices.DeleteFunc(slices.Clone(available), func(id string) bool { return slices.Contains(chosen, id) })
	var quads, pairs []int
	for mask := range uint(1) << len(rest) {
		var of []int
		for i, a := range rest {
			for j, b := range rest[:i] {
				if mask>>i&1 == 1 && mask>>j&1 == 1 {
					of = append(of, worth(list, []string{a, b}))
				}
			}
		}
		switch bits.OnesCount(mask) {
		case 2:
			pairs = append(pairs, of[0])
		case 4:
			quads = append(quads, slices.Min(of))
		}
	}
	descending := func(a, b int) int { return b - a }
	slices.SortFunc(quads, descending)
	slices.SortFunc(pairs, descending)
	return append(quads, pairs...)
}

// No set with the highest score leaves more quads and pairs whole.
func TestRemainingGPUsStayWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SampledFrom(machines(8)).Draw(t, "machine").node
		if rapid.Bool().Draw(t, "any links") {
			s = random(t, 1, 7)
		}
		available := rapid.Permutation(ids(s)).Draw(t, "available")[:rapid.IntRange(1, len(s.Devices)).Draw(t, "free")]
		size := rapid.IntRange(1, len(available)).Draw(t, "size")
		got, err := chooser(s).Prefer(available, nil, size)
		require.NoError(t, err)
		list := allocatable(s)
		most, left := worth(list, got), leaves(list, available, got)
		for mask := range uint(1) << len(available) {
			if bits.OnesCount(mask) != size {
				continue
			}
			var other []string
			for i, id := range available {
				if mask>>i&1 == 1 {
					other = append(other, id)
				}
			}
			if worth(list, other) == most {
				require.LessOrEqual(t, slices.Compare(leaves(list, available, other), left), 0, "%v rather than %v", other, got)
			}
		}
	})
}

// The policy of the reference divides all free GPUs into sets of the size that
// is asked for: its own set may score lower than ours, never higher.
func TestBestEffortNeverScoresHigher(t *testing.T) {
	policy := gpuallocator.NewBestEffortPolicy()
	for _, m := range machines(8) {
		list, c := allocatable(m.node), chooser(m.node)
		for _, available := range [][]string{ids(m.node), gpus(0, 1, 2, 3, 4, 6, 7), gpus(1, 2, 3, 5, 6, 7), gpus(0, 3, 4, 5, 6)} {
			for size := 1; size <= len(available); size++ {
				devices, err := list.Filter(available)
				require.NoError(t, err)
				theirs := uuids(policy.Allocate(devices, nil, size))
				got, err := c.Prefer(available, nil, size)
				require.NoError(t, err)
				require.GreaterOrEqual(t, worth(list, got), worth(list, theirs), "%s, %d of %v: %v, theirs %v", m.name, size, available, got, theirs)
			}
		}
	}
}

// uuids names the chosen GPUs. Where the number does not divide the free ones,
// the policy may answer with nil devices: it has filled up one of its sets.
func uuids(chosen []*gpuallocator.Device) []string {
	var out []string
	for _, d := range chosen {
		if d != nil {
			out = append(out, d.UUID)
		}
	}
	return out
}

// Above 16 GPUs not every set is tried. On machines as they are built the result
// is the best all the same: whole switches, bridges and boards.
func TestManyGPUsAreChosenByGrowth(t *testing.T) {
	for _, m := range machines(32) {
		list, c := allocatable(m.node), chooser(m.node)
		for size, like := range map[int][]int{2: {0, 1}, 4: {0, 1, 2, 3}, 8: {0, 1, 2, 3, 4, 5, 6, 7}} {
			got, err := c.Prefer(ids(m.node), nil, size)
			require.NoError(t, err)
			require.Len(t, got, size)
			require.GreaterOrEqual(t, worth(list, got), worth(list, gpus(like...)), "%s, %d: %v", m.name, size, got)
		}
	}
}

// Swapping one GPU cannot improve a grown set.
func TestGrownSetIsALocalOptimum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := random(t, 17, 20)
		size := rapid.IntRange(1, len(s.Devices)).Draw(t, "size")
		list := allocatable(s)
		got, err := chooser(s).Prefer(ids(s), nil, size)
		require.NoError(t, err)
		require.Len(t, got, size)
		for i := range got {
			for _, id := range ids(s) {
				if slices.Contains(got, id) {
					continue
				}
				other := slices.Clone(got)
				other[i] = id
				require.LessOrEqual(t, worth(list, other), worth(list, got))
			}
		}
	})
}
