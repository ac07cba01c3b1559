package controller

import (
	"cmp"
	"maps"
	"slices"

	"github.com/google/btree"

	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
)

// census counts what the Nodes require: pools, ways of injection and drivers. Each Node
// event updates it, so that an event costs the same however many Nodes there are.
type census struct {
	handOver   bool
	pools      map[fleet.Pool]*btree.BTreeG[string] // names of the served nodes
	injections map[fleet.Injection]int              // served nodes
	drivers    map[string]int                       // by label.Driver, served or not
	served     int
	described  int // nodes that NFD has labelled
}

func newCensus(handOver bool) *census {
	return &census{handOver: handOver, pools: map[fleet.Pool]*btree.BTreeG[string]{}, injections: map[fleet.Injection]int{}, drivers: map[string]int{}}
}

// replace counts now instead of before, of which either may be nil. changed reports whether
// the pools, their example nodes, the ways of injection or the drivers have changed.
func (c *census) replace(before, now *fleet.Node) (changed bool) {
	if before != nil {
		changed = c.remove(before)
	}
	if now != nil {
		changed = c.add(now) || changed
	}
	return changed
}

func (c *census) add(n *fleet.Node) (changed bool) {
	if n.HasNFDLabels {
		c.described++
	}
	if id := n.Labels[label.Driver]; id != "" {
		c.drivers[id]++
		changed = c.drivers[id] == 1
	}
	if !n.Served(c.handOver) {
		return changed
	}
	c.served++
	pool := c.pools[n.Pool]
	if pool == nil {
		pool = btree.NewOrderedG[string](16)
		c.pools[n.Pool] = pool
	}
	pool.ReplaceOrInsert(n.Name)
	first, _ := pool.Min()
	c.injections[n.Injection]++
	return changed || first == n.Name || c.injections[n.Injection] == 1
}

func (c *census) remove(n *fleet.Node) (changed bool) {
	if n.HasNFDLabels {
		c.described--
	}
	if id := n.Labels[label.Driver]; id != "" {
		changed = decrement(c.drivers, id)
	}
	if !n.Served(c.handOver) {
		return changed
	}
	c.served--
	pool := c.pools[n.Pool]
	first, _ := pool.Min()
	if pool.Delete(n.Name); pool.Len() == 0 {
		delete(c.pools, n.Pool)
	}
	return decrement(c.injections, n.Injection) || changed || first == n.Name
}

// decrement decrements a count and reports whether it reached zero.
func decrement[K comparable](counts map[K]int, key K) bool {
	counts[key]--
	if counts[key] > 0 {
		return false
	}
	delete(counts, key)
	return true
}

// exampleNodes returns the first node of each pool.
func (c *census) exampleNodes() map[fleet.Pool]string {
	first := map[fleet.Pool]string{}
	for pool, names := range c.pools {
		first[pool], _ = names.Min()
	}
	return first
}

// injectionModes returns the ways in which containers on the nodes get GPUs.
func (c *census) injectionModes() []fleet.Injection {
	return slices.SortedFunc(maps.Keys(c.injections), cmp.Compare[fleet.Injection])
}
