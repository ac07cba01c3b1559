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

// placements holds the assessment of each container with several GPUs. It is made once, when the
// container appears: only then it is known which GPUs were free.
type placements struct {
	lastQuery    Theirs // what the kubelet had at the last query
	hasLastQuery bool
	assessed     map[string]assessment // by container and resource
}

// assessment is the assessment of one container's GPUs.
type assessment struct {
	holding Allocation
	at      time.Time  // when it was made
	better  Difference // from the best choice, if worse
	worse   bool       // a better choice was possible
}

// assessContainers assesses new containers, forgets those that are gone, and returns the
// differences of all that have a worse choice than necessary.
func (p *placements) assessContainers(o Ours, t Theirs, now time.Time) []Difference {
	next := map[string]assessment{}
	var newHoldings []Allocation
	for _, h := range t.Allocations {
		key := h.String() + " " + h.Resource
		if earlier, known := p.assessed[key]; known && slices.Equal(earlier.holding.IDs, h.IDs) {
			next[key] = earlier
			continue
		}
		newHoldings = append(newHoldings, h)
	}
	for _, h := range newHoldings {
		d, worse := comparePlacement(o, h, p.freeDevices(t, h, newHoldings), p.hasLastQuery)
		d.Since = now
		next[h.String()+" "+h.Resource] = assessment{h, now, d, worse}
	}
	p.assessed, p.lastQuery, p.hasLastQuery = next, t, true
	var found []Difference
	for _, h := range t.Allocations { // in the kubelet's order
		if earlier := next[h.String()+" "+h.Resource]; earlier.worse {
			found = append(found, earlier.better)
		}
	}
	return found
}

// freeDevices returns the devices that the kubelet could have allocated to the container:
// those that were healthy and free at the last query. The order of containers that are
// new since then is unknown, so the devices of the others count as taken. For
// containers present at the first query it returns the devices free now. The
// container's own devices were free.
func (p *placements) freeDevices(t Theirs, h Allocation, newHoldings []Allocation) []string {
	from, taken := p.lastQuery, slices.Clone(p.lastQuery.Allocations)
	if !p.hasLastQuery {
		from, taken = t, slices.Clone(t.Allocations)
	}
	taken = append(taken, newHoldings...)
	free := slices.Clone(h.IDs)
	for _, d := range from.Devices[h.Resource] {
		if !slices.Contains(h.IDs, d.ID) && !slices.ContainsFunc(taken, func(o Allocation) bool {
			return o.Resource == h.Resource && o.String() != h.String() && slices.Contains(o.IDs, d.ID)
		}) {
			free = append(free, d.ID)
		}
	}
	return free
}

// comparePlacement compares a container's GPUs with those that this plugin would have chosen from
// free. It reports whether the latter are nearer to each other. Only whole GPUs that are not
// shared are compared. wasWatched means that free is as it was when the container got its GPUs.
func comparePlacement(o Ours, h Allocation, free []string, wasWatched bool) (Difference, bool) {
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
	score, bestScore := topology.Score(toUUIDs(h.IDs)), topology.Score(toUUIDs(best))
	if bestScore <= score {
		return Difference{}, false
	}
	message := "of what was free then, unless the kubelet's topology manager left no choice"
	if !wasWatched {
		message = "of what is free now: the container is older than the comparison"
	}
	return Difference{
		Kind: KindPlacement, Resource: h.Resource, Pod: h.String(),
		Ours:    fmt.Sprintf("score %d: %s", bestScore, describeGPUs(o, best)),
		Theirs:  fmt.Sprintf("score %d: %s", score, describeGPUs(o, h.IDs)),
		Message: message,
	}, true
}

func toUUIDs(ids []string) []gpu.UUID {
	var all []gpu.UUID
	for _, id := range ids {
		all = append(all, gpu.UUID(id))
	}
	return all
}

// describeGPUs names GPUs by index, as people do.
func describeGPUs(o Ours, ids []string) string {
	var all []string
	for _, d := range o.Snapshot.Devices {
		if slices.Contains(ids, string(d.UUID)) {
			all = append(all, fmt.Sprint(d.Index))
		}
	}
	return "GPUs " + strings.Join(all, ", ")
}
