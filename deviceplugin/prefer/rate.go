package prefer

import (
	"slices"
	"sync"
)

// Rate returns how near to each other the GPUs behind these devices are, relative to
// the best choice of as many of the resource's GPUs if all were free; 1 is the best. ok
// is false if the policy is not about nearness, or if there is nothing to compare:
// fewer than two known GPUs, or none that is near to another.
//
// The best score for a number of GPUs is searched once for each topology.
func (c *Chooser) Rate(ids []string) (ratio float64, ok bool) {
	var gpus []int
	for _, id := range ids {
		if d, known := c.indexOf[id]; known && c.devices[d].gpu < c.known {
			gpus = append(gpus, c.devices[d].gpu)
		}
	}
	slices.Sort(gpus)
	gpus = slices.Compact(gpus)
	if c.options.Policy != Aligned || len(gpus) < 2 {
		return 0, false
	}
	best := c.topology.bestScores.lookUpBest(c, len(gpus))
	if best == 0 {
		return 0, false
	}
	// For very many GPUs the best score is not exact (see searchGreedy).
	return min(float64(c.sumScores(gpus))/float64(best), 1), true
}

// sumScores returns the score of a set of known GPUs.
func (c *Chooser) sumScores(gpus []int) int {
	sum := 0
	for n, i := range gpus {
		for _, j := range gpus[:n] {
			sum += c.topology.score[c.gpus[i].position][c.gpus[j].position]
		}
	}
	return sum
}

// bestScores caches the best score for a number of GPUs.
type bestScores struct {
	mu    sync.Mutex
	known map[bestKey]int // found so far
}

// bestKey identifies a search: how many GPUs to choose from those at some positions.
type bestKey struct {
	positions string // of the topology, one rune each
	number    int
}

// lookUpBest returns the best score of a number of c's GPUs, searching it the first time.
func (b *bestScores) lookUpBest(c *Chooser, number int) int {
	positions := make([]rune, c.known)
	for g := range positions {
		positions[g] = rune(c.gpus[g].position)
	}
	key := bestKey{string(positions), number}
	b.mu.Lock()
	defer b.mu.Unlock()
	best, known := b.known[key]
	if !known {
		best = c.bestScore(number)
		if b.known == nil {
			b.known = map[bestKey]int{}
		}
		b.known[key] = best
	}
	return best
}

// bestScore searches the highest score of a number of the known GPUs.
func (c *Chooser) bestScore(number int) int {
	all := make([]int, c.known)
	for g := range all {
		all[g] = g
	}
	if number < len(all) {
		q := c.newRequest(nil, nil)
		all = q.chooseNearest(nil, all, number)
	}
	return c.sumScores(all)
}
