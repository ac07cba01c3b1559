package apply

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"
)

// planned is the effect of changes on the manifest.
type planned struct {
	before Manifest          // while the changes are made
	after  Manifest          // once they are made
	keep   map[string][]byte // originals by SHA-256
	dirs   []string          // the directories that they make
	steps  []Step
}

// prepare computes the effect of changes on the manifest.
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
	p.before, p.after = m.withDirs(p.dirs), m.withDirs(p.dirs)
	for _, c := range changes {
		if m.Journal != nil && m.Journal.touches(c.Path) {
			return p, m.Journal.pending()
		}
		old := m.entry(c.Path)
		next := successor(old, c, p.keep)
		step := Step{Path: c.Path, Before: stateOf(c.Was), After: next.State, Entry: old}
		p.after = p.after.with(c.Path, next.settled())
		if !step.Before.same(next.original()) {
			next.Pending = &step.Before
		}
		p.before = p.before.with(c.Path, &next)
		p.steps = append(p.steps, step)
	}
	return p, nil
}

// record writes the planned state, and the originals of all that it replaces, to the disk.
func (s *Store) record(before Manifest, keep map[string][]byte) error {
	if err := s.writeOriginals(keep); err != nil {
		return err
	}
	return s.save(before)
}

// successor returns the entry of a path after a change. It adds the original to keep.
func successor(old *Entry, c Change, keep map[string][]byte) Entry {
	was := stateOf(c.Was)
	next := Entry{Path: c.Path, State: stateOf(c.Item)}
	var text []byte
	if c.Was.File != nil {
		text = c.Was.File.Data
	}
	switch {
	case old != nil && (old.same(was) || old.Pending != nil && old.Pending.same(was)):
		next.Original, next.First = old.Original, old.First
	case old != nil && old.original().same(was): // others put it back themselves
		next.Original, next.First = old.Original, old.First
	default:
		next.Original = &was
		if was.Node != "" { // of a driver that is gone
			next.Original = &State{Absent: true}
		}
		if old != nil && c.File != nil && c.File.Without != nil {
			text = c.File.Without
			clean := was
			clean.SHA256 = hash(text)
			next.Original = &clean
		}
		if next.Original.SHA256 != "" {
			keep[next.Original.SHA256] = text
		}
		if old != nil {
			if next.First = old.First; next.First == nil && old.original().SHA256 != "" {
				next.First = old.Original
			}
		}
	}
	if c.File != nil && next.original().SHA256 != "" {
		var known []string
		if old != nil {
			known = old.Added
		}
		next.Added = added(text, c.File.Data, known)
	}
	return next
}

// original returns the state that Restore restores.
func (e Entry) original() State {
	if e.Original == nil {
		return State{Absent: true}
	}
	return *e.Original
}

// settled returns the entry once the change is made, nil if nothing of ours remains.
func (e Entry) settled() *Entry {
	e.Pending = nil
	if o := e.original(); e.First == nil && e.same(o) && (o.Absent || e.sameAttributes(o)) {
		return nil
	}
	return &e
}

// maxAdded limits the size of Entry.Added, in bytes.
const maxAdded = 16 << 10

// added returns our lines in now: those that old does not have, and those of known that
// still exist. It returns nil for binary data.
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

func isNotDir(err error) bool { return errors.Is(err, syscall.ENOTDIR) }
