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

// part is a GPU or MIG device under one resource name.
type part struct {
	resource string
	id       gpu.UUID
}

// entry is a part in one plugin's list.
type entry struct {
	ids    []string // sorted
	device plan.Device
	numa   []int64
}

// table is one plugin's list, by part.
type table map[part]entry

func (t table) add(resource, id string, also func(*entry)) {
	at := part{resource, deviceOf(id)}
	l := t[at]
	l.ids = append(l.ids, id)
	also(&l)
	t[at] = l
}

// resources returns the resource names in the table.
func (t table) resources() map[string]bool {
	names := map[string]bool{}
	for at := range t {
		names[at.resource] = true
	}
	return names
}

// names returns the names under which the device is listed, sorted.
func (t table) names(id gpu.UUID, all map[string]bool) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if _, there := t[part{name, id}]; there {
			names = append(names, name)
		}
	}
	return names
}

// comparison is a comparison at one moment.
type comparison struct {
	ours, theirs table
	names        map[string]bool // of resources
	leftOut      map[gpu.UUID]plan.LeftOut
	holders      map[part][]string
	maxSeen      map[part]int // the most IDs of each part that the kubelet has had
	checkpoint   bool
	found        []Difference
}

// compare lists the differences in what is advertised. maxSeen is the largest number of
// healthy IDs of each part that the kubelet has had.
func compare(o Ours, t Theirs, maxSeen map[part]int) []Difference {
	c := comparison{ours: table{}, theirs: listTheirs(o, t), maxSeen: maxSeen, leftOut: map[gpu.UUID]plan.LeftOut{}, holders: map[part][]string{}, checkpoint: t.Checkpoint}
	for _, r := range o.Plan.Resources {
		for _, d := range r.Devices {
			c.ours.add(r.Name, d.ID, func(l *entry) { l.device = d })
		}
	}
	for _, l := range o.Plan.LeftOut {
		id := l.GPU
		if l.MIG.UUID != "" {
			id = l.MIG.UUID
		}
		c.leftOut[id] = l
	}
	for _, h := range t.Holdings {
		for _, id := range h.IDs {
			at := part{h.Resource, deviceOf(id)}
			if !slices.Contains(c.holders[at], h.String()) {
				c.holders[at] = append(c.holders[at], h.String())
			}
		}
	}
	c.names = c.ours.resources()
	maps.Copy(c.names, c.theirs.resources())
	ids := map[gpu.UUID]bool{}
	for _, t := range []table{c.ours, c.theirs} {
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

// listTheirs returns what the kubelet has of the relevant resources: those that we
// would advertise, and those that consist of GPUs.
func listTheirs(o Ours, t Theirs) table {
	theirs := table{}
	for name, devices := range t.Devices {
		known := slices.ContainsFunc(o.Plan.Resources, func(r plan.Resource) bool { return r.Name == name })
		for _, d := range devices {
			if known || isGPU(d.ID) {
				theirs.add(name, d.ID, func(l *entry) { l.numa = d.NUMA })
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
	ours, theirs := c.ours.names(id, c.names), c.theirs.names(id, c.names)
	for _, name := range ours {
		if slices.Contains(theirs, name) {
			c.compareBoth(part{name, id})
		}
	}
	onlyOurs := slices.DeleteFunc(slices.Clone(ours), func(name string) bool { return slices.Contains(theirs, name) })
	onlyTheirs := slices.DeleteFunc(slices.Clone(theirs), func(name string) bool { return slices.Contains(ours, name) })
	if len(onlyOurs) > 0 && len(onlyTheirs) > 0 {
		c.found = append(c.found, Difference{
			Kind: KindName, Resource: onlyOurs[0], Device: id, Ours: strings.Join(onlyOurs, ", "), Theirs: strings.Join(onlyTheirs, ", "),
			Message: "pods that request one name do not get the other: check resources, sharing and migStrategy of the configuration",
		})
		if d := c.ours[part{onlyOurs[0], id}].device; !d.Healthy() {
			c.addUnhealthy(part{onlyOurs[0], id}, d, c.holderNames(part{onlyTheirs[0], id}))
		}
		return
	}
	for _, name := range onlyOurs {
		c.addOnlyOurs(part{name, id})
	}
	for _, name := range onlyTheirs {
		c.addOnlyTheirs(part{name, id})
	}
}

// compareBoth compares a part that both list.
func (c *comparison) compareBoth(at part) {
	ours, theirs := c.ours[at], c.theirs[at]
	d := ours.device
	served := fmt.Sprintf("%d of %d", len(theirs.ids), max(c.maxSeen[at], len(theirs.ids)))
	slices.Sort(ours.ids)
	switch {
	case !d.Healthy():
		c.addUnhealthy(at, d, c.holderNames(at))
	case len(theirs.ids) < len(ours.ids) && c.maxSeen[at] >= len(ours.ids):
		c.found = append(c.found, Difference{
			Kind: KindHealth, Resource: at.resource, Device: at.id, Ours: "Healthy", Theirs: served + " given away",
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

// addUnhealthy adds a device that ours would report unhealthy and the other reports
// healthy.
func (c *comparison) addUnhealthy(at part, d plan.Device, held string) {
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
func (c *comparison) holderNames(at part) string { return strings.Join(c.holders[at], ", ") }

func (c *comparison) addOnlyOurs(at part) {
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

func (c *comparison) addOnlyTheirs(at part) {
	d := Difference{Kind: KindDevice, Resource: at.resource, Device: at.id, Ours: "none", Theirs: describeIDs(c.theirs[at].ids)}
	if l, is := c.leftOut[at.id]; is {
		d.Reason, d.Message = l.Reason, "left out: "+l.Message
	}
	c.found = append(c.found, d)
}

// mergeResources replaces the differences of a resource that only one plugin has by a
// single one: the name is the problem.
func (c *comparison) mergeResources() {
	ours, theirs := c.ours.resources(), c.theirs.resources()
	for _, name := range slices.Sorted(maps.Keys(c.names)) {
		if ours[name] && theirs[name] {
			continue
		}
		var mine []Difference
		devices := 0
		for _, d := range c.found {
			if d.Resource == name && (d.Kind == KindDevice || d.Kind == KindHealth) && d.Reason == "" {
				mine = append(mine, d)
				at := part{name, d.Device}
				devices += len(c.ours[at].ids) + len(c.theirs[at].ids)
			}
		}
		if len(mine) == 0 {
			continue
		}
		one := Difference{Kind: KindResource, Resource: name, Ours: strconv.Itoa(devices) + " devices", Theirs: "none", Message: "the kubelet has no healthy device of it: does the other plugin run?"}
		if theirs[name] {
			one.Ours, one.Theirs, one.Message = one.Theirs, one.Ours, "nothing in the configuration creates this resource here"
		}
		c.found = slices.DeleteFunc(c.found, func(d Difference) bool { return slices.Contains(mine, d) })
		c.found = append(c.found, one)
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
