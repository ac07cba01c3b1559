package prefer

import (
	"slices"
	"sync"
)

// Rate says how near to each other the GPUs behind these devices are, as a share
// of the best that there would be for so many of the resource's GPUs were all of
// them free: 1 is as good as can be. ok is false where nearness is not what the
// policy looks for, or there is nothing to compare: fewer than two GPUs that are
// known, or none that is near to another.
//
// The best for a number of GPUs is searched for once for a topology.
func (c *Chooser) Rate(ids []string) (ratio float64, ok bool) {
	var gpus []int
	for _, id := range ids {
		if d, known := c.at[id]; known && c.devices[d].gpu < c.known {
			gpus = append(gpus, c.devices[d].gpu)
		}
	}
	slices.Sort(gpus)
	gpus = slices.Compact(gpus)
	if c.options.Policy != Aligned || len(gpus) < 2 {
		return 0, false
	}
	best := c.topology.bests.of(c, len(gpus))
	if best == 0 {
		return 0, false
	}
	// Of very many GPUs the best is not searched exactly (see grown).
	return min(float64(c.sum(gpus))/float64(best), 1), true
}

// sum is the score of a set of known GPUs.
func (c *Chooser) sum(gpus []int) int {
	sum := 0
	for n, i := range gpus {
		for _, j := range gpus[:n] {
			sum += c.topology.score[c.gpus[i].place][c.gpus[j].place]
		}
	}
	return sum
}

// bests remembers the best score of some of these GPUs.
type bests struct {
	mu    sync.Mutex
	known map[pick]int
}

// pick is so many of the GPUs at these places.
type pick struct {
	places string // a place is a rune
	number int
}

func (b *bests) of(c *Chooser, number int) int {
	places := make([]rune, c.known)
	for g := range places {
		places[g] = rune(c.gpus[g].place)
	}
	key := pick{string(places), number}
	b.mu.Lock()
	defer b.mu.Unlock()
	best, known := b.known[key]
	if !known {
		best = c.best(number)
		if b.known == nil {
			b.known = map[pick]int{}
		}
		b.known[key] = best
	}
	return best
}

// best is the highest score of so many of the known GPUs.
func (c *Chooser) best(number int) int {
	all := make([]int, c.known)
	for g := range all {
		all[g] = g
	}
	if number < len(all) {
		q := c.read(nil, nil)
		all = q.nearest(nil, all, number)
	}
	return c.sum(all)
}
