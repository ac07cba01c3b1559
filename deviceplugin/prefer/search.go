package prefer

import "slices"

// most is how many GPUs to choose from are searched exactly: 12,870 sets in the
// worst case, 8 of 16.
const most = 16

// set is a set of the GPUs that are searched, by position.
type set uint16

func (s set) has(i int) bool      { return s>>i&1 == 1 }
func (s set) with(i int) set      { return s | 1<<i }
func (s set) contains(o set) bool { return s&o == o }

// search tries every set that can still be the best. Of GPUs that are as near to
// all others the first are taken: behind NVSwitch that leaves a handful of sets.
type search struct {
	pool
	gain  [most + 1][most]int // by depth: the score of each with those picked so far
	twin  []int               // the last one before it that is as near to all; -1: none
	need  int
	stays set // there is more of it: picked or not, it stays behind
	quads []quad
	found bool
	best  set
	value value
	spare []int // where the next value is counted
}

// value is how good a set is. What is left behind, and how much is taken, are
// counted only where the score does not decide.
type value struct {
	score int
	rest  []int
	load  int
}

// exact returns the best set: that with the highest score, of those the one that
// leaves the most pairs and quads whole, then the one of which the least is
// taken, then the first.
func exact(p pool, need int) []int {
	s := &search{pool: p, need: need, twin: make([]int, p.n)}
	copy(s.gain[0][:], p.base)
	for i, more := range p.more {
		if more {
			s.stays = s.stays.with(i)
		}
	}
	for i := range s.twin {
		s.twin[i] = -1
		for j := range i {
			if s.asNear(i, j) {
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

// asNear says that two GPUs are as near to every other one, and to what the
// container has. Then the one that comes first in the pool is no worse to pick.
func (s *search) asNear(i, j int) bool {
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

// walk adds to the picked ones, in the order of their positions, in every way.
func (s *search) walk(from, depth, score int, picked set) {
	if depth == s.need {
		s.weigh(picked, score)
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
		// Were the rest as near as can be, would it be as good as what was found?
		if bound := score + gain[i] + more*reach + more*(more-1)/2*s.high; s.found && bound < s.value.score {
			continue
		}
		s.walk(i+1, depth+1, score+gain[i], picked.with(i))
	}
}

// weigh holds a set against the best so far.
func (s *search) weigh(picked set, score int) {
	switch {
	case s.found && score < s.value.score:
		return
	case !s.found || score > s.value.score:
		s.found, s.best, s.value.score, s.value.rest = true, picked, score, s.value.rest[:0]
		return
	}
	if len(s.value.rest) == 0 {
		s.value.rest, s.value.load = s.left(s.best, s.value.rest), s.sum(s.best)
	}
	v := value{score: score, rest: s.left(picked, s.spare), load: s.sum(picked)}
	s.spare = v.rest
	by := slices.Compare(v.rest, s.value.rest)
	if by > 0 || by == 0 && v.load < s.value.load {
		s.best, s.value, s.spare = picked, v, s.value.rest
	}
}

// sum is how much is taken of the GPUs of a set.
func (s *search) sum(picked set) int {
	sum := 0
	for i, load := range s.load {
		if picked.has(i) {
			sum += load
		}
	}
	return sum
}

// quad is four GPUs that are as near to each other as their weakest link.
type quad struct {
	gpus set
	rank int
}

// left counts what stays behind: the quads by rank, best first, then the pairs.
// What is broken already has fewer of them to lose.
func (s *search) left(picked set, into []int) []int {
	if s.quads == nil {
		s.quads = s.allQuads()
	}
	rest := s.stays | (1<<s.n-1)&^picked
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

// allQuads lists the quads that are nearer than GPUs of the node are anyway.
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
