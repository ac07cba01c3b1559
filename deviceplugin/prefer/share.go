package prefer

// share picks need devices of the known GPUs, one at a time, each from the GPU that the
// policy prefers.
func (q *request) share(need int) {
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

// before reports whether the policy prefers GPU a to GPU b. If it has no preference,
// the one nearer to the picked GPUs comes first.
func (q *request) before(a, b int) bool {
	taken, picks := q.used[a]-q.used[b], q.picks[a]-q.picks[b]
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
	return q.nearness(a) > q.nearness(b)
}

// nearness returns how near a GPU is to the picked ones.
func (q *request) nearness(g int) int {
	sum := 0
	for other, picks := range q.picks[:q.known] {
		if picks > 0 {
			sum += q.topology.score[q.gpus[g].position][q.gpus[other].position]
		}
	}
	return sum
}
