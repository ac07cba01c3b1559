package prefer

import "slices"

// pickAligned picks need devices of the known GPUs so that the GPUs are near to each other: one of
// each GPU while that is enough, then a second of each, and so on. Every round but the last takes
// all GPUs, so only the last needs a search.
func (q *request) pickAligned(need int) {
	for round := 1; need > 0; round++ {
		var picked, candidates []int
		for g := range q.known {
			switch {
			case q.picks[g] >= round:
				picked = append(picked, g)
			case q.stock[g] > 0:
				candidates = append(candidates, g)
			}
		}
		if len(candidates) > need {
			candidates = q.chooseNearest(picked, candidates, need)
		}
		for _, g := range candidates {
			q.pick(g)
		}
		need -= len(candidates)
	}
}

// chooseNearest returns need of the candidate GPUs, near to each other and to the GPUs that are
// picked already. It sorts candidates.
func (q *request) chooseNearest(picked, candidates []int, need int) []int {
	slices.SortStableFunc(candidates, q.compareEquallyNear)
	p := q.newPool(picked, candidates)
	positions := searchExact
	if p.size > maxExact {
		positions = searchGreedy
	}
	var chosen []int
	for _, i := range positions(p, need) {
		chosen = append(chosen, candidates[i])
	}
	return chosen
}

// compareEquallyNear orders two GPUs that are equally near. The one with devices left after a pick
// comes first, then the less used one.
func (q *request) compareEquallyNear(a, b int) int {
	if more := q.hasRemaining(a) - q.hasRemaining(b); more != 0 {
		return -more
	}
	return q.used[a] - q.used[b]
}

// hasRemaining returns 1 for a GPU that has devices left after a pick, else 0 or less.
func (q *request) hasRemaining(g int) int {
	return min(q.gpus[g].total-q.used[g]-1, 1)
}
