package apply

import (
	"errors"
	"path"
	"reflect"
	"slices"
	"syscall"
)

// Sweep removes the remains of a killed instance, except for a transaction: partially
// written files and unused originals. It also records in the manifest which of the
// changes under way were made. Call it at the start, with the lock held. It returns the
// unfinished files that it removed.
func (s *Store) Sweep() ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sweep()
}

func (s *Store) sweep() ([]string, error) {
	m, err := s.read()
	if err != nil {
		return nil, err
	}
	names := []string{manifestPath(s.Dir)}
	for _, e := range m.Entries {
		names = append(names, e.Path)
	}
	if m.Journal != nil {
		for _, step := range m.Journal.Steps {
			names = append(names, step.Path)
		}
	}
	real, err := s.Root.Resolve(s.Dir)
	if err != nil {
		return nil, err
	}
	for p := real; p != "/"; p = path.Dir(p) {
		names = append(names, p)
	}
	if originals, err := s.Root.ReadDir(s.originals()); err == nil {
		for _, e := range originals {
			if len(e.Name()) > 65 && isHash(e.Name()[1:65]) {
				names = append(names, originalPath(s.Dir, e.Name()[1:65]))
			}
		}
	}
	slices.Sort(names)
	var removed []string
	for _, name := range slices.Compact(names) {
		left, err := s.Root.Leftovers(name)
		if err != nil && !errors.Is(err, syscall.ENOTDIR) {
			return removed, err
		}
		for _, l := range left {
			if err := s.remove(l); err != nil {
				return removed, err
			}
			removed = append(removed, l)
		}
	}
	return removed, s.resolve(m)
}

// resolve records which of the changes under way were made.
func (s *Store) resolve(m Manifest) error {
	now := m
	for _, e := range m.Entries {
		if e.Pending == nil || m.Journal != nil && m.Journal.touches(e.Path) {
			continue
		}
		state, err := observe(s.Root, e.Path)
		if err != nil {
			return err
		}
		switch {
		case state.same(e.State):
		case state.same(*e.Pending):
			e.State = *e.Pending
		default:
			continue // others have changed it too
		}
		now = now.with(e.Path, e.settled())
	}
	if !reflect.DeepEqual(m, now) {
		return s.save(now)
	}
	return s.removeUnused(m)
}
