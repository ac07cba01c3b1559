package profile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/simulator/state"
)

// computeProfile is NVML_COMPUTE_INSTANCE_PROFILE_n_SLICE for n slices.
var computeProfile = map[uint32]uint32{1: 0, 2: 1, 3: 2, 4: 3, 6: 6, 7: 4, 8: 5}

// DisableMIG turns MIG off.
func DisableMIG(g *state.GPU) {
	clear(g.Gi[:])
	clear(g.Ci[:])
	g.MigCurrent, g.MigPending = 0, 0
}

// EnableMIG turns MIG on and partitions the GPU, placing the instances as the driver would;
// no layout means no instances. If no real GPU of the model supports the layout, it returns
// an error with the reason and leaves g unchanged.
func EnableMIG(g *state.GPU, layout []Instance) error {
	if g.MigSupported == 0 {
		return fmt.Errorf("%s cannot do MIG", state.Text(g.Name[:]))
	}
	gis, err := placeInstances(g, layout)
	if err != nil {
		return err
	}
	next := *g
	DisableMIG(&next)
	next.MigCurrent, next.MigPending = 1, 1
	copy(next.Gi[:], gis)
	if err := addCompute(&next, layout); err != nil {
		return err
	}
	*g = next
	return nil
}

// placeInstances finds a start for each instance, the first combination that fits in
// the order of the layout, and gives them their IDs.
func placeInstances(g *state.GPU, layout []Instance) ([]state.GI, error) {
	wanted := make([]uint32, len(layout)) // index of each one's profile
	count := map[uint32]uint32{}
	compute := uint32(0)
	for i, instance := range layout {
		index, err := findGIProfile(g, instance)
		if err != nil {
			return nil, err
		}
		wanted[i] = index
		p := &g.GiProfile[index]
		if count[index]++; count[index] > p.Instances {
			return nil, fmt.Errorf("%s fits at most %d times", instance.Profile, p.Instances)
		}
		compute += p.Slices
	}
	if compute > g.MigSlices {
		return nil, fmt.Errorf("%s needs %d compute slices; the GPU has %d", layoutText(layout), compute, g.MigSlices)
	}
	if err := checkEngines(g, wanted); err != nil {
		return nil, fmt.Errorf("%s needs %w", layoutText(layout), err)
	}
	if len(layout) > state.MaxGIs {
		return nil, fmt.Errorf("%d GPU instances; at most %d fit", len(layout), state.MaxGIs)
	}
	starts := make([]uint32, len(layout))
	if !fit(g, layout, wanted, starts, 0) {
		return nil, fmt.Errorf("%s does not fit into %d memory slices: %s", layoutText(layout), g.MigMemorySlices, needs(g, wanted))
	}
	gis := make([]state.GI, len(layout))
	for i := range gis {
		gis[i] = state.GI{Used: 1, Profile: wanted[i], Start: starts[i]}
		gis[i].Id = instanceID(g, gis[i], gis[:i])
	}
	return gis, nil
}

// checkEngines checks that the GPU has the media engines of instances, whose profiles wanted holds.
// A GPU has of each kind what all instances of the profile with most of them have together.
func checkEngines(g *state.GPU, wanted []uint32) error {
	for kind, name := range engineKinds {
		total, needed := uint32(0), uint32(0)
		for i := range g.NGiProfiles {
			total = max(total, engines(&g.GiProfile[i])[kind]*g.GiProfile[i].Instances)
		}
		for _, index := range wanted {
			needed += engines(&g.GiProfile[index])[kind]
		}
		if needed > total {
			return fmt.Errorf("%d %s; the GPU has %d", needed, name, total)
		}
	}
	return nil
}

var engineKinds = [...]string{"decoders", "encoders", "JPEG engines", "OFA engines"}

// engines returns how many of each kind an instance of a profile has.
func engines(p *state.GIProfile) [len(engineKinds)]uint32 {
	return [...]uint32{p.Decoders, p.Encoders, p.Jpegs, p.Ofas}
}

// findGIProfile returns the index of the instance's profile in g.GiProfile.
func findGIProfile(g *state.GPU, instance Instance) (uint32, error) {
	var names []string
	for i := range g.NGiProfiles {
		p := &g.GiProfile[i]
		name := state.Text(p.Name[:])
		names = append(names, name)
		if name != instance.Profile {
			continue
		}
		starts := p.Start[:p.Nplacements]
		if instance.Start >= 0 && !slices.Contains(starts, uint32(instance.Start)) {
			return 0, fmt.Errorf("%s cannot start at memory slice %d, only at %s", name, instance.Start, joinNumbers(starts))
		}
		return i, nil
	}
	return 0, fmt.Errorf("%s has no profile %s; it has %s", state.Text(g.Name[:]), instance.Profile, strings.Join(names, ", "))
}

// fit places the last instances of the layout, whose profiles wanted holds, and sets their starts.
// taken has a bit for each memory slice in use.
func fit(g *state.GPU, layout []Instance, wanted, starts []uint32, taken uint32) bool {
	i := len(layout) - len(wanted)
	if len(wanted) == 0 {
		return true
	}
	p := &g.GiProfile[wanted[0]]
	for _, start := range p.Start[:p.Nplacements] {
		if layout[i].Start >= 0 && uint32(layout[i].Start) != start {
			continue
		}
		mask := (uint32(1)<<p.Size - 1) << start
		if taken&mask == 0 {
			starts[i] = start
			if fit(g, layout, wanted[1:], starts, taken|mask) {
				return true
			}
		}
	}
	return false
}

// needs describes what each kind of instance needs, to help change the layout.
func needs(g *state.GPU, wanted []uint32) string {
	var parts []string
	for _, index := range slices.Compact(slices.Sorted(slices.Values(wanted))) {
		p := &g.GiProfile[index]
		parts = append(parts, fmt.Sprintf("%s takes %d from slice %s", state.Text(p.Name[:]), p.Size, joinNumbers(p.Start[:p.Nplacements])))
	}
	return strings.Join(parts, "; ")
}

// instanceID numbers GPU instances as the driver does: the one that takes all is
// 0, halves are 1 and 2, quarters 3 to 6, eighths from 7. Of two with the same number, the later
// one gets the next number that is free.
func instanceID(g *state.GPU, gi state.GI, others []state.GI) uint32 {
	size := g.GiProfile[gi.Profile].Size
	id := g.MigMemorySlices/size - 1 + gi.Start/size
	for slices.ContainsFunc(others, func(o state.GI) bool { return o.Id == id }) {
		id++
	}
	return id
}

// addCompute creates the compute instances of the GPU instances, which are in g.Gi in
// the order of the layout, and numbers the MIG devices.
func addCompute(g *state.GPU, layout []Instance) error {
	n := 0
	for i, instance := range layout {
		gi := &g.Gi[i]
		p := &g.GiProfile[gi.Profile]
		compute := instance.Compute
		if len(compute) == 0 {
			compute = []uint32{p.Slices}
		}
		used := uint32(0)
		for id, size := range compute {
			profileID, ok := computeProfile[size]
			if used += size; !ok || used > p.Slices {
				return fmt.Errorf("%s: %s has %d compute slices", instance, instance.Profile, p.Slices)
			}
			if n == state.MaxCIs {
				return fmt.Errorf("%s has more than %d compute instances", layoutText(layout), state.MaxCIs)
			}
			ci := &g.Ci[n]
			*ci = state.CI{Used: 1, Id: uint32(id), Gi: gi.Id, Profile: profileID, Slices: size}
			name := instance.Profile
			if size != p.Slices {
				name = fmt.Sprintf("%dc.%s", size, name)
			}
			if err := state.SetText(ci.Name[:], name); err != nil {
				return err
			}
			if err := state.SetText(ci.Uuid[:], MIGUUID(state.Text(g.Uuid[:]), gi.Id, uint32(id))); err != nil {
				return err
			}
			n++
		}
	}
	// MIG devices are counted by GPU instance, then compute instance.
	slices.SortFunc(g.Ci[:n], func(a, b state.CI) int {
		return cmp.Or(cmp.Compare(a.Gi, b.Gi), cmp.Compare(a.Id, b.Id))
	})
	for i := range g.Ci[:n] {
		g.Ci[i].Index = uint32(i)
	}
	return nil
}

// sortedInstances returns the GPU instances that exist, in the order of their IDs.
func sortedInstances(g *state.GPU) []state.GI {
	gis := slices.DeleteFunc(slices.Clone(g.Gi[:]), func(gi state.GI) bool { return gi.Used == 0 })
	slices.SortFunc(gis, func(a, b state.GI) int { return cmp.Compare(a.Id, b.Id) })
	return gis
}

func layoutText(layout []Instance) string {
	parts := make([]string, len(layout))
	for i, instance := range layout {
		parts[i] = instance.String()
	}
	return strings.Join(parts, ",")
}

func joinNumbers(numbers []uint32) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(numbers), " ", ", "), "[]")
}
