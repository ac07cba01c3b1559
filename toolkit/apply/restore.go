package apply

import (
	"fmt"
	"slices"
	"strings"
)

// RestoreOptions limit what Restore does.
type RestoreOptions struct {
	DryRun bool                   // only report
	Only   func(path string) bool // selects paths of the manifest; nil means everything, the manifest included
}

// Restored is the result of Restore.
type Restored struct {
	Changes []Change
	Left    []string // descriptions of the paths that are not restored, with the reason
}

// Restore restores the state before the toolkit: bytes, modes and owners of replaced
// files, and nothing where there was nothing. Files that others changed since are left
// and reported. An unfinished transaction is undone first. Restore can be repeated, also
// after a kill at any point, and then does the rest. If an original is damaged, it
// returns an error and does nothing.
func (s *Store) Restore(o RestoreOptions) (Restored, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !o.DryRun {
		if err := s.cleanUp(o.Only == nil); err != nil {
			return Restored{}, err
		}
	}
	m, err := s.read()
	if err != nil {
		return Restored{}, err
	}
	r, items, rest, err := s.planRestore(m, o.Only)
	if err != nil {
		return Restored{}, err
	}
	if r.Changes, err = Plan(s.Root, items); err != nil {
		return r, err
	}
	if !o.DryRun {
		if r.Changes, err = Write(s.Root, r.Changes); err != nil {
			return r, err
		}
	}
	if len(rest.Entries)+len(rest.Kept) == 0 {
		manifest, err := Plan(s.Root, []Item{{Path: manifestPath(s.Dir), Absent: true}})
		if err != nil {
			return r, err
		}
		r.Changes = append(r.Changes, manifest...)
	}
	if o.DryRun {
		return r, nil
	}
	return r, s.saveRest(m, rest)
}

// cleanUp removes the remains of a killed instance. It rolls back an unfinished
// transaction, except if all is restored, which undoes it as well.
func (s *Store) cleanUp(all bool) error {
	if _, err := s.sweep(); err != nil || all {
		return err
	}
	m, err := s.read()
	if err != nil || m.Journal == nil {
		return err
	}
	_, err = s.rollback(m) // Restore reports what is left
	return err
}

// planRestore returns the items that restore the originals, and the remaining manifest.
func (s *Store) planRestore(m Manifest, only func(string) bool) (r Restored, items []Item, rest Manifest, err error) {
	rest = m
	rest.Journal = nil
	for _, e := range slices.Backward(m.Entries) {
		if only != nil && !only(e.Path) {
			continue
		}
		now, err := observe(s.Root, e.Path)
		if err != nil {
			return r, nil, m, err
		}
		original := e.original()
		back := original
		switch {
		case now.same(original) && (original.Absent || now.sameAttributes(original) || !now.same(e.State)):
			rest = rest.with(e.Path, nil)
			rest.Kept = keepFirst(rest.Kept, e)
			continue
		case !e.ours(now):
			if original.Absent {
				rest = rest.with(e.Path, nil)
			}
			r.Left = append(r.Left, s.describeChange(e, now))
			continue
		case now.same(e.State) && e.Mode != 0 && !now.sameAttributes(e.State) && original.SHA256 != "":
			back = original.withAttributes(now) // others only changed the permissions
		}
		item, err := s.item(e.Path, back)
		if err != nil {
			return r, nil, m, err
		}
		items = append(items, item)
		rest = rest.with(e.Path, nil)
		rest.Kept = keepFirst(rest.Kept, e)
	}
	rest.Kept = slices.DeleteFunc(slices.Clone(rest.Kept), func(k Kept) bool {
		_, err := s.Root.Lstat(originalPath(s.Dir, k.SHA256))
		return err != nil
	})
	for _, k := range rest.Kept {
		if only == nil || only(k.Path) {
			r.Left = append(r.Left, fmt.Sprintf("%s: others edited it between our changes, and it is as they left it; its original is kept in %s: remove that when nobody needs it", k.Path, originalPath(s.Dir, k.SHA256)))
		}
	}
	return r, items, rest, nil
}

func (e Entry) ours(now State) bool {
	return now.same(e.State) || e.Pending != nil && now.same(*e.Pending)
}

func keepFirst(kept []Kept, e Entry) []Kept {
	if e.First == nil || e.First.SHA256 == "" || slices.Contains(kept, Kept{e.Path, e.First.SHA256}) {
		return kept
	}
	return append(slices.Clone(kept), Kept{e.Path, e.First.SHA256})
}

// describeChange describes a file that others changed after us.
func (s *Store) describeChange(e Entry, now State) string {
	var b strings.Builder
	b.WriteString(e.Path)
	if now.Absent {
		b.WriteString(" was removed by others since")
	} else {
		b.WriteString(" was changed by others since")
	}
	if found := s.addedIn(e, now); len(found) > 0 {
		fmt.Fprintf(&b, "; ours in it: %q", found)
	}
	if o := e.original(); o.SHA256 != "" {
		fmt.Fprintf(&b, "; what it was before is kept in %s (mode %#o): put it right by hand and run this again", originalPath(s.Dir, o.SHA256), uint32(o.Mode))
	}
	return b.String()
}

// addedIn returns the lines that we added and that a file still has.
func (s *Store) addedIn(e Entry, now State) []string {
	if now.SHA256 == "" || len(e.Added) == 0 {
		return nil
	}
	data, err := s.Root.ReadFile(e.Path, maxOriginal)
	if err != nil {
		return nil
	}
	var found []string
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); slices.Contains(e.Added, line) && !slices.Contains(found, line) {
			found = append(found, line)
		}
	}
	return found
}

// saveRest writes the remaining manifest, or removes it if it is empty.
func (s *Store) saveRest(m, rest Manifest) error {
	real, err := s.Root.Resolve(s.Dir)
	if err != nil {
		return err
	}
	var own, others []string // directories: those of the manifest, and the rest
	for _, d := range m.Dirs {
		if within(real, d) {
			own = append(own, d)
		} else {
			others = append(others, d)
		}
	}
	used := func(d string) bool {
		return slices.ContainsFunc(rest.Entries, func(e Entry) bool { return within(e.Path, d) })
	}
	empty := len(rest.Entries) == 0 && len(rest.Kept) == 0
	if removed := slices.DeleteFunc(slices.Clone(others), used); len(removed) > 0 {
		left, err := removeDirs(s.Root, removed)
		if err != nil {
			return err
		}
		others = slices.DeleteFunc(others, func(d string) bool { return slices.Contains(removed, d) && !slices.Contains(left, d) })
	}
	if _, err := s.Root.Lstat(manifestPath(s.Dir)); err != nil && empty {
		return s.removeUnused(rest)
	}
	rest.Dirs = slices.Concat(own, others)
	if err := s.save(rest); err != nil || !empty {
		return err
	}
	return s.removeLast(slices.Concat(own, others))
}
