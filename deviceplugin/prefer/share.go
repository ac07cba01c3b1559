package prefer

// pickShared picks need devices of the known GPUs, one at a time, each from the GPU that the policy
// Packed, Distributed or Spread prefers.
func (q *request) pickShared(need int) {
	for range need {
		best := -1
		for g := range q.known {
			if q.stock[g] > 0 && (best < 0 || q.isPreferred(g, best)) {
				best = g
			}
		}
		q.pick(best)
	}
}

// isPreferred reports whether the policy prefers GPU a to GPU b. If it has no preference,
// the one nearer to the picked GPUs comes first.
func (q *request) isPreferred(a, b int) bool {
	usedMore, pickedMore := q.used[a]-q.used[b], q.picks[a]-q.picks[b]
	var order [2]int
	switch q.options.Policy {
	case Packed:
		order = [2]int{-usedMore, pickedMore}
	case Spread:
		order = [2]int{pickedMore, usedMore}
	default:
		order = [2]int{usedMore, pickedMore}
	}
	for _, by := range order {
		if by != 0 {
			return by < 0
		}
	}
	return q.sumScores(a) > q.sumScores(b)
}

// sumScores returns the sum of a GPU's scores with the picked ones.
func (q *request) sumScores(g int) int {
	sum := 0
	for other, picks := range q.picks[:q.known] {
		if picks > 0 {
			sum += q.topology.score[q.gpus[g].position][q.gpus[other].position]
		}
	}
	return sum
}
