package prefer

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpuready/gpuready/internal/gpu"
)

// Policy is the criterion for a choice.
type Policy int

// The last three policies are those of NVIDIA's sharedDevicesAllocationPolicy
// (k8s-device-plugin, internal/rm/allocate.go).
const (
	// Aligned chooses GPUs that are near to each other, and among equals those that leave
	// the most pairs and quads whole. Of shared GPUs it chooses different ones as long as
	// there are any.
	Aligned Policy = iota
	// Packed fills the GPU of which the most is used.
	Packed
	// Distributed chooses from the GPU of which the least is used.
	Distributed
	// Spread chooses from the GPU of which this container has the least, and among equals
	// as Distributed does.
	Spread
)

// Options configure a Chooser.
type Options struct {
	Policy Policy
	// Strict refuses two devices of one physical GPU for one container.
	Strict bool
}

// Device is one device as the kubelet counts them: a GPU, a MIG device or a replica.
type Device struct {
	ID         string
	GPU        gpu.UUID // the physical GPU behind it
	LastResort bool     // choose it only if no other device is left: it is unhealthy
}

// Chooser chooses devices of a resource. It is never changed and may be used
// concurrently.
type Chooser struct {
	topology *Topology
	options  Options
	devices  []device       // grouped by GPU, in the order of New
	indexOf  map[string]int // position of a device in devices
	gpus     []physical     // in the order of the topology; unknown ones come last
	known    int            // number of gpus that are in the topology
}

// device is a Device with its GPU by position.
type device struct {
	id         string
	gpu        int // position in gpus
	lastResort bool
}

// physical is a GPU and the range of its devices.
type physical struct {
	id           gpu.UUID
	position     int // in the topology; -1: not in it
	first, total int // in devices
}

// New returns a Chooser for the devices of one resource. A device whose GPU is not in the
// topology, because it was lost, is a last resort too.
func New(t *Topology, devices []Device, o Options) *Chooser {
	c := &Chooser{topology: t, options: o, indexOf: make(map[string]int, len(devices))}
	parts := map[gpu.UUID][]device{}
	seen := make(map[string]bool, len(devices))
	for _, d := range devices {
		if !seen[d.ID] {
			seen[d.ID] = true
			_, known := t.index[d.GPU]
			parts[d.GPU] = append(parts[d.GPU], device{id: d.ID, lastResort: d.LastResort || !known})
		}
	}
	for id := range parts {
		p := physical{id: id, position: -1}
		if position, ok := t.index[id]; ok {
			p.position = position
			c.known++
		}
		c.gpus = append(c.gpus, p)
	}
	slices.SortFunc(c.gpus, func(a, b physical) int {
		switch {
		case a.position < 0 && b.position < 0:
			return cmp.Compare(a.id, b.id)
		case a.position < 0 || b.position < 0:
			return cmp.Compare(b.position, a.position)
		}
		return cmp.Compare(a.position, b.position)
	})
	for g := range c.gpus {
		p := &c.gpus[g]
		p.first, p.total = len(c.devices), len(parts[p.id])
		for _, d := range parts[p.id] {
			d.gpu = g
			c.indexOf[d.id] = len(c.devices)
			c.devices = append(c.devices, d)
		}
	}
	return c
}

// Prefer chooses size of the available devices, including all of include. Repeated IDs
// count once, devices to include count as available, and unknown IDs are chosen only as
// a last resort. The result is in the order of the GPUs.
func (c *Chooser) Prefer(available, include []string, size int) ([]string, error) {
	q := c.newRequest(available, include)
	if size < q.includedCount || size > q.includedCount+q.freeCount {
		return nil, fmt.Errorf("cannot choose %d devices, %d of them to be included, from %d available ones", size, q.includedCount, q.includedCount+q.freeCount)
	}
	if c.options.Strict {
		if err := q.limitToOnePerGPU(size); err != nil {
			return nil, err
		}
	}
	need := size - q.includedCount
	lastResorts := max(need-q.countPickable(), 0)
	if c.options.Policy == Aligned {
		q.pickAligned(need - lastResorts)
	} else {
		q.pickShared(need - lastResorts)
	}
	q.addLastResorts(lastResorts)
	return q.deviceIDs(), nil
}
