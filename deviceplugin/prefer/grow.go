package prefer

// growth is a set that is improved step by step, for pools with too many GPUs to try
// every set.
type growth struct {
	*pool
	in    []bool
	gain  []int // score of each with the set and what the container has
	all   []int // score of each with the whole pool
	score int
	cut   int // sum of all: the higher, the more links to remaining GPUs are cut
	load  int
}

// grow returns a good set, which need not be the best. It grows one from each GPU,
// always adding the GPU nearest to the set. Then it swaps a GPU of the set for one
// outside while that is an improvement, so it terminates. It returns the best of these
// sets. 32 GPUs take a millisecond or two where no link is like another, 64 a tenth of
// a second.
func grow(p pool, need int) []int {
	all := make([]int, p.n)
	for i, row := range p.score {
		for _, score := range row {
			all[i] += score
		}
	}
	var best *growth
	for seed := range p.n {
		g := &growth{pool: &p, in: make([]bool, p.n), gain: append([]int(nil), p.base...), all: all}
		g.add(seed)
		for range need - 1 {
			next := -1
			for i, in := range g.in {
				if !in && (next < 0 || g.betterToAdd(i, next)) {
					next = i
				}
			}
			g.add(next)
		}
		for g.swap() {
		}
		if best == nil || g.before(best) {
			best = g
		}
	}
	var chosen []int
	for i, in := range best.in {
		if in {
			chosen = append(chosen, i)
		}
	}
	return chosen
}

func (g *growth) add(i int)    { g.move(i, true, 1) }
func (g *growth) remove(i int) { g.move(i, false, -1) }

func (g *growth) move(i int, in bool, sign int) {
	g.in[i] = in
	g.score += sign * g.gain[i]
	g.cut += sign * g.all[i]
	g.load += sign * g.pool.load[i]
	for j, score := range g.pool.score[i] {
		g.gain[j] += sign * score
	}
}

// betterToAdd reports whether adding i is better than adding j.
func (g *growth) betterToAdd(i, j int) bool {
	return less([3]int{-g.gain[i], g.all[i], g.pool.load[i]}, [3]int{-g.gain[j], g.all[j], g.pool.load[j]})
}

func (g *growth) before(o *growth) bool {
	return less([3]int{-g.score, g.cut, g.load}, [3]int{-o.score, o.cut, o.load})
}

// swap makes the first swap that is an improvement, and reports whether there was one.
func (g *growth) swap() bool {
	for out, in := range g.in {
		if !in {
			continue
		}
		g.remove(out)
		for i, in := range g.in {
			if !in && i != out && g.betterToAdd(i, out) {
				g.add(i)
				return true
			}
		}
		g.add(out)
	}
	return false
}

func less(a, b [3]int) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}
