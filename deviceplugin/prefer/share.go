package prefer

// share picks need devices of the known GPUs, one at a time, each of the GPU
// that the policy puts first.
func (q *question) share(need int) {
	for range need {
		best := -1
		for g := range q.known {
			if q.stock[g] > 0 && (best < 0 || q.before(g, best)) {
				best = g
			}
		}
		q.pick(best)
	}
}

// before says that the policy takes of GPU a rather than of GPU b. Where it
// does not care, the one that is nearer to what is picked comes first.
func (q *question) before(a, b int) bool {
	taken, picks := q.taken[a]-q.taken[b], q.picks[a]-q.picks[b]
	var order [2]int
	switch q.options.Policy {
	case Packed:
		order = [2]int{-taken, picks}
	case Spread:
		order = [2]int{picks, taken}
	default:
		order = [2]int{taken, picks}
	}
	for _, by := range order {
		if by != 0 {
			return by < 0
		}
	}
	return q.near(a) > q.near(b)
}

// near is how near a GPU is to those that are picked.
func (q *question) near(g int) int {
	sum := 0
	for other, picks := range q.picks[:q.known] {
		if picks > 0 {
			sum += q.topology.score[q.gpus[g].place][q.gpus[other].place]
		}
	}
	return sum
}
