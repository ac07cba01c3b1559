package plan

import (
	"fmt"
	"slices"

	"github.com/gpuready/gpuready/internal/gpu"
)

// Topology is how near a node's GPUs are to each other. It is made once for
// each snapshot and may be used concurrently.
type Topology struct {
	index map[string]int // position in near, in the order of the snapshot
	near  [][]int
}

// How near two GPUs are. A lane of NVLink outweighs everything below it, as it
// carries several times what PCIe does; the rest is the order of LinkKind.
const (
	nearLane = 64 // per NVLink lane
	nearKind = 2  // per step of LinkKind
	nearNUMA = 1  // the same NUMA node
)

// NewTopology reads the links of a snapshot.
func NewTopology(s gpu.Snapshot) *Topology {
	t := &Topology{index: map[string]int{}, near: make([][]int, len(s.Devices))}
	for i, d := range s.Devices {
		t.index[string(d.UUID)] = i
		t.near[i] = make([]int, len(s.Devices))
		for j, e := range s.Devices[:i] {
			if d.NUMANode >= 0 && d.NUMANode == e.NUMANode {
				t.near[i][j] += nearNUMA
				t.near[j][i] += nearNUMA
			}
		}
	}
	for _, l := range s.Links {
		i, a := t.index[string(l.A)]
		j, b := t.index[string(l.B)]
		if !a || !b || i == j {
			continue
		}
		n := nearKind*int(l.Kind) + nearLane*l.Lanes
		t.near[i][j] += n
		t.near[j][i] += n
	}
	return t
}

// Prefer chooses size of the available devices, all of include among them, so
// that they are near to each other and, second, as little as possible is torn
// from what stays behind. The same question gets the same answer.
//
// It grows a set from each device that it could begin with, always by the
// device that is nearest to the set, and takes the best: at most 16³ steps for
// 16 GPUs, and the exact optimum for pairs.
func (t *Topology) Prefer(available, include []string, size int) ([]string, error) {
	pool := t.sorted(available)
	fixed := t.sorted(include)
	for _, id := range fixed {
		if !slices.Contains(pool, id) {
			return nil, fmt.Errorf("device %s must be included and is not available", id)
		}
	}
	if size < len(fixed) || size > len(pool) || size < 0 {
		return nil, fmt.Errorf("cannot choose %d devices, %d of them given, from %d available ones", size, len(fixed), len(pool))
	}
	w := t.weigh(pool)
	var best choice
	for seed := range pool {
		c := choice{w: w, in: make([]bool, len(pool))}
		for i, id := range pool {
			if slices.Contains(fixed, id) {
				c.add(i)
			}
		}
		if len(fixed) == 0 && size > 0 {
			c.add(seed)
		} else if seed > 0 {
			break // the beginning is given
		}
		for c.n < size {
			c.add(c.nearest())
		}
		if best.w == nil || c.betterThan(best) {
			best = c
		}
	}
	var ids []string
	for i, id := range pool {
		if best.in[i] {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// choice is a growing set of devices of a pool.
type choice struct {
	w      [][]int
	in     []bool
	n      int
	inside int // sum of nearness within the set
}

func (c *choice) add(i int) {
	c.inside += c.to(i)
	c.in[i] = true
	c.n++
}

// to is how near a device is to the set.
func (c *choice) to(i int) int {
	sum := 0
	for j, in := range c.in {
		if in {
			sum += c.w[i][j]
		}
	}
	return sum
}

// torn is how near the set is to what stays behind.
func (c *choice) torn() int {
	sum := 0
	for i, in := range c.in {
		if !in {
			sum += c.to(i)
		}
	}
	return sum
}

// nearest is the device outside the set that is nearest to it; among equals
// the one that leaves the least behind, and then the first.
func (c *choice) nearest() int {
	best, near, left := -1, 0, 0
	for i, in := range c.in {
		if in {
			continue
		}
		n, l := c.to(i), 0
		for j, other := range c.in {
			if !other {
				l += c.w[i][j]
			}
		}
		if best < 0 || n > near || n == near && l < left {
			best, near, left = i, n, l
		}
	}
	return best
}

func (c *choice) betterThan(o choice) bool {
	if c.inside != o.inside {
		return c.inside > o.inside
	}
	return c.torn() < o.torn()
}

// sorted returns the devices in the order of the snapshot, each once; those that
// it does not have come last, by ID.
func (t *Topology) sorted(ids []string) []string {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	slices.SortStableFunc(ids, func(a, b string) int { return t.place(a) - t.place(b) })
	return ids
}

func (t *Topology) place(id string) int {
	if i, ok := t.index[id]; ok {
		return i
	}
	return len(t.near)
}

// weigh is the part of near that concerns the pool. A device that is not known
// is near to none.
func (t *Topology) weigh(pool []string) [][]int {
	w := make([][]int, len(pool))
	for i, a := range pool {
		w[i] = make([]int, len(pool))
		for j, b := range pool {
			x, y := t.place(a), t.place(b)
			if x < len(t.near) && y < len(t.near) {
				w[i][j] = t.near[x][y]
			}
		}
	}
	return w
}
