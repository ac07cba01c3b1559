package compare

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/deviceplugin/prefer"
	"github.com/gpuready/gpuready/internal/gpu"
)

// placements caches the assessment of each container with several GPUs: which GPUs were
// free when it got them is known only at that time.
type placements struct {
	before   Theirs
	queried  bool
	assessed map[string]assessment // by container and resource
}

// assessment is the assessment of one container's GPUs.
type assessment struct {
	holding Holding
	at      time.Time
	better  Difference
	worse   bool // better has the details
}

// update assesses new containers and removes those that are gone.
func (p *placements) update(o Ours, t Theirs, now time.Time) []Difference {
	next := map[string]assessment{}
	var fresh []Holding
	for _, h := range t.Holdings {
		key := h.String() + " " + h.Resource
		if j, known := p.assessed[key]; known && slices.Equal(j.holding.IDs, h.IDs) {
			next[key] = j
			continue
		}
		fresh = append(fresh, h)
	}
	for _, h := range fresh {
		d, worse := comparePlacement(o, h, p.free(t, h, fresh), p.queried)
		d.Since = now
		next[h.String()+" "+h.Resource] = assessment{h, now, d, worse}
	}
	p.assessed, p.before, p.queried = next, t, true
	var found []Difference
	for _, h := range t.Holdings { // in the kubelet's order
		if j := next[h.String()+" "+h.Resource]; j.worse {
			found = append(found, j.better)
		}
	}
	return found
}

// free returns the devices that the kubelet could have allocated to the container:
// those that were healthy and free at the last query. The order of containers that are
// new since then is unknown, so the devices of the others count as taken. For
// containers present at the first query it returns the devices free now. The
// container's own devices were free.
func (p *placements) free(t Theirs, h Holding, fresh []Holding) []string {
	from, taken := p.before, slices.Clone(p.before.Holdings)
	if !p.queried {
		from, taken = t, slices.Clone(t.Holdings)
	}
	taken = append(taken, fresh...)
	free := slices.Clone(h.IDs)
	for _, d := range from.Devices[h.Resource] {
		if !slices.Contains(h.IDs, d.ID) && !slices.ContainsFunc(taken, func(o Holding) bool {
			return o.Resource == h.Resource && o.String() != h.String() && slices.Contains(o.IDs, d.ID)
		}) {
			free = append(free, d.ID)
		}
	}
	return free
}

// comparePlacement returns what ours would have preferred, if that is better. Only
// whole unshared GPUs can be near to each other or far.
func comparePlacement(o Ours, h Holding, free []string, watched bool) (Difference, bool) {
	i := slices.IndexFunc(o.Plan.Resources, func(r plan.Resource) bool { return r.Name == h.Resource })
	if i < 0 || len(h.IDs) < 2 {
		return Difference{}, false
	}
	var devices []prefer.Device
	known := map[string]bool{}
	for _, d := range o.Plan.Resources[i].Devices {
		if d.MIG.UUID != "" || d.Replicas > 0 {
			return Difference{}, false
		}
		known[d.ID] = true
		devices = append(devices, prefer.Device{ID: d.ID, GPU: d.GPU, LastResort: !d.Healthy()})
	}
	if slices.ContainsFunc(h.IDs, func(id string) bool { return !known[id] }) {
		return Difference{}, false // reported as another difference
	}
	free = slices.DeleteFunc(slices.Clone(free), func(id string) bool { return !known[id] })
	topology := prefer.NewTopology(o.Snapshot)
	best, err := prefer.New(topology, devices, prefer.Options{Policy: prefer.Aligned}).Prefer(free, nil, len(h.IDs))
	if err != nil {
		return Difference{}, false
	}
	given, most := topology.Score(uuids(h.IDs)), topology.Score(uuids(best))
	if most <= given {
		return Difference{}, false
	}
	message := "of what was free then, unless the kubelet's topology manager left no choice"
	if !watched {
		message = "of what is free now: the container is older than the comparison"
	}
	return Difference{
		Kind: KindPlacement, Resource: h.Resource, Pod: h.String(),
		Ours:    fmt.Sprintf("score %d: %s", most, indexes(o, best)),
		Theirs:  fmt.Sprintf("score %d: %s", given, indexes(o, h.IDs)),
		Message: message,
	}, true
}

func uuids(ids []string) []gpu.UUID {
	var all []gpu.UUID
	for _, id := range ids {
		all = append(all, gpu.UUID(id))
	}
	return all
}

// indexes names GPUs by index, as people do.
func indexes(o Ours, ids []string) string {
	var all []string
	for _, d := range o.Snapshot.Devices {
		if slices.Contains(ids, string(d.UUID)) {
			all = append(all, fmt.Sprint(d.Index))
		}
	}
	return "GPUs " + strings.Join(all, ", ")
}
