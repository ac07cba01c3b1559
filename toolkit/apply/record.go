// This file works out what the manifest must hold before files on the host are changed, so that
// Restore can put back what was there, and a later run can finish a change that was interrupted.

package apply

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// planned is the effect of changes on the manifest.
type planned struct {
	during Manifest          // saved before the first change: each new entry with the state that it replaces
	after  Manifest          // saved after the last change
	keep   map[string][]byte // contents of replaced files that Restore needs, by SHA-256
	dirs   []string          // directories to make
	steps  []Step            // one for each change
}

// prepare computes the effect of changes on the manifest. It makes the store's folder.
func (s *Store) prepare(changes []Change) (planned, error) {
	p := planned{keep: map[string][]byte{}}
	if err := s.create(); err != nil {
		return p, err
	}
	m, err := s.read()
	if err != nil {
		return p, err
	}
	if p.dirs, err = missingDirs(s.Root, changes); err != nil {
		return p, err
	}
	p.during, p.after = m.withDirs(p.dirs), m.withDirs(p.dirs)
	for _, c := range changes {
		if m.Journal != nil && m.Journal.touches(c.Path) { // an interrupted change must be finished first
			return p, m.Journal.pending()
		}
		old := m.entry(c.Path)
		next := successor(old, c, p.keep)
		step := Step{Path: c.Path, Before: stateOf(c.Was), After: next.State, Entry: old}
		p.after = p.after.with(c.Path, next.settled())
		if !step.Before.same(next.original()) { // until the change is made, the path has this state
			next.Pending = &step.Before
		}
		p.during = p.during.with(c.Path, &next)
		p.steps = append(p.steps, step)
	}
	return p, nil
}

// record saves the manifest for the time of the changes, after the contents that it refers to.
func (s *Store) record(during Manifest, keep map[string][]byte) error {
	if err := s.writeOriginals(keep); err != nil {
		return err
	}
	return s.save(during)
}

// successor returns the entry of a path after a change. A content that Restore needs is added to keep.
func successor(old *Entry, c Change, keep map[string][]byte) Entry {
	was := stateOf(c.Was)
	next := Entry{Path: c.Path, State: stateOf(c.Item)}
	var text []byte
	if c.Was.File != nil {
		text = c.Was.File.Data
	}
	switch {
	case old != nil && (old.same(was) || old.Pending != nil && old.Pending.same(was) || old.original().same(was)):
		// What is there is ours, or somebody has put the original back: it stays the original.
		next.Original, next.First = old.Original, old.First
	default: // what is there is somebody else's: it becomes the original
		next.Original = &was
		if was.Node != "" { // a device node of a driver that was removed: Restore does not make it again
			next.Original = &State{Absent: true}
		}
		if old != nil && c.File != nil && c.File.Without != nil {
			text = c.File.Without // what is there, without our lines
			clean := was
			clean.SHA256 = hash(text)
			next.Original = &clean
		}
		if next.Original.SHA256 != "" {
			keep[next.Original.SHA256] = text
		}
		if old != nil {
			// First is the original from before somebody else replaced our file.
			if next.First = old.First; next.First == nil && old.original().SHA256 != "" {
				next.First = old.Original
			}
		}
	}
	if c.File != nil && next.original().SHA256 != "" { // a file that we edit, and did not create
		var known []string
		if old != nil {
			known = old.Added
		}
		next.Added = added(text, c.File.Data, known)
	}
	return next
}

// original returns the state that Restore restores, absent if the path did not exist.
func (e Entry) original() State {
	if e.Original == nil {
		return State{Absent: true}
	}
	return *e.Original
}

// settled returns the entry once the change is made, nil if the path is back in its original state.
func (e Entry) settled() *Entry {
	e.Pending = nil
	if o := e.original(); e.First == nil && e.same(o) && (o.Absent || e.sameAttributes(o)) {
		return nil
	}
	return &e
}

// maxAdded limits the size of Entry.Added, in bytes.
const maxAdded = 16 << 10

// added returns our lines in now, at most maxAdded bytes of them: those that old does not have, and
// those of known, which were ours before. It returns nil for binary data.
func added(old, now []byte, known []string) []string {
	if !utf8.Valid(old) || !utf8.Valid(now) {
		return nil
	}
	theirs := map[string]bool{}
	for line := range strings.Lines(string(old)) {
		theirs[strings.TrimSpace(line)] = true
	}
	var lines []string
	size := 0
	for line := range strings.Lines(string(now)) {
		line = strings.TrimSpace(line)
		if line == "" || slices.Contains(lines, line) || theirs[line] && !slices.Contains(known, line) {
			continue
		}
		if size += len(line); size > maxAdded {
			break
		}
		lines = append(lines, line)
	}
	return lines
}
