package shadow

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

// part is a GPU or MIG device under one name.
type part struct {
	resource string
	id       gpu.UUID
}

// listed is what one of the two has of a part.
type listed struct {
	ids    []string // sorted
	device plan.Device
	numa   []int64
}

// table is what one of the two lists, by part.
type table map[part]listed

func (t table) add(resource, id string, also func(*listed)) {
	at := part{resource, base(id)}
	l := t[at]
	l.ids = append(l.ids, id)
	also(&l)
	t[at] = l
}

// resources are the names in the table.
func (t table) resources() map[string]bool {
	names := map[string]bool{}
	for at := range t {
		names[at.resource] = true
	}
	return names
}

// names are those under which the device is listed, sorted.
func (t table) names(id gpu.UUID, all map[string]bool) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if _, there := t[part{name, id}]; there {
			names = append(names, name)
		}
	}
	return names
}

// comparison is of one moment.
type comparison struct {
	ours, theirs table
	names        map[string]bool // of resources
	left         map[gpu.UUID]plan.Left
	holders      map[part][]string
	most         map[part]int // how many IDs of a part the kubelet has had before
	checkpoint   bool
	found        []Difference
}

// compare lists the differences in what is advertised. most is how many healthy
// IDs the kubelet has had of each part before.
func compare(o Ours, t Theirs, most map[part]int) []Difference {
	c := comparison{ours: table{}, theirs: list(o, t), most: most, left: map[gpu.UUID]plan.Left{}, holders: map[part][]string{}, checkpoint: t.Checkpoint}
	for _, r := range o.Plan.Resources {
		for _, d := range r.Devices {
			c.ours.add(r.Name, d.ID, func(l *listed) { l.device = d })
		}
	}
	for _, l := range o.Plan.Left {
		id := l.GPU
		if l.MIG.UUID != "" {
			id = l.MIG.UUID
		}
		c.left[id] = l
	}
	for _, h := range t.Holdings {
		for _, id := range h.IDs {
			at := part{h.Resource, base(id)}
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
		c.device(id)
	}
	c.whole()
	slices.SortStableFunc(c.found, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Device, b.Device))
	})
	return c.found
}

// list is what the kubelet has of the resources that concern us: those that we
// would advertise, and those that are made of GPUs.
func list(o Ours, t Theirs) table {
	theirs := table{}
	for name, devices := range t.Devices {
		known := slices.ContainsFunc(o.Plan.Resources, func(r plan.Resource) bool { return r.Name == name })
		for _, d := range devices {
			if known || ofGPU(d.ID) {
				theirs.add(name, d.ID, func(l *listed) { l.numa = d.NUMA })
			}
		}
	}
	for at, l := range theirs {
		slices.Sort(l.ids)
		theirs[at] = l
	}
	return theirs
}

// device compares what the two make of one GPU or MIG device.
func (c *comparison) device(id gpu.UUID) {
	ours, theirs := c.ours.names(id, c.names), c.theirs.names(id, c.names)
	for _, name := range ours {
		if slices.Contains(theirs, name) {
			c.both(part{name, id})
		}
	}
	onlyOurs := slices.DeleteFunc(slices.Clone(ours), func(name string) bool { return slices.Contains(theirs, name) })
	onlyTheirs := slices.DeleteFunc(slices.Clone(theirs), func(name string) bool { return slices.Contains(ours, name) })
	if len(onlyOurs) > 0 && len(onlyTheirs) > 0 {
		c.found = append(c.found, Difference{
			Kind: KindName, Resource: onlyOurs[0], Device: id, Ours: strings.Join(onlyOurs, ", "), Theirs: strings.Join(onlyTheirs, ", "),
			Message: "pods that ask for the one name do not get the other: see resources, sharing and migStrategy of the configuration",
		})
		if d := c.ours[part{onlyOurs[0], id}].device; !d.Healthy() {
			c.unhealthy(part{onlyOurs[0], id}, d, c.held(part{onlyTheirs[0], id}))
		}
		return
	}
	for _, name := range onlyOurs {
		c.onlyOurs(part{name, id})
	}
	for _, name := range onlyTheirs {
		c.onlyTheirs(part{name, id})
	}
}

// both compares a part that both list.
func (c *comparison) both(at part) {
	ours, theirs := c.ours[at], c.theirs[at]
	d := ours.device
	served := fmt.Sprintf("%d of %d", len(theirs.ids), max(c.most[at], len(theirs.ids)))
	slices.Sort(ours.ids)
	switch {
	case !d.Healthy():
		c.unhealthy(at, d, c.held(at))
	case len(theirs.ids) < len(ours.ids) && c.most[at] >= len(ours.ids):
		c.found = append(c.found, Difference{
			Kind: KindHealth, Resource: at.resource, Device: at.id, Ours: "Healthy", Theirs: served + " given away",
			Message: "the kubelet had more of it before: the other plugin holds some of its replicas unhealthy, or lists fewer",
		})
	case !slices.Equal(ours.ids, theirs.ids):
		c.found = append(c.found, Difference{
			Kind: KindReplicas, Resource: at.resource, Device: at.id, Ours: count(ours.ids), Theirs: count(theirs.ids),
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
		c.found = append(c.found, Difference{Kind: KindNUMA, Resource: at.resource, Device: at.id, Ours: nodes(node), Theirs: nodes(theirs.numa)})
	}
}

// unhealthy is a device that ours would hold back and the other gives away.
func (c *comparison) unhealthy(at part, d plan.Device, held string) {
	message := d.Fault.Message
	if held != "" {
		message += "; " + held + " has it"
	}
	c.found = append(c.found, Difference{
		Kind: KindHealth, Resource: at.resource, Device: at.id, Ours: "Unhealthy", Theirs: "Healthy",
		Reason: d.Fault.Reason, Message: message, Since: d.Since,
	})
}

// held names the containers that have the part.
func (c *comparison) held(at part) string { return strings.Join(c.holders[at], ", ") }

func (c *comparison) onlyOurs(at part) {
	l := c.ours[at]
	if !l.device.Healthy() {
		return // the kubelet does not tell unhealthy ones: as far as one can see both hold it back
	}
	d := Difference{Kind: KindDevice, Resource: at.resource, Device: at.id, Ours: count(l.ids), Theirs: "none", Message: "the kubelet has had none since this began: the other plugin does not list it, or holds it unhealthy"}
	if c.most[at] > 0 {
		d.Kind, d.Ours, d.Theirs = KindHealth, "Healthy", "Unhealthy"
		d.Message = "the kubelet had it before: the other plugin holds it unhealthy, or lists it no more"
	}
	c.found = append(c.found, d)
}

func (c *comparison) onlyTheirs(at part) {
	d := Difference{Kind: KindDevice, Resource: at.resource, Device: at.id, Ours: "none", Theirs: count(c.theirs[at].ids)}
	if l, is := c.left[at.id]; is {
		d.Reason, d.Message = l.Reason, "left out: "+l.Message
	}
	c.found = append(c.found, d)
}

// whole puts one difference in the place of those of a resource that only one of
// the two has: it is the name that is to be seen to.
func (c *comparison) whole() {
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
			one.Ours, one.Theirs, one.Message = one.Theirs, one.Ours, "nothing in the configuration makes this resource here"
		}
		c.found = slices.DeleteFunc(c.found, func(d Difference) bool { return slices.Contains(mine, d) })
		c.found = append(c.found, one)
	}
}

// count is the ID of a device alone, or how many replicas there are.
func count(ids []string) string {
	if len(ids) == 1 {
		return ids[0]
	}
	return strconv.Itoa(len(ids)) + " replicas"
}

func nodes(numa []int64) string {
	if len(numa) == 0 {
		return "no node"
	}
	var all []string
	for _, n := range numa {
		all = append(all, strconv.FormatInt(n, 10))
	}
	return "node " + strings.Join(all, ", ")
}
