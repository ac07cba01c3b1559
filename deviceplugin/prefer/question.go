package prefer

import (
	"fmt"
	"slices"
)

// request is one request for devices while it is computed: which devices are free, and which the
// container gets.
type request struct {
	*Chooser
	freeCount, includedCount int // numbers of devices

	available  []bool // by device: free and not chosen
	chosen     []bool // by device
	stock      []int  // by GPU: number of devices that can be picked, without last resorts
	picks      []int  // by GPU: number of devices that the container gets
	used       []int  // by GPU: number of devices that are not free, those of the container included
	nextDevice []int  // by GPU: device from which to search for the next pick

	unknownIncluded []string // unknown devices to include
	unknownFree     []string // unknown available devices
}

// newRequest returns a request with each device once, in the Chooser's order.
func (c *Chooser) newRequest(available, include []string) *request {
	n, d := len(c.gpus), len(c.devices)
	counts, marks := make([]int, 4*n), make([]bool, 2*d)
	q := &request{
		Chooser:   c,
		available: marks[:d], chosen: marks[d:],
		stock: counts[:n], picks: counts[n : 2*n], used: counts[2*n : 3*n], nextDevice: counts[3*n:],
	}
	for g, p := range c.gpus {
		q.used[g], q.nextDevice[g] = p.total, p.first
	}
	for _, id := range include {
		d, known := c.indexOf[id]
		switch {
		case !known:
			q.unknownIncluded = append(q.unknownIncluded, id)
		case !q.chosen[d]:
			q.chosen[d] = true
			q.picks[c.devices[d].gpu]++
			q.includedCount++
		}
	}
	for _, id := range available {
		d, known := c.indexOf[id]
		switch {
		case !known:
			q.unknownFree = append(q.unknownFree, id)
		case !q.chosen[d] && !q.available[d]:
			q.available[d] = true
			q.freeCount++
			if !c.devices[d].lastResort {
				q.stock[c.devices[d].gpu]++
				q.used[c.devices[d].gpu]--
			}
		}
	}
	q.unknownIncluded = sortDistinct(q.unknownIncluded)
	q.includedCount += len(q.unknownIncluded)
	q.unknownFree = slices.DeleteFunc(sortDistinct(q.unknownFree), func(id string) bool {
		_, isIncluded := slices.BinarySearch(q.unknownIncluded, id)
		return isIncluded
	})
	q.freeCount += len(q.unknownFree)
	return q
}

// sortDistinct sorts the IDs and removes repeated ones.
func sortDistinct(ids []string) []string {
	slices.Sort(ids)
	return slices.Compact(ids)
}

// limitToOnePerGPU restricts the stock so that the container gets at most one device of
// each GPU. Each unknown device counts as a GPU of its own.
func (q *request) limitToOnePerGPU(size int) error {
	gpus := len(q.unknownIncluded) + len(q.unknownFree)
	for g, p := range q.gpus {
		if q.picks[g] > 1 {
			return fmt.Errorf("%d of the devices to include are parts of %s, and a container gets only one of each GPU", q.picks[g], p.id)
		}
		q.stock[g] = min(q.stock[g], 1-q.picks[g])
		if q.picks[g] > 0 || slices.Contains(q.available[p.first:p.first+p.total], true) {
			gpus++
		}
	}
	if gpus < size {
		return fmt.Errorf("%d devices of different GPUs were requested, but only %d GPUs have one available", size, gpus)
	}
	return nil
}

// countPickable returns how many devices can be picked.
func (q *request) countPickable() int {
	sum := 0
	for _, stock := range q.stock {
		sum += stock
	}
	return sum
}

// pick chooses the first pickable device of a GPU.
func (q *request) pick(g int) {
	for !q.available[q.nextDevice[g]] || q.devices[q.nextDevice[g]].lastResort {
		q.nextDevice[g]++
	}
	q.chosen[q.nextDevice[g]] = true
	q.nextDevice[g]++
	q.picks[g]++
	q.used[g]++
	q.stock[g]--
}

// addLastResorts chooses need more devices, of those to be avoided: first the last resorts, then
// devices of unknown GPUs.
func (q *request) addLastResorts(need int) {
	for d := range q.devices {
		g := q.devices[d].gpu
		if need == 0 || !q.available[d] || !q.devices[d].lastResort || q.options.Strict && q.picks[g] > 0 {
			continue
		}
		q.chosen[d] = true
		q.picks[g]++
		need--
	}
	q.unknownFree = q.unknownFree[:need]
}

// deviceIDs returns the chosen devices.
func (q *request) deviceIDs() []string {
	var ids []string
	for d, chosen := range q.chosen {
		if chosen {
			ids = append(ids, q.devices[d].id)
		}
	}
	return append(append(ids, q.unknownIncluded...), q.unknownFree...)
}
