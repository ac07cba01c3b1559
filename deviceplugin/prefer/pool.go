package prefer

// pool is the GPUs that a number is to be chosen from, by position, and those
// that the container has already.
type pool struct {
	n     int
	score [][]int // of each two
	rank  [][]int // of their score among those of the node
	ranks int     // so many of them
	high  int     // the highest score
	base  []int   // score of each with what the container has
	load  []int   // how much of each is taken
	more  []bool  // there is more than one device of it free
}

// pool lays out the GPUs that may be picked for those that the container has.
func (q *question) pool(have, may []int) pool {
	n := len(may)
	p := pool{
		n: n, score: square(n), rank: square(n), ranks: q.topology.ranks,
		base: make([]int, n), load: make([]int, n), more: make([]bool, n),
	}
	for i, g := range may {
		place := q.gpus[g].place
		for j, h := range may {
			p.score[i][j] = q.topology.score[place][q.gpus[h].place]
			p.rank[i][j] = q.topology.rank[place][q.gpus[h].place]
			p.high = max(p.high, p.score[i][j])
		}
		for _, h := range have {
			p.base[i] += q.topology.score[place][q.gpus[h].place]
		}
		p.load[i], p.more[i] = q.taken[g], q.gpus[g].total-q.taken[g] > 1
	}
	return p
}
