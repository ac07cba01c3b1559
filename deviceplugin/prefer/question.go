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

	unknownGiven []string // no such device, and must be included
	unknownFree  []string // no such device, and available
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
			q.unknownGiven = append(q.unknownGiven, id)
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
			q.unknownFree = append(q.unknownFree, id)
		case !q.chosen[d] && !q.open[d]:
			q.open[d] = true
			q.free++
			if !c.devices[d].late {
				q.stock[c.devices[d].gpu]++
				q.taken[c.devices[d].gpu]--
			}
		}
	}
	q.unknownGiven = distinct(q.unknownGiven)
	q.included += len(q.unknownGiven)
	q.unknownFree = slices.DeleteFunc(distinct(q.unknownFree), func(id string) bool {
		_, given := slices.BinarySearch(q.unknownGiven, id)
		return given
	})
	q.free += len(q.unknownFree)
	return q
}

func distinct(ids []string) []string {
	slices.Sort(ids)
	return slices.Compact(ids)
}

// apart leaves of each GPU only what does not give the container two devices
// of it. What is not known counts as a GPU of its own.
func (q *question) apart(size int) error {
	gpus := len(q.unknownGiven) + len(q.unknownFree)
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
		if need == 0 || !q.open[d] || !q.devices[d].late || q.options.Strict && q.picks[g] > 0 {
			continue
		}
		q.chosen[d] = true
		q.picks[g]++
		need--
	}
	q.unknownFree = q.unknownFree[:need]
}

// answer names the devices that were chosen.
func (q *question) answer() []string {
	var ids []string
	for d, chosen := range q.chosen {
		if chosen {
			ids = append(ids, q.devices[d].id)
		}
	}
	return append(append(ids, q.unknownGiven...), q.unknownFree...)
}
