package controller

import (
	"cmp"
	"maps"
	"slices"

	"github.com/google/btree"

	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
)

// census is what the Nodes come to for all that is rendered and chosen. It is kept while
// they change, so that a Node's event costs what that Node does, however many there are.
type census struct {
	handOver   bool
	pools      map[fleet.Pool]*btree.BTreeG[string] // the names of those that are served
	injections map[fleet.Injection]int              // of those that are served
	drivers    map[string]int                       // by label.Driver, served or not
	served     int
	described  int // where NFD has been
}

func newCensus(handOver bool) *census {
	return &census{handOver: handOver, pools: map[fleet.Pool]*btree.BTreeG[string]{}, injections: map[fleet.Injection]int{}, drivers: map[string]int{}}
}

// replace counts now in place of before, of which either may be nil; it says whether the
// pools, their examples, the ways of injection or the drivers are others.
func (c *census) replace(before, now *fleet.Node) (changed bool) {
	if before != nil {
		changed = c.take(before)
	}
	if now != nil {
		changed = c.add(now) || changed
	}
	return changed
}

func (c *census) add(n *fleet.Node) (changed bool) {
	if n.Described {
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

func (c *census) take(n *fleet.Node) (changed bool) {
	if n.Described {
		c.described--
	}
	if id := n.Labels[label.Driver]; id != "" {
		changed = less(c.drivers, id)
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
	return less(c.injections, n.Injection) || changed || first == n.Name
}

// less counts one less, and says whether that was the last.
func less[K comparable](counts map[K]int, key K) bool {
	counts[key]--
	if counts[key] > 0 {
		return false
	}
	delete(counts, key)
	return true
}

// examples are the pools, each with the first of its nodes.
func (c *census) examples() map[fleet.Pool]string {
	first := map[fleet.Pool]string{}
	for pool, names := range c.pools {
		first[pool], _ = names.Min()
	}
	return first
}

// ways are those in which containers on the nodes get GPUs.
func (c *census) ways() []fleet.Injection {
	return slices.SortedFunc(maps.Keys(c.injections), cmp.Compare[fleet.Injection])
}
