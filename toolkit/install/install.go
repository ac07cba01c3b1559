// Package install keeps account of what the toolkit has put on the host, so
// that exactly that can be taken away again, and nothing that others made or
// changed since.
//
// The account is a file beside the hook, and beside it, under its hash, lies
// every file that was replaced or removed, as it was before: the original. Both
// are written, and on the disk, before the host is changed: a toolkit that is
// killed, or a machine that loses power, has an entry for something that is not
// there, never something without an entry, and never a file without a way back.
//
// A change is one call of Apply, or, where more belongs to it than files (a
// container runtime has to be started anew, and the old configuration comes
// back if that fails), a transaction: Begin, then Write, Advance and Commit or
// Rollback. The next start finds an unfinished one with Pending.
//
// Whose version comes back. Restore puts back what was there before our first
// change. Where others edit a file after we wrote it:
//   - and we write it again: theirs becomes what Restore puts back, without our
//     parts if the caller can say what that is (change.File.Without). The file
//     from before the first change is kept, and Restore tells where.
//   - and Restore is called: the file stays as they left it; Restore tells which
//     lines of it are ours, and where the original is kept. The account keeps the
//     entry, so that a later Apply does not take our lines for theirs.
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

// Hook is the hook as a file that is wanted on the host; program is where this
// process has it.
func Hook(dir, program string) change.Item {
	return change.Item{Path: path.Join(dir, HookName), File: &change.File{From: program, Mode: 0o755}}
}

// Apply makes the changes and keeps account of them. Interrupted, it is repeated
// by planning and applying anew. Without changes nothing is read or written.
func Apply(root *host.Root, dir, bootID string, changes []change.Change) error {
	if len(changes) == 0 {
		return nil
	}
	s := store{root, dir, bootID}
	p, err := s.prepare(changes)
	if err != nil {
		return err
	}
	if err := s.announce(p.before, p.keep); err != nil {
		return err
	}
	if err := change.Apply(root, changes); err != nil {
		return err
	}
	return s.save(p.after)
}

// plan is what changes do to the account.
type plan struct {
	changes []change.Change
	before  Manifest          // while they are made
	after   Manifest          // once they are
	keep    map[string][]byte // originals by SHA-256
	dirs    []string          // that they make
	steps   []Step
}

func (s store) prepare(changes []change.Change) (plan, error) {
	p := plan{changes: changes, keep: map[string][]byte{}}
	if err := s.place(); err != nil {
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
			next.Also = &step.Before
		}
		p.before = p.before.with(c.Path, &next)
		p.steps = append(p.steps, step)
	}
	return p, nil
}

// announce puts on the disk what is going to be there, and all that it replaces.
func (s store) announce(before Manifest, keep map[string][]byte) error {
	if err := s.keep(keep); err != nil {
		return err
	}
	return s.save(before)
}

// successor is the entry of a path after a change. What has to be kept goes into keep.
func successor(old *Entry, c change.Change, keep map[string][]byte) Entry {
	was := stateOf(c.Was)
	next := Entry{Path: c.Path, State: stateOf(c.Item)}
	var text []byte
	if c.Was.File != nil {
		text = c.Was.File.Data
	}
	switch {
	case old != nil && (old.same(was) || old.Also != nil && old.Also.same(was)):
		next.Original, next.First = old.Original, old.First
	case old != nil && old.original().same(was): // others put it back themselves
		next.Original, next.First = old.Original, old.First
	default:
		next.Original = &was
		if was.Node != "" { // of a driver that is not there any more
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

// original is what Restore puts back.
func (e Entry) original() State {
	if e.Original == nil {
		return State{Absent: true}
	}
	return *e.Original
}

// settled is the entry once the change is made; nil: nothing of ours is there.
func (e Entry) settled() *Entry {
	e.Also = nil
	if o := e.original(); e.First == nil && e.same(o) && (o.Absent || e.alike(o)) {
		return nil
	}
	return &e
}

// maxAdded bounds what an entry says about the lines of a file, in bytes.
const maxAdded = 16 << 10

// added returns the lines of now that are ours: those that old does not have,
// and those of known that are still there. Nil for what is no text.
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
