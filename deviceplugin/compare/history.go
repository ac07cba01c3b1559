package compare

import (
	"maps"
	"time"
)

// History repeats comparisons and remembers data for later ones: what the kubelet has
// had before, which GPUs were free when a container got its own, and when a difference
// began. It is for use by one goroutine.
type History struct {
	// Settle leaves out differences that are new: when a GPU breaks, one plugin notices it
	// a moment before the other. A placement is final at once.
	Settle bool

	maxSeen    map[part]int
	first      map[Difference]time.Time // by key
	placements placements
}

// Compare compares the current states.
func (h *History) Compare(o Ours, t Theirs, now time.Time) []Difference {
	found := append(compare(o, t, h.maxSeen), h.placements.update(o, t, now)...)
	first := map[Difference]time.Time{}
	var all []Difference
	for _, d := range found {
		key := d.key()
		at, before := h.first[key]
		if !before {
			at = now
		}
		first[key] = at
		if d.Since.IsZero() {
			d.Since = at
		}
		if before || !h.Settle || d.Kind == KindPlacement {
			all = append(all, d)
		}
	}
	h.first = first
	h.recordCounts(o, t)
	return all
}

// maxParts bounds the GPUs and MIG devices that are remembered after they are no longer
// listed.
const maxParts = 4096

// recordCounts records how many IDs the kubelet has of each part.
func (h *History) recordCounts(o Ours, t Theirs) {
	theirs := listTheirs(o, t)
	if h.maxSeen == nil {
		h.maxSeen = map[part]int{}
	}
	for at, l := range theirs {
		h.maxSeen[at] = max(h.maxSeen[at], len(l.ids))
	}
	if len(h.maxSeen) <= maxParts {
		return
	}
	listed := map[part]bool{}
	for _, r := range o.Plan.Resources {
		for _, d := range r.Devices {
			listed[part{r.Name, deviceOf(d.ID)}] = true
		}
	}
	maps.DeleteFunc(h.maxSeen, func(at part, _ int) bool {
		_, there := theirs[at]
		return !there && !listed[at]
	})
}

// Changes returns the new differences, and the earlier ones that have ended.
func Changes(before, now []Difference) (began, ended []Difference) {
	return missingFrom(now, before), missingFrom(before, now)
}

// missingFrom returns the differences of all that are not in others.
func missingFrom(all, others []Difference) []Difference {
	there := map[Difference]bool{}
	for _, d := range others {
		there[d.key()] = true
	}
	var out []Difference
	for _, d := range all {
		if !there[d.key()] {
			out = append(out, d)
		}
	}
	return out
}
