package install

import (
	"path"
	"reflect"
	"slices"

	"github.com/gpuready/gpuready/internal/host"
)

// Sweep removes the remains of a killed instance, except for a transaction: partially
// written files and unused originals. It also records in the manifest which of the
// changes under way were made. Call it at the start, with the lock held. It returns the
// unfinished files that it removed.
func Sweep(root *host.Root, dir, bootID string) ([]string, error) {
	s := store{root, dir, bootID}
	m, err := s.read()
	if err != nil {
		return nil, err
	}
	names := []string{ManifestPath(dir)}
	for _, e := range m.Entries {
		names = append(names, e.Path)
	}
	if m.Journal != nil {
		for _, step := range m.Journal.Steps {
			names = append(names, step.Path)
		}
	}
	real, err := root.Resolve(dir)
	if err != nil {
		return nil, err
	}
	for p := real; p != "/"; p = path.Dir(p) {
		names = append(names, p)
	}
	if kept, err := root.ReadDir(s.originals()); err == nil {
		for _, e := range kept {
			if len(e.Name()) > 65 && isHash(e.Name()[1:65]) {
				names = append(names, OriginalPath(dir, e.Name()[1:65]))
			}
		}
	}
	slices.Sort(names)
	var removed []string
	for _, name := range slices.Compact(names) {
		left, err := root.Leftovers(name)
		if err != nil && !isNotDir(err) {
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
func (s store) resolve(m Manifest) error {
	now := m
	for _, e := range m.Entries {
		if e.Pending == nil || m.Journal != nil && m.Journal.touches(e.Path) {
			continue
		}
		state, err := observe(s.root, e.Path)
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
