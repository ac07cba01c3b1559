package shadow

import (
	"maps"
	"time"
)

// History compares again and again, and remembers what makes later comparisons
// better: what the kubelet has had before, what was free when a container got its
// GPUs, since when something differs. One goroutine uses it.
type History struct {
	// Settle leaves out what is seen for the first time: of a GPU that breaks, one
	// plugin hears a moment before the other. A placement is a fact at once.
	Settle bool

	most       map[part]int
	first      map[Difference]time.Time // by key
	placements placements
}

// Look compares the two as they are now.
func (h *History) Look(o Ours, t Theirs, now time.Time) []Difference {
	found := append(compare(o, t, h.most), h.placements.look(o, t, now)...)
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
	h.count(o, t)
	return all
}

// maxParts bounds the GPUs and MIG devices that are remembered, though nobody lists
// them any more.
const maxParts = 4096

// count remembers how many IDs the kubelet has of each part.
func (h *History) count(o Ours, t Theirs) {
	theirs := list(o, t)
	if h.most == nil {
		h.most = map[part]int{}
	}
	for at, l := range theirs {
		h.most[at] = max(h.most[at], len(l.ids))
	}
	if len(h.most) <= maxParts {
		return
	}
	listed := map[part]bool{}
	for _, r := range o.Plan.Resources {
		for _, d := range r.Devices {
			listed[part{r.Name, base(d.ID)}] = true
		}
	}
	maps.DeleteFunc(h.most, func(at part, _ int) bool {
		_, there := theirs[at]
		return !there && !listed[at]
	})
}

// Changes are the differences of now that were not there before, and those of
// before that are not there any more.
func Changes(before, now []Difference) (began, ended []Difference) {
	return lacking(now, before), lacking(before, now)
}

// lacking are those of all that are not in the others.
func lacking(all, others []Difference) []Difference {
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
