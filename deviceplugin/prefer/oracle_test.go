package prefer_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// oracle returns how many of the requests for 2 and 4 GPUs could get fully linked GPUs
// if the whole trace were known beforehand.
//
// For up to 8 GPUs the number is exact: the best of all ways to place all jobs. For
// more GPUs there are too many ways; then it is an upper bound, the number of requests
// that an empty node could serve.
func (m links) oracle(events []event) int {
	if len(m) <= 8 {
		return m.clairvoyant(events)
	}
	possible := map[int]bool{2: m.clique(2, nil), 4: m.clique(4, nil)}
	most := 0
	for _, e := range events {
		if e.isCounted() && possible[e.size] {
			most++
		}
	}
	return most
}

// clique reports whether size GPUs, including those of begun, are fully linked.
func (m links) clique(size int, begun []int) bool {
	if len(begun) == size {
		return true
	}
	for i := range m {
		if (len(begun) == 0 || i > begun[len(begun)-1]) && m.fullyLinked(append(slices.Clone(begun), i)) && m.clique(size, append(slices.Clone(begun), i)) {
			return true
		}
	}
	return false
}

// placement is the job of each GPU; 0: none. Job numbers are reused as soon as jobs
// end, so there are at most 8.
type placement [8]uint8

// clairvoyant tries all placements, step by step. Of placements that differ only by a
// symmetry of the node, it keeps one with the most requests served so far.
func (m links) clairvoyant(events []event) int {
	canonical := m.symmetry()
	reached := map[placement]int{{}: 0}
	number := map[int]uint8{}
	unused := []uint8{8, 7, 6, 5, 4, 3, 2, 1}
	for _, e := range events {
		next := map[placement]int{}
		keep := func(p placement, served int) {
			p = canonical(p)
			if most, ok := next[p]; !ok || served > most {
				next[p] = served
			}
		}
		if e.size == 0 {
			job := number[e.job]
			delete(number, e.job)
			unused = append(unused, job)
			for p, served := range reached {
				for i := range p {
					if p[i] == job {
						p[i] = 0
					}
				}
				keep(p, served)
			}
		} else {
			job := unused[len(unused)-1]
			unused = unused[:len(unused)-1]
			number[e.job] = job
			for p, served := range reached {
				m.place(p, job, e.size, nil, func(p placement, set []int) {
					if e.isCounted() && m.fullyLinked(set) {
						keep(p, served+1)
					} else {
						keep(p, served)
					}
				})
			}
		}
		reached = next
	}
	most := 0
	for _, served := range reached {
		most = max(most, served)
	}
	return most
}

// place gives a job that many free GPUs, in every way.
func (m links) place(p placement, job uint8, size int, set []int, each func(placement, []int)) {
	if len(set) == size {
		each(p, set)
		return
	}
	from := 0
	if len(set) > 0 {
		from = set[len(set)-1] + 1
	}
	for i := from; i < len(m); i++ {
		if p[i] == 0 {
			with := p
			with[i] = job
			m.place(with, job, size, append(set, i), each)
		}
	}
}

// symmetry returns a function that is the same for placements that a symmetry
// of the links turns into each other.
func (m links) symmetry() func(placement) placement {
	if size := m.block(); size > 0 {
		return func(p placement) placement { return sorted(p, size, len(m)) }
	}
	return m.smallest()
}

// smallest maps a placement to the first of those equivalent to it.
func (m links) smallest() func(placement) placement {
	permutations := m.permutations(nil)
	return func(p placement) placement {
		first := p
		for _, turn := range permutations {
			var q placement
			for i, from := range turn {
				q[i] = p[from]
			}
			if slices.Compare(q[:], first[:]) < 0 {
				first = q
			}
		}
		return first
	}
}

// block is the size of the groups if the node consists of equal ones, of
// neighbours, fully linked within and not at all between them; else 0.
func (m links) block() int {
	size := 1
	for size < len(m) && m[0][size] {
		size++
	}
	for i := range m {
		for j := range m {
			if i != j && m[i][j] != (i/size == j/size) {
				return 0
			}
		}
	}
	return size
}

// sorted sorts a placement within its groups, and then the groups.
func sorted(p placement, size, n int) placement {
	for g := 0; g < n; g += size {
		slices.Sort(p[g : g+size])
		for h := g; h > 0 && slices.Compare(p[h:h+size], p[h-size:h]) < 0; h -= size {
			for i := h; i < h+size; i++ {
				p[i], p[i-size] = p[i-size], p[i]
			}
		}
	}
	return p
}

// permutations lists the permutations that preserve the links and start with begun.
func (m links) permutations(begun []int) [][]int {
	if len(begun) == len(m) {
		return [][]int{slices.Clone(begun)}
	}
	var all [][]int
	for i := range m {
		fits := !slices.Contains(begun, i)
		for j, from := range begun {
			fits = fits && m[from][i] == m[j][len(begun)]
		}
		if fits {
			all = append(all, m.permutations(append(begun, i))...)
		}
	}
	return all
}

func TestOracle(t *testing.T) {
	pairs := linked(wired(8, bridged(2, 4)))
	quads := linked(wired(8, bridged(4, 6)))
	cube := linked(wired(8, meshed))
	require.Len(t, cube.permutations(nil), 48)
	require.Equal(t, []int{2, 4, 0}, []int{pairs.block(), quads.block(), cube.block()})

	events := []event{{1, 1}, {2, 1}, {3, 2}, {4, 2}, {5, 2}, {job: 1}, {job: 3}, {6, 1}, {7, 2}}
	require.Equal(t, 4, pairs.oracle(events))
	require.Equal(t, 4, quads.oracle(events))
	require.Equal(t, 0, pairs.oracle([]event{{1, 4}, {2, 4}}))
	require.Equal(t, 2, cube.oracle([]event{{1, 4}, {2, 4}}))
	require.Equal(t, 1, cube.oracle([]event{{1, 3}, {2, 4}}))
	require.Equal(t, 1, linked(wired(16, bridged(2, 4))).oracle([]event{{1, 2}, {2, 4}}))
	require.Len(t, quads.permutations(nil), 2*24*24)
}

func TestOracleSymmetriesAreCorrect(t *testing.T) {
	for _, size := range []int{2, 4} {
		m := linked(wired(8, bridged(size, 4)))
		smallest := m.smallest()
		like := map[placement]placement{}
		for seed := range uint64(3) {
			for _, e := range trace(seed, 8, 200, loads()[3]) {
				// Place jobs of these sizes at random.
				var p placement
				for i := range p {
					p[i] = uint8((e.job*(i+3) + e.size*i*i) % 4)
				}
				short, long := sorted(p, size, 8), smallest(p)
				if known, ok := like[short]; ok {
					require.Equal(t, known, long)
				}
				like[short] = long
			}
		}
	}
}
