package apply

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// errPending is returned, wrapped, if an unfinished transaction is in the way.
var errPending = errors.New("a change is unfinished")

// The stages of a transaction, in its journal. They are for people: what is written is judged by
// the files, since a kill may come between writing and recording.
const (
	stageBegun   = "begun"   // some of it may be written
	stageWritten = "written" // all of it is written
)

// noteKey is the key of the caller's note in a journal's data.
const noteKey = "configure"

// Begin saves the originals and makes the changes, or none of them. They can be undone until
// Commit, also by another process: Pending finds the note, which is the caller's. Without
// changes nothing is written, and there is no transaction.
func (s *Store) Begin(changes []Change, note []byte) error {
	if len(changes) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.begin(changes, note)
	if err != nil {
		return err
	}
	if _, err = Write(s.Root, changes); err == nil {
		m.Journal.Stage = stageWritten
		err = s.save(m)
	}
	if err != nil {
		return errors.Join(err, s.undo(m))
	}
	return nil
}

// begin writes the planned changes, their note and everything needed to undo them to the
// disk. It returns the manifest.
func (s *Store) begin(changes []Change, note []byte) (Manifest, error) {
	p, err := s.prepare(changes)
	if err != nil {
		return p.during, err
	}
	m := p.during
	if m.Journal != nil {
		return m, m.Journal.pending()
	}
	for _, c := range changes {
		if c.Was.File != nil {
			p.keep[hash(c.Was.File.Data)] = c.Was.File.Data
		}
	}
	m.Journal = &Journal{
		BootID: s.BootID, Since: time.Now().UTC().Truncate(time.Second), Stage: stageBegun,
		Data: map[string]string{noteKey: string(note)}, Steps: p.steps, Dirs: p.dirs,
	}
	return m, s.record(m, p.keep)
}

// Pending returns the note of the unfinished transaction. It rolls back one whose files are not
// all as written, because the process was killed or others have changed one since.
func (s *Store) Pending() (note []byte, pending bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.read()
	if err != nil || m.Journal == nil {
		return nil, false, err
	}
	complete, err := s.written(*m.Journal)
	if err != nil {
		return nil, false, err
	}
	if !complete {
		return nil, false, s.undo(m)
	}
	return []byte(m.Journal.Data[noteKey]), true, nil
}

// Commit ends the transaction, if there is one, and keeps its changes.
func (s *Store) Commit() error { return s.end(s.commit) }

// Undo ends the transaction, if there is one, and rolls back its changes. It returns an error
// if others changed some of the files meanwhile, which stay as they are.
func (s *Store) Undo() error { return s.end(s.undo) }

// end calls how with the manifest if that has a transaction.
func (s *Store) end(how func(Manifest) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.read()
	if err != nil || m.Journal == nil {
		return err
	}
	return how(m)
}

// written reports whether all changes of a transaction are made.
func (s *Store) written(j Journal) (bool, error) {
	for _, step := range j.Steps {
		now, err := observe(s.Root, step.Path)
		if err != nil || !now.same(step.After) {
			return false, err
		}
	}
	return true, nil
}

// commit ends the transaction and keeps its changes.
func (s *Store) commit(m Manifest) error {
	for _, step := range m.Journal.Steps {
		if e := m.entry(step.Path); e != nil {
			m = m.with(step.Path, e.settled())
		}
	}
	m.Journal = nil
	return s.save(m)
}

// undo rolls back, and returns an error if something is left.
func (s *Store) undo(m Manifest) error {
	left, err := s.rollback(m)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("not everything was restored: %s", strings.Join(left, "; "))
	}
	return err
}

// rollback ends the transaction and undoes its changes. It returns descriptions of the
// paths that are left because others changed them meanwhile. It can be repeated after an
// error or a kill.
func (s *Store) rollback(m Manifest) (left []string, err error) {
	j := *m.Journal
	m.Journal = nil
	var items []Item
	for _, step := range slices.Backward(j.Steps) {
		now, err := observe(s.Root, step.Path)
		if err != nil {
			return nil, err
		}
		switch {
		case now.same(step.After):
			item, err := s.item(step.Path, step.Before)
			if err != nil {
				return nil, err
			}
			items = append(items, item)
		case now.same(step.Before):
		default:
			left = append(left, step.Path+" was changed by others since, and stays as it is")
			continue
		}
		m = m.with(step.Path, step.Entry)
	}
	changes, err := Plan(s.Root, items)
	if err == nil {
		_, err = Write(s.Root, changes)
	}
	if err != nil {
		return left, err
	}
	still, err := removeDirs(s.Root, j.Dirs)
	if err != nil {
		return left, err
	}
	m.Dirs = slices.DeleteFunc(slices.Clone(m.Dirs), func(d string) bool { return slices.Contains(j.Dirs, d) && !slices.Contains(still, d) })
	return left, s.save(m)
}

func (j Journal) touches(p string) bool {
	return slices.ContainsFunc(j.Steps, func(s Step) bool { return s.Path == p })
}

func (j Journal) pending() error {
	var paths []string
	for _, s := range j.Steps {
		paths = append(paths, s.Path)
	}
	return fmt.Errorf("%w since %s, at stage %q, of %v: finish or undo it first", errPending, j.Since.Format(time.RFC3339), j.Stage, paths)
}
