package prefer

import (
	"math/bits"
	"slices"

	"github.com/gpuready/gpuready/internal/gpu"
)

// maxGrouped bounds the GPUs of a connected part that is divided exactly, in 3^maxGrouped steps: no known
// machine has more in a part where not all are linked.
const maxGrouped = 10

// GroupByNVLink returns a snapshot whose GPUs have their NVLinkGroup. The Kubernetes scheduler can
// compare the values of an attribute, and nothing else: so each GPU belongs to one group, and each two
// of a group are linked.
//
// Of the ways to divide the GPUs into such domains, the one with the most linked pairs in a domain
// counts, and then the one with the most links. A domain whose GPUs are not equally near is divided
// again in the same way, by the pairs with the most links.
func GroupByNVLink(s gpu.Snapshot) gpu.Snapshot {
	s = s.Clone()
	index := map[gpu.UUID]int{}
	for i, d := range s.Devices {
		s.Devices[i].NVLink = gpu.NVLinkGroup{}
		if _, twice := index[d.UUID]; d.UUID != "" && !twice {
			index[d.UUID] = i
		}
	}
	g := grouping{lanes: newSquare(len(s.Devices))}
	for _, l := range s.Links {
		a, hasA := index[l.A]
		b, hasB := index[l.B]
		if hasA && hasB && a != b && l.Kind == gpu.LinkNVLink {
			g.lanes[a][b], g.lanes[b][a] = l.Lanes, l.Lanes
		}
	}
	all := make([]int, len(s.Devices))
	for i := range all {
		all[i] = i
	}
	for _, domain := range g.divide(all, 1) {
		if len(domain) < 2 {
			continue
		}
		for _, nearest := range g.divide(domain, g.most(domain)) {
			for _, i := range nearest {
				s.Devices[i].NVLink = gpu.NVLinkGroup{Domain: s.Devices[domain[0]].UUID, Nearest: s.Devices[nearest[0]].UUID}
			}
		}
	}
	return s
}

// grouping holds the NVLinks between each two GPUs.
type grouping struct{ lanes [][]int }

// most returns the most links that two of the GPUs have.
func (g grouping) most(gpus []int) (most int) {
	for n, i := range gpus {
		for _, j := range gpus[:n] {
			most = max(most, g.lanes[i][j])
		}
	}
	return most
}

// divide returns the GPUs, sorted, in groups of which each two have at least that many links.
func (g grouping) divide(gpus []int, least int) (groups [][]int) {
	for _, part := range g.connected(gpus, least) {
		switch {
		case g.isGroup(part, least):
			groups = append(groups, part)
		case len(part) <= maxGrouped:
			groups = append(groups, g.divideExactly(part, least)...)
		default:
			groups = append(groups, g.divideGreedily(part, least)...)
		}
	}
	return groups
}

// isGroup reports whether each two of the GPUs have at least that many links.
func (g grouping) isGroup(gpus []int, least int) bool {
	for n, i := range gpus {
		for _, j := range gpus[:n] {
			if g.lanes[i][j] < least {
				return false
			}
		}
	}
	return true
}

// connected returns the parts between which there is no pair with that many links.
func (g grouping) connected(gpus []int, least int) (parts [][]int) {
	rest := slices.Clone(gpus)
	for len(rest) > 0 {
		part := []int{rest[0]}
		rest = rest[1:]
		for n := 0; n < len(part); n++ {
			rest = slices.DeleteFunc(rest, func(j int) bool {
				linked := g.lanes[part[n]][j] >= least
				if linked {
					part = append(part, j)
				}
				return linked
			})
		}
		slices.Sort(part)
		parts = append(parts, part)
	}
	return parts
}

// division is the best way found to divide a set of GPUs.
type division struct {
	pairs, links int
	first        set // the group of the set's first GPU
	known        bool
}

// divideExactly tries every division of at most maxGrouped GPUs. The bits of a set are positions in gpus.
func (g grouping) divideExactly(gpus []int, least int) (groups [][]int) {
	best := make([]division, 1<<len(gpus))
	best[0].known = true
	var solve func(rest set) division
	solve = func(rest set) division {
		if best[rest].known {
			return best[rest]
		}
		first := rest & -rest
		others := rest &^ first
		d := division{known: true}
		for more := others; ; more = (more - 1) & others { // each subset, the largest first
			if pairs, links := g.count(gpus, first|more, least); pairs >= 0 {
				remaining := solve(others &^ more)
				pairs, links = pairs+remaining.pairs, links+remaining.links
				if d.first == 0 || pairs > d.pairs || pairs == d.pairs && links > d.links {
					d.first, d.pairs, d.links = first|more, pairs, links
				}
			}
			if more == 0 {
				break
			}
		}
		best[rest] = d
		return d
	}
	for rest := set(1)<<len(gpus) - 1; rest != 0; {
		d := solve(rest)
		var group []int
		for n, i := range gpus {
			if d.first.has(n) {
				group = append(group, i)
			}
		}
		groups, rest = append(groups, group), rest&^d.first
	}
	return groups
}

// count returns the pairs and links within a set; pairs is -1 if it is no group.
func (g grouping) count(gpus []int, members set, least int) (pairs, links int) {
	for a := members; a != 0; a &= a - 1 {
		i := gpus[bits.TrailingZeros16(uint16(a))]
		for b := a & (a - 1); b != 0; b &= b - 1 {
			n := g.lanes[i][gpus[bits.TrailingZeros16(uint16(b))]]
			if n < least {
				return -1, 0
			}
			pairs, links = pairs+1, links+n
		}
	}
	return pairs, links
}

// divideGreedily gives each GPU in turn the first of the others that are linked with all it has.
func (g grouping) divideGreedily(gpus []int, least int) (groups [][]int) {
	rest := slices.Clone(gpus)
	for len(rest) > 0 {
		group := []int{rest[0]}
		rest = slices.DeleteFunc(rest[1:], func(j int) bool {
			if slices.ContainsFunc(group, func(i int) bool { return g.lanes[i][j] < least }) {
				return false
			}
			group = append(group, j)
			return true
		})
		groups = append(groups, group)
	}
	return groups
}
