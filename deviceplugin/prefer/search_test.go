package prefer

import (
	"fmt"
	"math/bits"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/internal/gpu"
)

// shared draws shared GPUs in the order that nearest uses: more remaining devices
// first, then lower load.
func shared(t *rapid.T) pool {
	n := rapid.IntRange(2, 8).Draw(t, "gpus")
	p := pool{size: n, score: newSquare(n), rank: newSquare(n), ranks: 3, baseScore: make([]int, n), load: make([]int, n), hasMore: make([]bool, n)}
	high := rapid.IntRange(0, p.ranks-1).Draw(t, "high")
	for i := range n {
		p.hasMore[i] = rapid.Bool().Draw(t, "more")
		p.load[i] = rapid.IntRange(0, 3).Draw(t, "load")
		p.baseScore[i] = rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "base")
		for j := range i {
			rank := rapid.IntRange(0, high).Draw(t, "rank")
			p.score[i][j], p.score[j][i] = rank, rank
			p.rank[i][j], p.rank[j][i] = rank, rank
			p.maxScore = max(p.maxScore, rank)
		}
	}
	slices.SortFunc(p.hasMore, func(a, b bool) int { return worth(b) - worth(a) })
	for first := 0; first < n; {
		last := first
		for last < n && p.hasMore[last] == p.hasMore[first] {
			last++
		}
		slices.Sort(p.load[first:last])
		first = last
	}
	return p
}

func worth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// No skipped set is better than the result: neither nearer, nor leaving more whole, nor
// less used.
func TestNoSetOfSharedGPUsIsBetterThanTheOneFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := shared(t)
		need := rapid.IntRange(1, p.size-1).Draw(t, "need")
		chosen := set(0)
		for _, i := range searchExact(p, need) {
			chosen = chosen.with(i)
		}
		s := &search{pool: p}
		for i, more := range p.hasMore {
			if more {
				s.remains = s.remains.with(i)
			}
		}
		value := func(picked set) []int {
			score := 0
			for i := range p.size {
				for j := range i {
					if picked.has(i) && picked.has(j) {
						score += p.score[i][j]
					}
				}
				if picked.has(i) {
					score += p.baseScore[i]
				}
			}
			return append(append([]int{score}, s.countRemaining(picked, nil)...), -s.sumLoads(picked))
		}
		found := value(chosen)
		for picked := range set(1) << p.size {
			if bits.OnesCount16(uint16(picked)) == need {
				require.LessOrEqual(t, slices.Compare(value(picked), found), 0, "%b rather than %b", picked, chosen)
			}
		}
	})
}

// GPUs that differ only in their load are not tried in every way: 6 of 16 would take a
// tenth of a second.
func TestPartlyUsedSharedGPUsAreChosenQuickly(t *testing.T) {
	const gpus, replicas = 16, 50
	var s gpu.Snapshot
	var devices []Device
	var free []string
	for i := range gpus {
		id := gpu.UUID(fmt.Sprintf("GPU-%02d", i))
		s.Devices = append(s.Devices, gpu.Device{UUID: id, Index: i, NUMANode: -1})
		for j := range i {
			lanes := 4
			if i+j == 1 {
				lanes = 3 // so that quads differ
			}
			s.Links = append(s.Links, gpu.Link{A: s.Devices[j].UUID, B: id, Kind: gpu.LinkNVLink, Lanes: lanes})
		}
		for r := range replicas {
			d := Device{ID: fmt.Sprintf("%s::%d", id, r), GPU: id}
			devices = append(devices, d)
			if r >= i {
				free = append(free, d.ID)
			}
		}
	}
	c := New(NewTopology(s), devices, Options{})
	for size := 1; size < gpus; size++ {
		quickest := time.Hour
		for range 10 {
			start := time.Now()
			_, err := c.Prefer(free, nil, size)
			require.NoError(t, err)
			quickest = min(quickest, time.Since(start))
		}
		require.Less(t, quickest, 10*time.Millisecond, "%d of %d", size, gpus)
	}
}
