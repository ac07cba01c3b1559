package prefer

import (
	"fmt"
	"slices"
)

// question is one request, seen from the GPUs: how much of each is free, and
// how much of it the container gets.
type question struct {
	*Chooser
	free, included int // devices

	open   []bool // by device: may be chosen
	chosen []bool // by device
	stock  []int  // by GPU: devices that may be picked; late ones do not count
	picks  []int  // by GPU: devices that the container gets
	taken  []int  // by GPU: devices that are not free, those of the container among them
	next   []int  // by GPU: the device to look at for the next pick

	strange []string // not known, and given
	foreign []string // not known, and available
}

// read sorts out what is asked: each device once, in an order of ours.
func (c *Chooser) read(available, include []string) *question {
	n, d := len(c.gpus), len(c.devices)
	counts, marks := make([]int, 4*n), make([]bool, 2*d)
	q := &question{
		Chooser: c,
		open:    marks[:d], chosen: marks[d:],
		stock: counts[:n], picks: counts[n : 2*n], taken: counts[2*n : 3*n], next: counts[3*n:],
	}
	for g, p := range c.gpus {
		q.taken[g], q.next[g] = p.total, p.first
	}
	for _, id := range include {
		d, known := c.at[id]
		switch {
		case !known:
			q.strange = append(q.strange, id)
		case !q.chosen[d]:
			q.chosen[d] = true
			q.picks[c.devices[d].gpu]++
			q.included++
		}
	}
	for _, id := range available {
		d, known := c.at[id]
		switch {
		case !known:
			q.foreign = append(q.foreign, id)
		case !q.chosen[d] && !q.open[d]:
			q.open[d] = true
			q.free++
			if !c.devices[d].late {
				q.stock[c.devices[d].gpu]++
				q.taken[c.devices[d].gpu]--
			}
		}
	}
	q.strange = distinct(q.strange)
	q.included += len(q.strange)
	q.foreign = slices.DeleteFunc(distinct(q.foreign), func(id string) bool {
		_, given := slices.BinarySearch(q.strange, id)
		return given
	})
	q.free += len(q.foreign)
	return q
}

func distinct(ids []string) []string {
	slices.Sort(ids)
	return slices.Compact(ids)
}

// apart leaves of each GPU only what does not give the container two devices
// of it. What is not known counts as a GPU of its own.
func (q *question) apart(size int) error {
	gpus := len(q.strange) + len(q.foreign)
	for g, p := range q.gpus {
		if q.picks[g] > 1 {
			return fmt.Errorf("%d of the devices to include are parts of %s, and a container gets only one of each GPU", q.picks[g], p.id)
		}
		q.stock[g] = min(q.stock[g], 1-q.picks[g])
		if q.picks[g] > 0 || slices.Contains(q.open[p.first:p.first+p.total], true) {
			gpus++
		}
	}
	if gpus < size {
		return fmt.Errorf("%d devices of different GPUs were asked for, and only %d GPUs have one available", size, gpus)
	}
	return nil
}

// pickable is how many devices may be picked.
func (q *question) pickable() int {
	sum := 0
	for _, stock := range q.stock {
		sum += stock
	}
	return sum
}

// pick takes the first device of a GPU that may be picked.
func (q *question) pick(g int) {
	for !q.open[q.next[g]] || q.devices[q.next[g]].late {
		q.next[g]++
	}
	q.chosen[q.next[g]] = true
	q.next[g]++
	q.picks[g]++
	q.taken[g]++
	q.stock[g]--
}

// fill takes need late devices, and then what is not known.
func (q *question) fill(need int) {
	for d := range q.devices {
		g := q.devices[d].gpu
		if need > 0 && q.open[d] && q.devices[d].late && !(q.options.Strict && q.picks[g] > 0) {
			q.chosen[d] = true
			q.picks[g]++
			need--
		}
	}
	q.foreign = q.foreign[:need]
}

// answer names the devices that were chosen.
func (q *question) answer() []string {
	var ids []string
	for d, chosen := range q.chosen {
		if chosen {
			ids = append(ids, q.devices[d].id)
		}
	}
	return append(append(ids, q.strange...), q.foreign...)
}

// share picks need devices of the known GPUs, one at a time, each of the GPU
// that the policy puts first.
func (q *question) share(need int) {
	for range need {
		best := -1
		for g := range q.known {
			if q.stock[g] > 0 && (best < 0 || q.before(g, best)) {
				best = g
			}
		}
		q.pick(best)
	}
}

// before says that the policy takes of GPU a rather than of GPU b. Where it
// does not care, the one that is nearer to what is picked comes first.
func (q *question) before(a, b int) bool {
	taken, picks := q.taken[a]-q.taken[b], q.picks[a]-q.picks[b]
	var order [2]int
	switch q.options.Policy {
	case Packed:
		order = [2]int{-taken, picks}
	case Spread:
		order = [2]int{picks, taken}
	default:
		order = [2]int{taken, picks}
	}
	for _, by := range order {
		if by != 0 {
			return by < 0
		}
	}
	return q.near(a) > q.near(b)
}

// near is how near a GPU is to those that are picked.
func (q *question) near(g int) int {
	sum := 0
	for other, picks := range q.picks[:q.known] {
		if picks > 0 {
			sum += q.topology.score[q.gpus[g].place][q.gpus[other].place]
		}
	}
	return sum
}

// align picks need devices of the known GPUs so that the GPUs are near to each
// other: one of each while that is enough, then the second of each, and so on.
// Only of the last round not every GPU is needed: that one is searched.
func (q *question) align(need int) {
	for round := 1; need > 0; round++ {
		var have, may []int
		for g := range q.known {
			switch {
			case q.picks[g] >= round:
				have = append(have, g)
			case q.stock[g] > 0:
				may = append(may, g)
			}
		}
		if len(may) > need {
			may = q.nearest(have, may, need)
		}
		for _, g := range may {
			q.pick(g)
		}
		need -= len(may)
	}
}
