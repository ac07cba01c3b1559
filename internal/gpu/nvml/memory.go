package nvml

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// memory holds the earlier readings of a Source, so that a GPU which no longer answers
// keeps its UUID.
type memory struct {
	devices    map[gpu.UUID]reading // as last read without an error
	order      []gpu.UUID           // by index, of the last read
	facts      map[gpu.UUID]facts
	epoch      int                    // counts the calls of expireFacts
	noXIDs     map[gpu.UUID]time.Time // the GPUs that could not be registered for events, as the driver supports none: until when that is believed
	noEvents   bool                   // the driver supports no events at all
	driver     gpu.Driver             // as last read
	notSecret  bool                   // confidential computing is off, or not supported
	last       []reading              // as last read, with the faults
	snapshot   []gpu.Device           // of the last Snapshot; nil if there was none since a probe
	snapshotAt time.Time
	ancestors  map[[2]gpu.PCIAddress]gpu.LinkKind
	numa       map[gpu.PCIAddress]int
	unlisted   map[gpu.UUID]string // why the partitions of a GPU could not be read last

	letGo map[gpu.UUID]bool      // the GPUs to release
	out   map[gpu.UUID]gpu.Fault // the released GPUs with their faults
}

// settle gives the GPUs that could not be read a Fault and a UUID, and remembers the
// readings of the others. It returns an error only if errs are about the whole driver: all GPUs answer so, since the
// driver's own calls have worked.
func (s *Source) settle(all []reading, errs []error) error {
	denied, gone := len(all) > 0, len(all) > 0
	for _, err := range errs {
		denied, gone = denied && errors.Is(err, gpu.ErrNoPermission), gone && wholeDriver(err)
	}
	if denied || gone {
		return errs[0]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.findUUIDs(all, errs)
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
		delete(s.memory.facts, r.UUID)
		r.Fault, r.Notes, r.Recovery, r.Remap = faultOf(errs[i]), nil, "", gpu.RemapNone // they were not read
	}
	if len(s.memory.order) > 0 && len(s.memory.order) != len(all) {
		clear(s.memory.facts) // a GPU was removed, and may return elsewhere
	}
	s.memory.order = s.memory.order[:0]
	for _, r := range all {
		s.memory.order = append(s.memory.order, r.UUID)
	}
	return nil
}

// findUUIDs fills in the UUIDs of GPUs that could not be read. NVML numbers GPUs by PCI
// address, so while their number is the same, an index means the same GPU. Otherwise,
// if as many known GPUs are missing as did not answer, they match in order. Otherwise
// the kernel module's own list decides.
func (s *Source) findUUIDs(all []reading, errs []error) {
	taken := map[gpu.UUID]int{}
	count := func(id gpu.UUID) (n int) { // several GPUs may have one UUID
		for _, other := range s.memory.order {
			if other == id {
				n++
			}
		}
		return n
	}
	var nameless []int
	for i, r := range all {
		if r.UUID != "" {
			taken[r.UUID]++
		} else if errs[i] != nil {
			nameless = append(nameless, i)
		}
	}
	if len(nameless) == 0 {
		return
	}
	assign := func(i int, id gpu.UUID) {
		if id != "" && taken[id] < max(count(id), 1) {
			all[i].UUID = id
			taken[id]++
		}
	}
	if len(s.memory.order) == len(all) {
		for _, i := range nameless {
			assign(i, s.memory.order[i])
		}
		return
	}
	var missing []reading
	for _, id := range slices.Sorted(maps.Keys(s.memory.devices)) {
		if taken[id] == 0 {
			missing = append(missing, s.memory.devices[id])
		}
	}
	slices.SortStableFunc(missing, func(a, b reading) int { return strings.Compare(string(a.PCI), string(b.PCI)) })
	if len(missing) == len(nameless) {
		for n, i := range nameless {
			assign(i, missing[n].UUID)
		}
		return
	}
	listed := s.places.listGPUs()
	if len(listed) != len(all) {
		return
	}
	for _, i := range nameless {
		index := all[i].Index
		all[i].Device = listed[i]
		all[i].Index, all[i].UUID = index, ""
		assign(i, listed[i].UUID)
	}
}

// keepReading remembers a reading of all GPUs.
func (s *Source) keepReading(driver gpu.Driver, all []reading) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memory.driver, s.memory.last = driver, nil
	for _, r := range all {
		s.memory.last = append(s.memory.last, clone(r))
	}
}

// lastReading returns the last reading of all GPUs.
func (s *Source) lastReading() (gpu.Driver, []reading) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []reading
	for _, r := range s.memory.last {
		all = append(all, clone(r))
	}
	return s.memory.driver, all
}

// keepSnapshot remembers the devices of a Snapshot, so that Watch can report when they
// change, even if Watch itself never read them.
func (s *Source) keepSnapshot(list []gpu.Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memory.snapshot, s.memory.snapshotAt = list, time.Now()
}

// takeLastSnapshot returns the devices of the last Snapshot, once.
func (s *Source) takeLastSnapshot() []gpu.Device {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.memory.snapshot
	s.memory.snapshot = nil
	return list
}

// takeRecentSnapshot returns the devices of a Snapshot that was just made, once; nil if there
// was none.
func (s *Source) takeRecentSnapshot() []gpu.Device {
	s.mu.Lock()
	recent := time.Since(s.memory.snapshotAt) < recent
	s.mu.Unlock()
	if !recent {
		return nil
	}
	return s.takeLastSnapshot()
}

func clone(r reading) reading {
	r.MIG, r.Notes = slices.Clone(r.MIG), slices.Clone(r.Notes)
	r.lanes.remote = slices.Clone(r.lanes.remote)
	return r
}
