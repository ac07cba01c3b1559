package compare

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
)

// resourceDevice is a GPU or MIG device as listed under one resource name.
type resourceDevice struct {
	resource string
	id       gpu.UUID
}

// listing holds the IDs that one plugin lists for a resourceDevice: a single ID, or the IDs of its
// replicas.
type listing struct {
	ids    []string    // sorted
	device plan.Device // in ours; zero in theirs
	numa   []int64     // NUMA nodes in theirs; nil in ours
}

// listings holds the listings of one plugin.
type listings map[resourceDevice]listing

// addID adds an ID to the listing of its device, and calls set, which sets the other fields.
func (t listings) addID(resource, id string, set func(*listing)) {
	key := resourceDevice{resource, deviceOf(id)}
	entry := t[key]
	entry.ids = append(entry.ids, id)
	set(&entry)
	t[key] = entry
}

// resourceNames returns the resource names in the table.
func (t listings) resourceNames() map[string]bool {
	names := map[string]bool{}
	for at := range t {
		names[at.resource] = true
	}
	return names
}

// namesOf returns the names under which the device is listed, sorted.
func (t listings) namesOf(id gpu.UUID, all map[string]bool) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if _, isListed := t[resourceDevice{name, id}]; isListed {
			names = append(names, name)
		}
	}
	return names
}

// comparison holds one comparison while it is computed.
type comparison struct {
	ours, theirs listings
	names        map[string]bool             // of resources
	leftOut      map[gpu.UUID]plan.LeftOut   // by ours
	holders      map[resourceDevice][]string // containers that have the device, "namespace/pod/container"
	maxSeen      map[resourceDevice]int      // largest number of IDs of each that the kubelet has had
	checkpoint   bool                        // theirs come from the kubelet's checkpoint, without NUMA nodes
	found        []Difference
}

// compare lists the differences in what is advertised. maxSeen is the largest number of
// healthy IDs of each part that the kubelet has had.
func compare(o Ours, t Theirs, maxSeen map[resourceDevice]int) []Difference {
	c := comparison{ours: listings{}, theirs: listTheirs(o, t), maxSeen: maxSeen, leftOut: map[gpu.UUID]plan.LeftOut{}, holders: map[resourceDevice][]string{}, checkpoint: t.Checkpoint}
	for _, r := range o.Plan.Resources {
		for _, d := range r.Devices {
			c.ours.addID(r.Name, d.ID, func(l *listing) { l.device = d })
		}
	}
	for _, l := range o.Plan.LeftOut {
		id := l.GPU
		if l.MIG.UUID != "" {
			id = l.MIG.UUID
		}
		c.leftOut[id] = l
	}
	for _, h := range t.Allocations {
		for _, id := range h.IDs {
			at := resourceDevice{h.Resource, deviceOf(id)}
			if !slices.Contains(c.holders[at], h.String()) {
				c.holders[at] = append(c.holders[at], h.String())
			}
		}
	}
	c.names = c.ours.resourceNames()
	maps.Copy(c.names, c.theirs.resourceNames())
	ids := map[gpu.UUID]bool{}
	for _, t := range []listings{c.ours, c.theirs} {
		for at := range t {
			ids[at.id] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		c.compareDevice(id)
	}
	c.mergeResources()
	slices.SortStableFunc(c.found, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Device, b.Device))
	})
	return c.found
}

// listTheirs returns the kubelet's devices of the resources to compare: those that this plugin
// would advertise, and those that consist of GPUs.
func listTheirs(o Ours, t Theirs) listings {
	theirs := listings{}
	for name, devices := range t.Devices {
		known := slices.ContainsFunc(o.Plan.Resources, func(r plan.Resource) bool { return r.Name == name })
		for _, d := range devices {
			if known || isGPU(d.ID) {
				theirs.addID(name, d.ID, func(l *listing) { l.numa = d.NUMA })
			}
		}
	}
	for at, l := range theirs {
		slices.Sort(l.ids)
		theirs[at] = l
	}
	return theirs
}

// compareDevice compares the listings of one GPU or MIG device.
func (c *comparison) compareDevice(id gpu.UUID) {
	ours, theirs := c.ours.namesOf(id, c.names), c.theirs.namesOf(id, c.names)
	for _, name := range ours {
		if slices.Contains(theirs, name) {
			c.compareBoth(resourceDevice{name, id})
		}
	}
	onlyOurs := slices.DeleteFunc(slices.Clone(ours), func(name string) bool { return slices.Contains(theirs, name) })
	onlyTheirs := slices.DeleteFunc(slices.Clone(theirs), func(name string) bool { return slices.Contains(ours, name) })
	if len(onlyOurs) > 0 && len(onlyTheirs) > 0 {
		c.found = append(c.found, Difference{
			Kind: KindName, Resource: onlyOurs[0], Device: id, Ours: strings.Join(onlyOurs, ", "), Theirs: strings.Join(onlyTheirs, ", "),
			Message: "pods that request one name do not get the other: check resources, sharing and migStrategy of the configuration",
		})
		if d := c.ours[resourceDevice{onlyOurs[0], id}].device; !d.Healthy() {
			c.addUnhealthy(resourceDevice{onlyOurs[0], id}, d, c.holderNames(resourceDevice{onlyTheirs[0], id}))
		}
		return
	}
	for _, name := range onlyOurs {
		c.addOnlyOurs(resourceDevice{name, id})
	}
	for _, name := range onlyTheirs {
		c.addOnlyTheirs(resourceDevice{name, id})
	}
}

// compareBoth compares a part that both list.
func (c *comparison) compareBoth(at resourceDevice) {
	ours, theirs := c.ours[at], c.theirs[at]
	d := ours.device
	healthy := fmt.Sprintf("%d of %d", len(theirs.ids), max(c.maxSeen[at], len(theirs.ids)))
	slices.Sort(ours.ids)
	switch {
	case !d.Healthy():
		c.addUnhealthy(at, d, c.holderNames(at))
	case len(theirs.ids) < len(ours.ids) && c.maxSeen[at] >= len(ours.ids):
		c.found = append(c.found, Difference{
			Kind: KindHealth, Resource: at.resource, Device: at.id, Ours: "Healthy", Theirs: healthy + " given away",
			Message: "the kubelet had more replicas before: the other plugin reports some of them unhealthy, or lists fewer",
		})
	case !slices.Equal(ours.ids, theirs.ids):
		c.found = append(c.found, Difference{
			Kind: KindReplicas, Resource: at.resource, Device: at.id, Ours: describeIDs(ours.ids), Theirs: describeIDs(theirs.ids),
			Message: "see sharing of the configuration",
		})
	}
	if c.checkpoint {
		return
	}
	var node []int64
	if d.NUMANode >= 0 {
		node = []int64{int64(d.NUMANode)}
	}
	if !slices.Equal(node, theirs.numa) {
		c.found = append(c.found, Difference{Kind: KindNUMA, Resource: at.resource, Device: at.id, Ours: describeNodes(node), Theirs: describeNodes(theirs.numa)})
	}
}

// addUnhealthy adds the difference of a device that this plugin would report unhealthy and the
// other plugin reports healthy. held names the containers that hold the device; "": none does.
func (c *comparison) addUnhealthy(at resourceDevice, d plan.Device, held string) {
	message := d.Fault.Message
	if held != "" {
		message += "; " + held + " has it"
	}
	c.found = append(c.found, Difference{
		Kind: KindHealth, Resource: at.resource, Device: at.id, Ours: "Unhealthy", Theirs: "Healthy",
		Reason: d.Fault.Reason, Message: message, Since: d.Since,
	})
}

// holderNames returns the names of the containers that have the part.
func (c *comparison) holderNames(at resourceDevice) string { return strings.Join(c.holders[at], ", ") }

// addOnlyOurs adds the difference of a device that only this plugin lists.
func (c *comparison) addOnlyOurs(at resourceDevice) {
	l := c.ours[at]
	if !l.device.Healthy() {
		return // the kubelet does not list unhealthy devices, so both may report it unhealthy
	}
	d := Difference{Kind: KindDevice, Resource: at.resource, Device: at.id, Ours: describeIDs(l.ids), Theirs: "none", Message: "the kubelet has had none since the comparison began: the other plugin does not list it, or reports it unhealthy"}
	if c.maxSeen[at] > 0 {
		d.Kind, d.Ours, d.Theirs = KindHealth, "Healthy", "Unhealthy"
		d.Message = "the kubelet had it before: the other plugin reports it unhealthy, or no longer lists it"
	}
	c.found = append(c.found, d)
}

// addOnlyTheirs adds the difference of a device that only the other plugin lists.
func (c *comparison) addOnlyTheirs(at resourceDevice) {
	d := Difference{Kind: KindDevice, Resource: at.resource, Device: at.id, Ours: "none", Theirs: describeIDs(c.theirs[at].ids)}
	if leftOut, isLeftOut := c.leftOut[at.id]; isLeftOut {
		d.Reason, d.Message = leftOut.Reason, "left out: "+leftOut.Message
	}
	c.found = append(c.found, d)
}

// mergeResources replaces the differences of a resource that only one plugin has by a
// single one: the name is the problem.
func (c *comparison) mergeResources() {
	ours, theirs := c.ours.resourceNames(), c.theirs.resourceNames()
	for _, name := range slices.Sorted(maps.Keys(c.names)) {
		if ours[name] && theirs[name] {
			continue
		}
		var merged []Difference
		devices := 0
		for _, d := range c.found {
			if d.Resource == name && (d.Kind == KindDevice || d.Kind == KindHealth) && d.Reason == "" {
				merged = append(merged, d)
				at := resourceDevice{name, d.Device}
				devices += len(c.ours[at].ids) + len(c.theirs[at].ids)
			}
		}
		if len(merged) == 0 {
			continue
		}
		difference := Difference{Kind: KindResource, Resource: name, Ours: strconv.Itoa(devices) + " devices", Theirs: "none", Message: "the kubelet has no healthy device of it: does the other plugin run?"}
		if theirs[name] {
			difference.Ours, difference.Theirs, difference.Message = difference.Theirs, difference.Ours, "nothing in the configuration creates this resource here"
		}
		c.found = slices.DeleteFunc(c.found, func(d Difference) bool { return slices.Contains(merged, d) })
		c.found = append(c.found, difference)
	}
}

// describeIDs returns the ID of a single device, or the number of replicas.
func describeIDs(ids []string) string {
	if len(ids) == 1 {
		return ids[0]
	}
	return strconv.Itoa(len(ids)) + " replicas"
}

func describeNodes(numa []int64) string {
	if len(numa) == 0 {
		return "no node"
	}
	var all []string
	for _, n := range numa {
		all = append(all, strconv.FormatInt(n, 10))
	}
	return "node " + strings.Join(all, ", ")
}
