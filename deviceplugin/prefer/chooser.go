package prefer

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpuready/gpuready/internal/gpu"
)

// Policy is what makes a choice a good one.
type Policy int

// The policies. The last three are those of the reference's
// sharedDevicesAllocationPolicy (k8s-device-plugin, internal/rm/allocate.go).
const (
	// Aligned takes GPUs that are near to each other, and of those the ones
	// that leave the most pairs and quads whole. Of GPUs that are shared it
	// takes different ones as long as there are any.
	Aligned Policy = iota
	// Packed fills the GPU of which the most is taken.
	Packed
	// Distributed takes from the GPU of which the least is taken.
	Distributed
	// Spread takes from the GPU of which this container has the least, and of
	// those as Distributed does.
	Spread
)

// Options say how to choose.
type Options struct {
	Policy Policy
	// Strict refuses to give one container two devices of one physical GPU.
	Strict bool
}

// Device is one device as the kubelet counts them: a GPU, a replica of it or a
// MIG device.
type Device struct {
	ID  string
	GPU gpu.UUID // the physical GPU behind it
	// Late says that it is taken only when there is no other: it is unhealthy.
	Late bool
}

// Chooser answers which devices of a resource to take. It is never changed and
// may be used concurrently.
type Chooser struct {
	topology *Topology
	options  Options
	devices  []device       // those of one GPU lie together, in the order of New
	at       map[string]int // where a device is in devices
	gpus     []physical     // in the order of the topology; those that are not in it come last
	known    int            // so many of gpus are in the topology
}

type device struct {
	id   string
	gpu  int // a position in gpus
	late bool
}

// physical is a GPU, and which of the devices are parts of it.
type physical struct {
	id           gpu.UUID
	place        int // in the topology; -1: it is not there
	first, total int // in devices
}

// New makes a Chooser for the devices of one resource. A device whose GPU is
// not in the topology, as it was lost, is late too.
func New(t *Topology, devices []Device, o Options) *Chooser {
	c := &Chooser{topology: t, options: o, at: make(map[string]int, len(devices))}
	parts := map[gpu.UUID][]device{}
	seen := make(map[string]bool, len(devices))
	for _, d := range devices {
		if !seen[d.ID] {
			seen[d.ID] = true
			_, known := t.index[d.GPU]
			parts[d.GPU] = append(parts[d.GPU], device{id: d.ID, late: d.Late || !known})
		}
	}
	for id := range parts {
		p := physical{id: id, place: -1}
		if place, ok := t.index[id]; ok {
			p.place = place
			c.known++
		}
		c.gpus = append(c.gpus, p)
	}
	slices.SortFunc(c.gpus, func(a, b physical) int {
		switch {
		case a.place < 0 && b.place < 0:
			return cmp.Compare(a.id, b.id)
		case a.place < 0 || b.place < 0:
			return cmp.Compare(b.place, a.place)
		}
		return cmp.Compare(a.place, b.place)
	})
	for g := range c.gpus {
		p := &c.gpus[g]
		p.first, p.total = len(c.devices), len(parts[p.id])
		for _, d := range parts[p.id] {
			d.gpu = g
			c.at[d.id] = len(c.devices)
			c.devices = append(c.devices, d)
		}
	}
	return c
}

// Prefer chooses size of the available devices, all of include among them. What
// is asked for twice counts once, what must be included counts as available,
// and an ID that is not known is taken when there is no other. The answer is in
// the order of the GPUs.
func (c *Chooser) Prefer(available, include []string, size int) ([]string, error) {
	q := c.read(available, include)
	if size < q.included || size > q.included+q.free {
		return nil, fmt.Errorf("cannot choose %d devices, %d of them given, from %d available ones", size, q.included, q.included+q.free)
	}
	if c.options.Strict {
		if err := q.apart(size); err != nil {
			return nil, err
		}
	}
	need := size - q.included
	late := max(need-q.pickable(), 0)
	if c.options.Policy == Aligned {
		q.align(need - late)
	} else {
		q.share(need - late)
	}
	q.fill(late)
	return q.answer(), nil
}
