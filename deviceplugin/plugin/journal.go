package plugin

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

// minGrouped is the number of devices from which a common change is logged in one line.
const minGrouped = 4

// maxRemembered bounds the devices that are remembered after they are no longer listed.
const maxRemembered = 1024

// journal logs the changes of a node's devices: one line for each change, one for many that
// happen at once for the same reason, and at most one per interval for repeated events. It
// remembers the last logged state. It is for use by one goroutine at a time,
// except for Refused.
type journal struct {
	log     *slog.Logger
	devices map[gpu.UUID]gpu.Fault // listed, or last logged as unhealthy
	leftOut map[string]gpu.UUID    // by their log line
	ignored repeatFilter[ignoredXID]
	refused repeatFilter[refusedAllocation]
}

type ignoredXID struct {
	gpu gpu.UUID
	xid uint64
}

type refusedAllocation struct{ resource, message string }

// newJournal returns a journal that has logged nothing.
func newJournal(log *slog.Logger) *journal {
	return &journal{log: log, devices: map[gpu.UUID]gpu.Fault{}, leftOut: map[string]gpu.UUID{}}
}

// change is a change of a device. Devices with equal changes share a line.
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

// Plan logs the differences from the previous plan.
func (j *journal) Plan(p plan.Plan) {
	j.logLeftOut(p)
	j.logChanges(p.Resources)
}

func (j *journal) logChanges(resources []plan.Resource) {
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
	for id, was := range j.devices { // the log's last line on it still says that it is unhealthy
		if _, there := now[id]; !there && was.Reason != "" && len(now) < maxRemembered {
			now[id] = was
		}
	}
	j.devices = now
	for _, c := range changes {
		if len(c.ids) >= minGrouped {
			j.change(c, fmt.Sprintf("%d devices are", len(c.ids)), "gpus", names(c.ids))
			continue
		}
		for _, id := range c.ids {
			j.change(c, "device is", "gpu", string(id))
		}
	}
}

func (j *journal) change(c changed, who, key, ids string) {
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

// logLeftOut logs each device that is newly left out, or for another reason, and each
// that is listed again.
func (j *journal) logLeftOut(p plan.Plan) {
	now := map[string]gpu.UUID{}
	out := map[gpu.UUID]bool{}
	for _, id := range j.leftOut {
		out[id] = true
	}
	for _, r := range p.Resources {
		for d := range r.Parts() {
			if out[d.UUID()] {
				j.log.Info("device is no longer left out", "gpu", string(d.UUID()), "resource", r.Name)
			}
		}
	}
	for _, l := range p.LeftOut {
		line := fmt.Sprintf("%s %s %s %s", l.PCI, l.UUID(), l.Reason, l.Message)
		_, said := j.leftOut[line]
		if now[line] = l.UUID(); said {
			continue
		}
		level := slog.LevelWarn
		if l.AsConfigured() {
			level = slog.LevelInfo
		}
		j.log.Log(context.Background(), level, "device is left out", "gpu", string(l.UUID()), "index", l.Index, "pci", string(l.PCI), "reason", string(l.Reason), "message", l.Message)
	}
	j.leftOut = now
}

// Ignored logs an XID that does not affect the GPU's health, and how often it came
// since it was last logged.
func (j *journal) Ignored(e gpu.Event, now time.Time) {
	if more, is := j.ignored.allow(ignoredXID{e.UUID, e.XID}, now); is {
		j.log.Info("XID that is not held against the GPU", withCount(more, "gpu", string(e.UUID), "message", cmp.Or(e.Message, gpu.XIDText(e.XID)))...)
	}
}

// Refused logs why a container did not get devices, and how often that happened since
// it was last logged. It may be called concurrently.
func (j *journal) Refused(resource, reason, message string, now time.Time) {
	if more, is := j.refused.allow(refusedAllocation{resource, message}, now); is {
		j.log.Warn("allocation refused", withCount(more, "resource", resource, "reason", reason, "message", message)...)
	}
}

func withCount(more int, args ...any) []any {
	if more > 0 {
		args = append(args, "more", more)
	}
	return args
}
