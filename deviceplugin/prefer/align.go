package prefer

import "slices"

// align picks need devices of the known GPUs so that the GPUs are near to each
// other: one of each while that is enough, then the second of each, and so on.
// Only of the last round not every GPU is needed: that one is searched.
func (q *question) align(need int) {
	for round := 1; need > 0; round++ {
		var have, may []int
		for g := range q.known {
			switch {
			case q.picks[g] >= round:
				have = append(have, g)
			case q.stock[g] > 0:
				may = append(may, g)
			}
		}
		if len(may) > need {
			may = q.nearest(have, may, need)
		}
		for _, g := range may {
			q.pick(g)
		}
		need -= len(may)
	}
}

// nearest chooses need of the GPUs that may be picked, given those that the
// container has.
func (q *question) nearest(have, may []int, need int) []int {
	slices.SortStableFunc(may, q.order)
	p := q.pool(have, may)
	positions := exact
	if p.n > most {
		positions = grown
	}
	var chosen []int
	for _, i := range positions(p, need) {
		chosen = append(chosen, may[i])
	}
	return chosen
}

// order puts that GPU first which is the better one to pick where both are as
// near: more of it stays behind, or less of it is taken.
func (q *question) order(a, b int) int {
	if more := q.stays(a) - q.stays(b); more != 0 {
		return -more
	}
	return q.taken[a] - q.taken[b]
}

// stays is 1 for a GPU that stays behind though it is picked: there is more of it.
func (q *question) stays(g int) int {
	return min(q.gpus[g].total-q.taken[g]-1, 1)
}
