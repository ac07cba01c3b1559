// Package journal writes the log of what becomes of a node's devices: one line
// for each change, one for many that change at once for the same reason, and no
// more than one in a while of what comes again and again.
package journal

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
)

// many is how many devices share a line rather than have one each, when the same
// happens to them at once.
const many = 4

// maxRemembered bounds the devices that are remembered, though they are listed no
// more.
const maxRemembered = 1024

// Journal remembers what it said last. One goroutine uses it at a time, but for
// Refused.
type Journal struct {
	log     *slog.Logger
	devices map[gpu.UUID]gpu.Fault // listed, or unhealthy when they were last
	left    map[string]gpu.UUID    // by what was said of them
	ignored repeats[ignored]
	refused repeats[refused]
}

type ignored struct {
	gpu gpu.UUID
	xid uint64
}

type refused struct{ resource, message string }

// New makes a Journal that has said nothing.
func New(log *slog.Logger) *Journal {
	return &Journal{log: log, devices: map[gpu.UUID]gpu.Fault{}, left: map[string]gpu.UUID{}}
}

// change is what happened to a device; those that differ in nothing else are told
// in one line.
type change struct {
	resource        string
	before          gpu.Reason // of a device that is healthy again
	reason, message string
}

type changed struct {
	change
	ids   []gpu.UUID
	since time.Time // the earliest
}

// Plan tells what is other than in the plan before.
func (j *Journal) Plan(p plan.Plan) {
	j.leftOut(p)
	j.told(p.Resources)
}

func (j *Journal) told(resources []plan.Resource) {
	now := map[gpu.UUID]gpu.Fault{}
	var changes []changed
	add := func(c change, d plan.Device) {
		i := slices.IndexFunc(changes, func(other changed) bool { return other.change == c })
		if i < 0 {
			i = len(changes)
			changes = append(changes, changed{change: c, since: d.Since})
		}
		changes[i].ids = append(changes[i].ids, d.UUID())
		if d.Since.Before(changes[i].since) {
			changes[i].since = d.Since
		}
	}
	for _, r := range resources {
		for d := range r.Parts() {
			was, before := j.devices[d.UUID()]
			now[d.UUID()] = d.Fault
			switch {
			case before && was == d.Fault:
			case d.Healthy() && before && was.Reason != "":
				add(change{resource: r.Name, before: was.Reason}, d)
			case !d.Healthy():
				add(change{resource: r.Name, reason: string(d.Fault.Reason), message: d.Fault.Message}, d)
			}
		}
	}
	for id, was := range j.devices { // the log's last word on it is still that it is unhealthy
		if _, there := now[id]; !there && was.Reason != "" && len(now) < maxRemembered {
			now[id] = was
		}
	}
	j.devices = now
	for _, c := range changes {
		if len(c.ids) >= many {
			j.change(c, fmt.Sprintf("%d devices are", len(c.ids)), "gpus", names(c.ids))
			continue
		}
		for _, id := range c.ids {
			j.change(c, "device is", "gpu", string(id))
		}
	}
}

func (j *Journal) change(c changed, who, key, ids string) {
	if c.before != "" {
		j.log.Info(who+" healthy again", key, ids, "resource", c.resource, "before", string(c.before))
		return
	}
	j.log.Warn(who+" unhealthy", key, ids, "resource", c.resource, "reason", c.reason, "message", c.message, "since", c.since.UTC().Format(time.RFC3339Nano))
}

func names(ids []gpu.UUID) string {
	var all []string
	for _, id := range ids {
		all = append(all, string(id))
	}
	return strings.Join(all, ",")
}

// leftOut has one line for each device that comes to be left out, or for another
// reason, and one when it is listed instead.
func (j *Journal) leftOut(p plan.Plan) {
	now := map[string]gpu.UUID{}
	out := map[gpu.UUID]bool{}
	for _, id := range j.left {
		out[id] = true
	}
	for _, r := range p.Resources {
		for d := range r.Parts() {
			if out[d.UUID()] {
				j.log.Info("device is left out no more", "gpu", string(d.UUID()), "resource", r.Name)
			}
		}
	}
	for _, l := range p.Left {
		line := fmt.Sprintf("%s %s %s %s", l.PCI, l.UUID(), l.Reason, l.Message)
		_, said := j.left[line]
		if now[line] = l.UUID(); said {
			continue
		}
		level := slog.LevelWarn
		if l.AsConfigured() {
			level = slog.LevelInfo
		}
		j.log.Log(context.Background(), level, "device is left out", "gpu", string(l.UUID()), "index", l.Index, "pci", string(l.PCI), "reason", string(l.Reason), "message", l.Message)
	}
	j.left = now
}

// Ignored tells of an XID that is not held against the GPU, and how often it came
// since it was told last.
func (j *Journal) Ignored(e gpu.Event, now time.Time) {
	if more, is := j.ignored.tell(ignored{e.UUID, e.XID}, now); is {
		j.log.Info("XID that is not held against the GPU", also(more, "gpu", string(e.UUID), "message", cmp.Or(e.Message, gpu.XIDText(e.XID)))...)
	}
}

// Refused tells why a container did not get devices, and how often that was so
// since it was told last. It may be called concurrently.
func (j *Journal) Refused(resource, reason, message string, now time.Time) {
	if more, is := j.refused.tell(refused{resource, message}, now); is {
		j.log.Warn("allocation refused", also(more, "resource", resource, "reason", reason, "message", message)...)
	}
}

func also(more int, args ...any) []any {
	if more > 0 {
		args = append(args, "more", more)
	}
	return args
}
