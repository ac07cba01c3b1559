package nvml

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
)

// memory is what a Source keeps of what it read, so that a GPU which cannot be
// asked any more is still called by its name.
type memory struct {
	devices   map[gpu.UUID]reading // as last read without an error
	order     []gpu.UUID           // by index, of the last read
	shown     []gpu.Device         // in the last Snapshot; nil when there was none since a probe
	ancestors map[[2]gpu.PCIAddress]gpu.LinkKind
	numa      map[gpu.PCIAddress]int

	letGo map[gpu.UUID]bool      // what is to be let go of
	out   map[gpu.UUID]gpu.Fault // what is, by what is wrong with it
}

// settle gives the GPUs that could not be read a Fault and a name, and
// remembers those that could. It returns an error only where the errors are
// about the whole driver.
func (s *Source) settle(all []reading, errs []error) error {
	denied := len(all) > 0
	for _, err := range errs {
		if wholeDriver(err) {
			return err
		}
		denied = denied && errors.Is(err, gpu.ErrNoPermission)
	}
	if denied {
		return errs[0]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.name(all, errs)
	for i := range all {
		r := &all[i]
		if errs[i] == nil {
			s.memory.devices[r.UUID] = clone(*r)
			continue
		}
		if before, known := s.memory.devices[r.UUID]; known {
			*r = clone(before)
			r.Index = i
		}
		r.Fault = faultOf(errs[i])
	}
	s.memory.order = s.memory.order[:0]
	for _, r := range all {
		s.memory.order = append(s.memory.order, r.UUID)
	}
	return nil
}

// name finds the UUIDs of GPUs that did not tell theirs. NVML numbers GPUs by
// PCI address, so while as many are counted as before, an index means the same
// GPU; else, when just as many known GPUs are missing as did not answer, they
// are those in order; else the kernel module's own list is asked.
func (s *Source) name(all []reading, errs []error) {
	taken := map[gpu.UUID]bool{}
	var nameless []int
	for i, r := range all {
		if r.UUID != "" {
			taken[r.UUID] = true
		} else if errs[i] != nil {
			nameless = append(nameless, i)
		}
	}
	if len(nameless) == 0 {
		return
	}
	give := func(i int, id gpu.UUID) {
		if id != "" && !taken[id] {
			all[i].UUID, taken[id] = id, true
		}
	}
	if len(s.memory.order) == len(all) {
		for _, i := range nameless {
			give(i, s.memory.order[i])
		}
		return
	}
	var missing []reading
	for _, id := range slices.Sorted(maps.Keys(s.memory.devices)) {
		if !taken[id] {
			missing = append(missing, s.memory.devices[id])
		}
	}
	slices.SortStableFunc(missing, func(a, b reading) int { return strings.Compare(string(a.PCI), string(b.PCI)) })
	if len(missing) == len(nameless) {
		for n, i := range nameless {
			give(i, missing[n].UUID)
		}
		return
	}
	listed := s.places.listed()
	if len(listed) != len(all) {
		return
	}
	for _, i := range nameless {
		index := all[i].Index
		all[i].Device = listed[i]
		all[i].Index, all[i].UUID = index, ""
		give(i, listed[i].UUID)
	}
}

// show keeps what a Snapshot showed, so that Watch can tell when that is no
// longer so, also if it never saw it.
func (s *Source) show(list []gpu.Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memory.shown = list
}

// shown returns what the last Snapshot showed, once.
func (s *Source) shown() []gpu.Device {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.memory.shown
	s.memory.shown = nil
	return list
}

func clone(r reading) reading {
	r.MIG = slices.Clone(r.MIG)
	r.lanes.remote = slices.Clone(r.lanes.remote)
	return r
}
