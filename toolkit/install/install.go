// Package install records what the toolkit puts on the host in a manifest. Restore
// undoes exactly that, and nothing that others made or changed since.
//
// The manifest is a file next to the hook. Next to it lies every file that was replaced
// or removed, under its hash: the original. Both are synced to the disk before the host
// is changed. So after a kill or a power loss there may be an entry without a file, but
// never a file without an entry, and never a change that cannot be undone.
//
// A change is one call of Apply, or a transaction: Begin, then Write, Advance and Commit
// or Rollback. A transaction is for changes to more than files, as when a container
// runtime has to be restarted and gets its old configuration back if that fails. The
// next start finds an unfinished transaction with Pending.
//
// Restore restores the version from before our first change. If others edit a file after
// we wrote it:
//   - and we write it again: Restore restores their version, without our parts if the
//     caller provides that (change.File.Without). The file from before the first change
//     is kept, and Restore reports its path.
//   - and Restore is called: the file stays as they left it. Restore reports which of
//     its lines are ours, and the path of the original. The manifest keeps the entry, so
//     that a later Apply does not treat our lines as theirs.
package install

import (
	"errors"
	"path"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/change"
)

// HookName is the file name of the hook in the install directory.
const HookName = "gpu-cdi-hook"

// Hook returns the item for the hook on the host. program is its path in this process.
func Hook(dir, program string) change.Item {
	return change.Item{Path: path.Join(dir, HookName), File: &change.File{From: program, Mode: 0o755}}
}

// Apply makes the changes and records them. If interrupted, plan and apply again.
// Without changes nothing is read or written.
func Apply(root *host.Root, dir, bootID string, changes []change.Change) error {
	if len(changes) == 0 {
		return nil
	}
	s := store{root, dir, bootID}
	p, err := s.prepare(changes)
	if err != nil {
		return err
	}
	if err := s.record(p.before, p.keep); err != nil {
		return err
	}
	if err := change.Apply(root, changes); err != nil {
		return err
	}
	return s.save(p.after)
}

// plan is the effect of changes on the manifest.
type plan struct {
	changes []change.Change
	before  Manifest          // while the changes are made
	after   Manifest          // once they are made
	keep    map[string][]byte // originals by SHA-256
	dirs    []string          // the directories that they make
	steps   []Step
}

func (s store) prepare(changes []change.Change) (plan, error) {
	p := plan{changes: changes, keep: map[string][]byte{}}
	if err := s.create(); err != nil {
		return p, err
	}
	m, err := s.read()
	if err != nil {
		return p, err
	}
	if p.dirs, err = change.Dirs(s.root, changes); err != nil {
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
func (s store) record(before Manifest, keep map[string][]byte) error {
	if err := s.writeOriginals(keep); err != nil {
		return err
	}
	return s.save(before)
}

// successor returns the entry of a path after a change. It adds the original to keep.
func successor(old *Entry, c change.Change, keep map[string][]byte) Entry {
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
