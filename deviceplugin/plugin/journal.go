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
// except for LogRefused.
type journal struct {
	log     *slog.Logger
	devices map[gpu.UUID]gpu.Fault // listed, or last logged as unhealthy
	leftOut map[string]gpu.UUID    // by their log line
	notes   map[gpuNote]bool
	ignored repeatFilter[ignoredXID]
	refused repeatFilter[refusedAllocation]
}

type gpuNote struct {
	gpu gpu.UUID
	gpu.Note
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

// deviceChange is a change of a device. Devices with equal changes share a line.
type deviceChange struct {
	resource        string
	before          gpu.Reason // why it was unhealthy; "": it is unhealthy now
	reason, message string     // why it is unhealthy; "": it is healthy again
}

// changedDevices lists the devices with one change.
type changedDevices struct {
	deviceChange
	ids   []gpu.UUID
	since time.Time // when the first of them changed
}

// LogPlan logs the differences from the previous plan.
func (j *journal) LogPlan(p plan.Plan) {
	j.logLeftOut(p)
	j.logChanges(p.Resources)
}

// logChanges logs each device that became unhealthy, or healthy again, or whose reason changed.
func (j *journal) logChanges(resources []plan.Resource) {
	current := map[gpu.UUID]gpu.Fault{}
	var changes []changedDevices
	add := func(c deviceChange, d plan.Device) {
		i := slices.IndexFunc(changes, func(other changedDevices) bool { return other.deviceChange == c })
		if i < 0 {
			i = len(changes)
			changes = append(changes, changedDevices{deviceChange: c, since: d.Since})
		}
		changes[i].ids = append(changes[i].ids, d.UUID())
		if d.Since.Before(changes[i].since) {
			changes[i].since = d.Since
		}
	}
	for _, r := range resources {
		for d := range r.Parts() {
			previous, known := j.devices[d.UUID()]
			current[d.UUID()] = d.Fault
			switch {
			case known && previous == d.Fault:
			case d.Healthy() && known && previous.Reason != "":
				add(deviceChange{resource: r.Name, before: previous.Reason}, d)
			case !d.Healthy():
				add(deviceChange{resource: r.Name, reason: string(d.Fault.Reason), message: d.Fault.Message}, d)
			}
		}
	}
	for id, previous := range j.devices { // the log's last line on it still says that it is unhealthy
		if _, isListed := current[id]; !isListed && previous.Reason != "" && len(current) < maxRemembered {
			current[id] = previous
		}
	}
	j.devices = current
	for _, c := range changes {
		if len(c.ids) >= minGrouped {
			j.logChange(c, fmt.Sprintf("%d devices are", len(c.ids)), "gpus", joinIDs(c.ids))
			continue
		}
		for _, id := range c.ids {
			j.logChange(c, "device is", "gpu", string(id))
		}
	}
}

// logChange logs one change. subject begins the sentence; key and ids name the devices.
func (j *journal) logChange(c changedDevices, subject, key, ids string) {
	if c.before != "" {
		j.log.Info(subject+" healthy again", key, ids, "resource", c.resource, "before", string(c.before))
		return
	}
	j.log.Warn(subject+" unhealthy", key, ids, "resource", c.resource, "reason", c.reason, "message", c.message, "since", c.since.UTC().Format(time.RFC3339Nano))
}

func joinIDs(ids []gpu.UUID) string {
	var all []string
	for _, id := range ids {
		all = append(all, string(id))
	}
	return strings.Join(all, ",")
}

// logLeftOut logs each device that is newly left out, or for another reason, and each
// that is listed again.
func (j *journal) logLeftOut(p plan.Plan) {
	lines := map[string]gpu.UUID{}
	wasLeftOut := map[gpu.UUID]bool{}
	for _, id := range j.leftOut {
		wasLeftOut[id] = true
	}
	for _, r := range p.Resources {
		for d := range r.Parts() {
			if wasLeftOut[d.UUID()] {
				j.log.Info("device is no longer left out", "gpu", string(d.UUID()), "resource", r.Name)
			}
		}
	}
	for _, l := range p.LeftOut {
		line := fmt.Sprintf("%s %s %s %s", l.PCI, l.UUID(), l.Reason, l.Message)
		_, wasLogged := j.leftOut[line]
		if lines[line] = l.UUID(); wasLogged {
			continue
		}
		level := slog.LevelWarn
		if l.AsConfigured() {
			level = slog.LevelInfo
		}
		j.log.Log(context.Background(), level, "device is left out", "gpu", string(l.UUID()), "index", l.Index, "pci", string(l.PCI), "reason", string(l.Reason), "message", l.Message)
	}
	j.leftOut = lines
}

// LogNotes logs each note on a GPU that is new, and each that has ended.
func (j *journal) LogNotes(all []gpu.Device) {
	current := map[gpuNote]bool{}
	for _, d := range all {
		for _, n := range d.Notes {
			note := gpuNote{d.UUID, n}
			if current[note] = true; !j.notes[note] {
				j.log.Warn("note on a GPU, which is allocated nevertheless", "gpu", string(d.UUID), "reason", string(n.Reason), "message", n.Message)
			}
		}
	}
	for note := range j.notes {
		if !current[note] {
			j.log.Info("note on a GPU has ended", "gpu", string(note.gpu), "reason", string(note.Reason))
		}
	}
	j.notes = current
}

// LogIgnored logs an XID that does not affect the GPU's health, and how often it occurred
// since it was last logged.
func (j *journal) LogIgnored(e gpu.Event, now time.Time) {
	if more, allowed := j.ignored.allow(ignoredXID{e.UUID, e.XID}, now); allowed {
		j.log.Info("XID that is not held against the GPU", appendCount(more, "gpu", string(e.UUID), "message", cmp.Or(e.Message, gpu.XIDText(e.XID)))...)
	}
}

// LogRefused logs why a container did not get devices, and how often that happened since
// it was last logged. It may be called concurrently.
func (j *journal) LogRefused(resource, reason, message string, now time.Time) {
	if more, allowed := j.refused.allow(refusedAllocation{resource, message}, now); allowed {
		j.log.Warn("allocation refused", appendCount(more, "resource", resource, "reason", reason, "message", message)...)
	}
}

// appendCount adds the number of events that were not logged, if any, to a line's attributes.
func appendCount(more int, args ...any) []any {
	if more > 0 {
		args = append(args, "more", more)
	}
	return args
}
