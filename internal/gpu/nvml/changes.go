package nvml

import (
	"maps"
	"slices"

	"github.com/gpuready/gpuready/internal/gpu"
)

// watchable reports whether a GPU answers and so can be watched. The zero Device, which
// stands for a missing GPU, is not watchable.
func watchable(d gpu.Device) bool {
	return d.UUID != "" && d.Fault.Reason != gpu.ReasonLost && d.Fault.Reason != gpu.ReasonUnreadable
}

// countWatchable counts the GPUs with a UUID that can be watched: several may have the same.
func countWatchable(list []gpu.Device, id gpu.UUID) (n int) {
	for _, d := range list {
		if d.UUID == id && watchable(d) {
			n++
		}
	}
	return n
}

// isOfProgram reports whether an event is an error of a program, which tells nothing of its GPU.
func isOfProgram(e gpu.Event) bool {
	info, _ := gpu.XID(e.XID)
	return e.Kind == gpu.EventXID && info.Class == gpu.XIDApplication && !info.Hardware
}

func devices(all []reading) []gpu.Device {
	list := make([]gpu.Device, 0, len(all))
	for _, r := range all {
		list = append(list, r.Device)
	}
	return list
}

func find(list []gpu.Device, id gpu.UUID) gpu.Device {
	d, _ := gpu.Snapshot{Devices: list}.Device(id)
	return d
}

// changes returns an event for each GPU that changed between two probes.
func changes(before, after []gpu.Device) []gpu.Event {
	var events []gpu.Event
	add := func(kind gpu.EventKind, id gpu.UUID, message string) {
		events = append(events, gpu.Event{Kind: kind, UUID: id, Message: message})
	}
	old := map[gpu.UUID][]gpu.Device{} // several GPUs may have one UUID
	for _, d := range before {
		old[d.UUID] = append(old[d.UUID], d)
	}
	for _, d := range after {
		var was gpu.Device
		known := len(old[d.UUID]) > 0
		if known {
			was, old[d.UUID] = old[d.UUID][0], old[d.UUID][1:]
		}
		was.Index = d.Index // indexes shift when another GPU goes; that is no change of this one
		switch {
		case !known:
			add(gpu.EventChanged, d.UUID, "the GPU is new")
		case d.Fault != was.Fault && d.Fault.Reason == gpu.ReasonLost:
			add(gpu.EventLost, d.UUID, d.Fault.Message)
		case d.Fault != was.Fault && d.Fault == gpu.Fault{}:
			add(gpu.EventChanged, d.UUID, "the GPU answers again")
		case d.Fault != was.Fault:
			add(gpu.EventChanged, d.UUID, d.Fault.Message)
		case !d.Equal(was):
			add(gpu.EventChanged, d.UUID, "the GPU or its MIG layout changed")
		}
	}
	for _, id := range slices.Sorted(maps.Keys(old)) {
		if len(old[id]) == 0 {
			continue
		}
		add(gpu.EventChanged, id, "the driver does not count the GPU any more")
	}
	return events
}
