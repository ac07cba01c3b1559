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

// pause is how long the same ignored XID of a GPU is not logged again: a program
// that is wrong can make hundreds in a second.
const pause = time.Minute

// Journal remembers what it said last. One goroutine uses it at a time.
type Journal struct {
	log     *slog.Logger
	devices map[gpu.UUID]gpu.Fault
	left    map[string]bool
	ignored map[ignored]*repeated
}

type ignored struct {
	gpu gpu.UUID
	xid uint64
}

type repeated struct {
	said time.Time
	more int // since
}

// New makes a Journal that has said nothing.
func New(log *slog.Logger) *Journal {
	return &Journal{log: log, devices: map[gpu.UUID]gpu.Fault{}, left: map[string]bool{}, ignored: map[ignored]*repeated{}}
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
	j.told(p.Resources)
	j.leftOut(p.Left)
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
// reason.
func (j *Journal) leftOut(left []plan.Left) {
	now := map[string]bool{}
	for _, l := range left {
		line := fmt.Sprintf("%s %s %s %s", l.PCI, l.UUID(), l.Reason, l.Message)
		if now[line] = true; j.left[line] {
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
	key := ignored{e.UUID, e.XID}
	r, before := j.ignored[key]
	if before && now.Sub(r.said) < pause {
		r.more++
		return
	}
	args := []any{"gpu", string(e.UUID), "message", cmp.Or(e.Message, gpu.XIDText(e.XID))}
	if before && r.more > 0 {
		args = append(args, "more", r.more)
	}
	j.ignored[key] = &repeated{said: now}
	j.log.Info("XID that is not held against the GPU", args...)
}
