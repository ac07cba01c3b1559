package prefer

import "slices"

// maxExact is the largest number of GPUs searched exactly: 12,870 sets in the worst
// case, 8 of 16.
const maxExact = 16

// set is a set of positions in a pool, one bit each.
type set uint16

func (s set) has(i int) bool      { return s>>i&1 == 1 }
func (s set) with(i int) set      { return s | 1<<i }
func (s set) contains(o set) bool { return s&o == o }

// search is an exhaustive search: it tries every set that can be the best. Of GPUs that are
// equally near to all others it tries only the first ones, so that a node with NVSwitch has only a
// handful of sets.
type search struct {
	pool
	gain    [maxExact + 1][maxExact]int // by number of picked GPUs: score of each GPU with those and the container's
	twin    []int                       // of each GPU, the last one before it that is equally near to all others; -1: none
	need    int                         // number of GPUs to choose
	remains set                         // GPUs with more than one free device: they remain even if picked
	quads   []quad
	found   bool // best and value are set
	best    set
	value   setValue
	buffer  []int // memory for the next setValue.remaining
}

// setValue rates a set. remaining and load are computed only between sets of equal score.
type setValue struct {
	score     int
	remaining []int // as countRemaining returns it
	load      int   // sum over the set
}

// searchExact returns the best set of need GPUs: the one with the highest score. Among equals it
// is the one that leaves the most quads and pairs of near GPUs to others, then the one with the
// lowest load, then the first.
func searchExact(p pool, need int) []int {
	s := &search{pool: p, need: need, twin: make([]int, p.size)}
	copy(s.gain[0][:], p.baseScore)
	for i, more := range p.hasMore {
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
	s.extendSet(0, 0, 0, 0)
	var chosen []int
	for i := range p.size {
		if s.best.has(i) {
			chosen = append(chosen, i)
		}
	}
	return chosen
}

// equallyNear reports whether two GPUs are equally near to every other GPU and to those that the
// container has. Then it is enough to try the first of the two.
func (s *search) equallyNear(i, j int) bool {
	if s.baseScore[i] != s.baseScore[j] {
		return false
	}
	for k := range s.size {
		if k != i && k != j && s.score[i][k] != s.score[j][k] {
			return false
		}
	}
	return true
}

// extendSet extends the picked set in every way by positions not before from, and compares each
// full set with the best. depth is the number of picked GPUs, score their score.
func (s *search) extendSet(from, depth, score int, picked set) {
	if depth == s.need {
		s.compareWithBest(picked, score)
		return
	}
	more := s.need - depth - 1
	gain, next := &s.gain[depth], &s.gain[depth+1]
	for i := from; i < s.size-more; i++ {
		if t := s.twin[i]; t >= 0 && !picked.has(t) {
			continue
		}
		row, reach := s.score[i], 0
		for j := i + 1; j < s.size; j++ {
			next[j] = gain[j] + row[j]
			reach = max(reach, next[j])
		}
		// Skip it if even the highest scores for the remaining picks cannot reach the best score.
		if bound := score + gain[i] + more*reach + more*(more-1)/2*s.maxScore; s.found && bound < s.value.score {
			continue
		}
		s.extendSet(i+1, depth+1, score+gain[i], picked.with(i))
	}
}

// compareWithBest makes a set the best one if it is better than the best so far.
func (s *search) compareWithBest(picked set, score int) {
	switch {
	case s.found && score < s.value.score:
		return
	case !s.found || score > s.value.score:
		s.found, s.best, s.value.score, s.value.remaining = true, picked, score, s.value.remaining[:0]
		return
	}
	if len(s.value.remaining) == 0 {
		s.value.remaining, s.value.load = s.countRemaining(s.best, s.value.remaining), s.sumLoads(s.best)
	}
	v := setValue{score: score, remaining: s.countRemaining(picked, s.buffer), load: s.sumLoads(picked)}
	s.buffer = v.remaining
	by := slices.Compare(v.remaining, s.value.remaining)
	if by > 0 || by == 0 && v.load < s.value.load {
		s.best, s.value, s.buffer = picked, v, s.value.remaining
	}
}

// sumLoads returns the load of the GPUs of a set.
func (s *search) sumLoads(picked set) int {
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

// countRemaining counts the quads, and then the pairs, of the GPUs that are not picked.
// Each has one count per rank, the highest rank first. The result is written to into if
// that has room.
func (s *search) countRemaining(picked set, into []int) []int {
	if s.quads == nil {
		s.quads = s.allQuads()
	}
	rest := s.remains | (1<<s.size-1)&^picked
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
	for i := range s.size {
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
	for a := range s.size {
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
