package prefer

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
