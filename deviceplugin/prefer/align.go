package prefer

import "slices"

// align picks need devices of the known GPUs so that the GPUs are near to each other:
// one of each while that is enough, then a second of each, and so on. Only the last
// round does not need every GPU, so only that one is searched.
func (q *request) align(need int) {
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
			candidates = q.nearest(picked, candidates, need)
		}
		for _, g := range candidates {
			q.pick(g)
		}
		need -= len(candidates)
	}
}

// nearest chooses need of the candidates, given the GPUs that the container has.
func (q *request) nearest(picked, candidates []int, need int) []int {
	slices.SortStableFunc(candidates, q.order)
	p := q.pool(picked, candidates)
	positions := exact
	if p.n > maxExact {
		positions = grow
	}
	var chosen []int
	for _, i := range positions(p, need) {
		chosen = append(chosen, candidates[i])
	}
	return chosen
}

// order compares two GPUs that are equally near. The better one has devices that remain
// after a pick, or is less used.
func (q *request) order(a, b int) int {
	if more := q.remains(a) - q.remains(b); more != 0 {
		return -more
	}
	return q.used[a] - q.used[b]
}

// remains is 1 for a GPU that has devices left after a pick.
func (q *request) remains(g int) int {
	return min(q.gpus[g].total-q.used[g]-1, 1)
}
