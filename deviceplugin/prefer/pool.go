package prefer

// pool holds the GPUs of one search by their position, 0 to size-1, and how near each two are.
type pool struct {
	size      int
	score     [][]int // of each two GPUs
	rank      [][]int // rank of each score among those of the node
	ranks     int     // number of different ranks
	maxScore  int     // the highest score
	baseScore []int   // sum of each GPU's scores with the GPUs that the container has
	load      []int   // number of used devices of each GPU
	hasMore   []bool  // whether more than one device of each GPU is free
}

// newPool returns the pool of the candidate GPUs. picked are the GPUs that the container has.
func (q *request) newPool(picked, candidates []int) pool {
	n := len(candidates)
	p := pool{
		size: n, score: newSquare(n), rank: newSquare(n), ranks: q.topology.ranks,
		baseScore: make([]int, n), load: make([]int, n), hasMore: make([]bool, n),
	}
	for i, g := range candidates {
		position := q.gpus[g].position
		for j, h := range candidates {
			p.score[i][j] = q.topology.score[position][q.gpus[h].position]
			p.rank[i][j] = q.topology.rank[position][q.gpus[h].position]
			p.maxScore = max(p.maxScore, p.score[i][j])
		}
		for _, h := range picked {
			p.baseScore[i] += q.topology.score[position][q.gpus[h].position]
		}
		p.load[i], p.hasMore[i] = q.used[g], q.gpus[g].total-q.used[g] > 1
	}
	return p
}
