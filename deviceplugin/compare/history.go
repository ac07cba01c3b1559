package compare

import (
	"maps"
	"time"
)

// History compares repeatedly and remembers what later comparisons need: the devices that the
// kubelet has had before, the GPUs that were free when a container got its own, and when each
// difference began. It is for use by one goroutine.
type History struct {
	// Settle leaves out a difference until it is found a second time: when a GPU breaks, one
	// plugin notices it a moment before the other. A placement does not change, so it is not
	// left out.
	Settle bool

	maxSeen    map[resourceDevice]int
	first      map[Difference]time.Time // when each current difference was first found, by key
	placements placements
}

// Compare compares the current states.
func (h *History) Compare(o Ours, t Theirs, now time.Time) []Difference {
	found := append(compare(o, t, h.maxSeen), h.placements.assessContainers(o, t, now)...)
	first := map[Difference]time.Time{}
	var all []Difference
	for _, d := range found {
		key := d.key()
		since, known := h.first[key]
		if !known {
			since = now
		}
		first[key] = since
		if d.Since.IsZero() {
			d.Since = since
		}
		if known || !h.Settle || d.Kind == KindPlacement {
			all = append(all, d)
		}
	}
	h.first = first
	h.recordCounts(o, t)
	return all
}

// maxRemembered bounds the GPUs and MIG devices that are remembered after they are no longer
// listed.
const maxRemembered = 4096

// recordCounts records how many IDs the kubelet has of each part.
func (h *History) recordCounts(o Ours, t Theirs) {
	theirs := listTheirs(o, t)
	if h.maxSeen == nil {
		h.maxSeen = map[resourceDevice]int{}
	}
	for at, l := range theirs {
		h.maxSeen[at] = max(h.maxSeen[at], len(l.ids))
	}
	if len(h.maxSeen) <= maxRemembered {
		return
	}
	listed := map[resourceDevice]bool{}
	for _, r := range o.Plan.Resources {
		for _, d := range r.Devices {
			listed[resourceDevice{r.Name, deviceOf(d.ID)}] = true
		}
	}
	maps.DeleteFunc(h.maxSeen, func(at resourceDevice, _ int) bool {
		_, isTheirs := theirs[at]
		return !isTheirs && !listed[at]
	})
}

// Changes returns the new differences, and the earlier ones that have ended.
func Changes(before, after []Difference) (began, ended []Difference) {
	return missingFrom(after, before), missingFrom(before, after)
}

// missingFrom returns the differences of all that are not in others.
func missingFrom(all, others []Difference) []Difference {
	isOther := map[Difference]bool{}
	for _, d := range others {
		isOther[d.key()] = true
	}
	var out []Difference
	for _, d := range all {
		if !isOther[d.key()] {
			out = append(out, d)
		}
	}
	return out
}
