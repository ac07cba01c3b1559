package prefer

import "slices"

// maxExact is the largest number of GPUs searched exactly: 12,870 sets in the worst
// case, 8 of 16.
const maxExact = 16

// set is a set of positions in the pool.
type set uint16

func (s set) has(i int) bool      { return s>>i&1 == 1 }
func (s set) with(i int) set      { return s | 1<<i }
func (s set) contains(o set) bool { return s&o == o }

// search tries every set that can still be the best. Of GPUs that are equally near to
// all others, only the first are tried: behind NVSwitch that leaves a handful of sets.
type search struct {
	pool
	gain    [maxExact + 1][maxExact]int // by depth: score of each with those picked so far
	twin    []int                       // the last earlier GPU that is equally near to all; -1: none
	need    int
	remains set // GPUs with more devices: they remain even if picked
	quads   []quad
	found   bool
	best    set
	value   value
	buffer  []int // buffer for the next value
}

// value rates a set. rest and load are computed only where the score does not decide.
type value struct {
	score int
	rest  []int
	load  int
}

// exact returns the best set: the one with the highest score, among equals the one that
// leaves the most pairs and quads whole, then the one with the lowest load, then the
// first.
func exact(p pool, need int) []int {
	s := &search{pool: p, need: need, twin: make([]int, p.n)}
	copy(s.gain[0][:], p.base)
	for i, more := range p.more {
		if more {
			s.remains = s.remains.with(i)
		}
	}
	for i := range s.twin {
		s.twin[i] = -1
		for j := range i {
			if s.equallyNear(i, j) {
				s.twin[i] = j
			}
		}
	}
	s.walk(0, 0, 0, 0)
	var chosen []int
	for i := range p.n {
		if s.best.has(i) {
			chosen = append(chosen, i)
		}
	}
	return chosen
}

// equallyNear reports whether two GPUs are equally near to every other one and to those
// of the container. Then the one that comes first in the pool is no worse to pick.
func (s *search) equallyNear(i, j int) bool {
	if s.base[i] != s.base[j] {
		return false
	}
	for k := range s.n {
		if k != i && k != j && s.score[i][k] != s.score[j][k] {
			return false
		}
	}
	return true
}

// walk extends the picked set in every way, in the order of positions.
func (s *search) walk(from, depth, score int, picked set) {
	if depth == s.need {
		s.compare(picked, score)
		return
	}
	more := s.need - depth - 1
	gain, next := &s.gain[depth], &s.gain[depth+1]
	for i := from; i < s.n-more; i++ {
		if t := s.twin[i]; t >= 0 && !picked.has(t) {
			continue
		}
		row, reach := s.score[i], 0
		for j := i + 1; j < s.n; j++ {
			next[j] = gain[j] + row[j]
			reach = max(reach, next[j])
		}
		// Skip it if even the nearest possible rest cannot reach the best score.
		if bound := score + gain[i] + more*reach + more*(more-1)/2*s.high; s.found && bound < s.value.score {
			continue
		}
		s.walk(i+1, depth+1, score+gain[i], picked.with(i))
	}
}

// compare compares a set with the best so far and keeps the better one.
func (s *search) compare(picked set, score int) {
	switch {
	case s.found && score < s.value.score:
		return
	case !s.found || score > s.value.score:
		s.found, s.best, s.value.score, s.value.rest = true, picked, score, s.value.rest[:0]
		return
	}
	if len(s.value.rest) == 0 {
		s.value.rest, s.value.load = s.countRemaining(s.best, s.value.rest), s.sum(s.best)
	}
	v := value{score: score, rest: s.countRemaining(picked, s.buffer), load: s.sum(picked)}
	s.buffer = v.rest
	by := slices.Compare(v.rest, s.value.rest)
	if by > 0 || by == 0 && v.load < s.value.load {
		s.best, s.value, s.buffer = picked, v, s.value.rest
	}
}

// sum returns the load of the GPUs of a set.
func (s *search) sum(picked set) int {
	sum := 0
	for i, load := range s.load {
		if picked.has(i) {
			sum += load
		}
	}
	return sum
}

// quad is four GPUs and the rank of their weakest link.
type quad struct {
	gpus set
	rank int
}

// countRemaining counts the quads that remain by rank, best first, then the pairs. A
// broken group has fewer of them to lose.
func (s *search) countRemaining(picked set, into []int) []int {
	if s.quads == nil {
		s.quads = s.allQuads()
	}
	rest := s.remains | (1<<s.n-1)&^picked
	if cap(into) == 0 {
		into = make([]int, 2*s.ranks)
	}
	into = into[:2*s.ranks]
	clear(into)
	best := s.ranks - 1
	for _, q := range s.quads {
		if rest.contains(q.gpus) {
			into[best-q.rank]++
		}
	}
	pairs := into[s.ranks:]
	for i := range s.n {
		for j := range i {
			if rest.has(i) && rest.has(j) {
				pairs[best-s.rank[i][j]]++
			}
		}
	}
	return into
}

// allQuads lists the quads that are nearer than the lowest rank.
func (s *search) allQuads() []quad {
	quads, r := []quad{}, s.rank
	for a := range s.n {
		for b := range a {
			for c := range b {
				for d := range c {
					if rank := min(r[a][b], r[a][c], r[a][d], r[b][c], r[b][d], r[c][d]); rank > 0 {
						quads = append(quads, quad{set(0).with(a).with(b).with(c).with(d), rank})
					}
				}
			}
		}
	}
	return quads
}
