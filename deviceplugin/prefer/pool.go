package prefer

// pool holds the GPUs to choose from, by position, and their scores with the GPUs that
// the container has.
type pool struct {
	n     int
	score [][]int // of each two
	rank  [][]int // of their score among those of the node
	ranks int     // number of ranks
	high  int     // the highest score
	base  []int   // score of each with the container's GPUs
	load  []int   // how much of each is used
	more  []bool  // more than one device of it is free
}

// pool returns the pool of the candidates, given the GPUs that are picked.
func (q *request) pool(picked, candidates []int) pool {
	n := len(candidates)
	p := pool{
		n: n, score: square(n), rank: square(n), ranks: q.topology.ranks,
		base: make([]int, n), load: make([]int, n), more: make([]bool, n),
	}
	for i, g := range candidates {
		position := q.gpus[g].position
		for j, h := range candidates {
			p.score[i][j] = q.topology.score[position][q.gpus[h].position]
			p.rank[i][j] = q.topology.rank[position][q.gpus[h].position]
			p.high = max(p.high, p.score[i][j])
		}
		for _, h := range picked {
			p.base[i] += q.topology.score[position][q.gpus[h].position]
		}
		p.load[i], p.more[i] = q.used[g], q.gpus[g].total-q.used[g] > 1
	}
	return p
}
