package prefer

// greedySet is a set of GPUs of a pool that is improved step by step.
type greedySet struct {
	*pool
	isIn       []bool // by position in the pool
	gain       []int  // score of each GPU with the set and the container's GPUs
	totalScore []int  // score of each GPU with the whole pool
	score      int
	cutScore   int // sum of totalScore over the set: the higher, the more links to the remaining GPUs are lost
	load       int
}

// searchGreedy returns a good set of need GPUs, which need not be the best. It is for pools with
// too many GPUs to try every set. From each GPU it grows a set, always adding the GPU nearest to
// it. Then it swaps a GPU of the set for one outside as long as that is an improvement. It returns
// the best of these sets. If no two links are equal, 32 GPUs take one or two milliseconds, 64 a
// tenth of a second.
func searchGreedy(p pool, need int) []int {
	totals := make([]int, p.size)
	for i, row := range p.score {
		for _, score := range row {
			totals[i] += score
		}
	}
	var best *greedySet
	for seed := range p.size {
		g := &greedySet{pool: &p, isIn: make([]bool, p.size), gain: append([]int(nil), p.baseScore...), totalScore: totals}
		g.add(seed)
		for range need - 1 {
			next := -1
			for i, isIn := range g.isIn {
				if !isIn && (next < 0 || g.isBetterToAdd(i, next)) {
					next = i
				}
			}
			g.add(next)
		}
		for g.swapOnce() {
		}
		if best == nil || g.isBetterThan(best) {
			best = g
		}
	}
	var chosen []int
	for i, isIn := range best.isIn {
		if isIn {
			chosen = append(chosen, i)
		}
	}
	return chosen
}

func (g *greedySet) add(i int)    { g.move(i, true, 1) }
func (g *greedySet) remove(i int) { g.move(i, false, -1) }

// move adds GPU i to the set (isIn, sign 1) or removes it (not isIn, sign -1).
func (g *greedySet) move(i int, in bool, sign int) {
	g.isIn[i] = in
	g.score += sign * g.gain[i]
	g.cutScore += sign * g.totalScore[i]
	g.load += sign * g.pool.load[i]
	for j, score := range g.pool.score[i] {
		g.gain[j] += sign * score
	}
}

// isBetterToAdd reports whether adding i is better than adding j.
func (g *greedySet) isBetterToAdd(i, j int) bool {
	return isLess([3]int{-g.gain[i], g.totalScore[i], g.pool.load[i]}, [3]int{-g.gain[j], g.totalScore[j], g.pool.load[j]})
}

// isBetterThan reports whether the set is better than o.
func (g *greedySet) isBetterThan(o *greedySet) bool {
	return isLess([3]int{-g.score, g.cutScore, g.load}, [3]int{-o.score, o.cutScore, o.load})
}

// swapOnce does the first swap that is an improvement. It reports false if there is none.
func (g *greedySet) swapOnce() bool {
	for out, in := range g.isIn {
		if !in {
			continue
		}
		g.remove(out)
		for i, in := range g.isIn {
			if !in && i != out && g.isBetterToAdd(i, out) {
				g.add(i)
				return true
			}
		}
		g.add(out)
	}
	return false
}

// isLess compares a and b item by item.
func isLess(a, b [3]int) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}
