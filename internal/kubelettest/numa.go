package kubelettest

import (
	"math/bits"
	"slices"
)

// noNode means that a device names no NUMA node, as in the kubelet's checkpoint.
const noNode = -1

// nodes returns the NUMA nodes that a device names, noNode if none.
func (r *resource) nodes(id string) []int64 {
	var nodes []int64
	for _, n := range r.device(id).GetTopology().GetNodes() {
		nodes = append(nodes, n.GetID())
	}
	if nodes == nil {
		nodes = []int64{noNode}
	}
	return nodes
}

// byNode sorts devices by NUMA node, as the checkpoint keeps them.
func (r *resource) byNode(ids []string) map[int64][]string {
	by := map[int64][]string{}
	for _, id := range ids {
		for _, n := range r.nodes(id) {
			by[n] = append(by[n], id)
		}
	}
	return by
}

// aligned returns the available devices on the smallest set of NUMA nodes that has
// enough of them, the lowest-numbered such set. The topology manager's best-effort
// policy chooses it for a pod that requests only devices. If too few devices name a
// node, aligned returns none.
func (r *resource) aligned(available []string, needed int) []string {
	var best []string
	size := 65
	for mask := uint64(1); mask < 1<<r.nodeCount(); mask++ {
		if bits.OnesCount64(mask) >= size {
			continue
		}
		var on []string
		for _, id := range available {
			if slices.ContainsFunc(r.nodes(id), func(n int64) bool { return n >= 0 && n < 64 && mask&(1<<n) != 0 }) {
				on = append(on, id)
			}
		}
		if len(on) >= needed {
			best, size = on, bits.OnesCount64(mask)
		}
	}
	return best
}

// nodeCount returns one more than the highest node named, and at most 16: more masks
// are not worth trying in a test.
func (r *resource) nodeCount() int64 {
	var count int64
	for _, d := range r.devices {
		for _, n := range d.GetTopology().GetNodes() {
			count = max(count, n.GetID()+1)
		}
	}
	return min(count, 16)
}
