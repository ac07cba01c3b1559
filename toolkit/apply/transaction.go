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

// The stages of a transaction, in its journal.
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
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.begin(changes, note)
	if err != nil || t == nil {
		return err
	}
	if err := t.write(changes); err != nil {
		return errors.Join(err, t.undo())
	}
	return nil
}

// Pending returns the note of the unfinished transaction. It rolls back one that is only
// partly written, as if that had not been begun.
func (s *Store) Pending() (note []byte, pending bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.pending()
	if err != nil || t == nil {
		return nil, false, err
	}
	complete, err := t.written()
	if err != nil {
		return nil, false, err
	}
	if !complete {
		return nil, false, t.undo()
	}
	return []byte(t.Data[noteKey]), true, nil
}

// Commit ends the transaction, if there is one, and keeps its changes.
func (s *Store) Commit() error { return s.end((*transaction).commit) }

// Undo ends the transaction, if there is one, and rolls back its changes. It returns an error
// if others changed some of the files meanwhile, which stay as they are.
func (s *Store) Undo() error { return s.end((*transaction).undo) }

func (s *Store) end(how func(*transaction) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.pending()
	if err != nil || t == nil {
		return err
	}
	return how(t)
}

// transaction is an unfinished transaction of a store.
type transaction struct {
	Journal
	*Store
}

// begin writes the planned changes, their note and everything needed to undo them to the
// disk. It returns nil if there are no changes.
func (s *Store) begin(changes []Change, note []byte) (*transaction, error) {
	if len(changes) == 0 {
		return nil, nil
	}
	p, err := s.prepare(changes)
	if err != nil {
		return nil, err
	}
	if p.before.Journal != nil {
		return nil, p.before.Journal.pending()
	}
	for _, c := range changes {
		if c.Was.File != nil {
			p.keep[hash(c.Was.File.Data)] = c.Was.File.Data
		}
	}
	j := Journal{
		BootID: s.BootID, Since: time.Now().UTC().Truncate(time.Second), Stage: stageBegun,
		Data: map[string]string{noteKey: string(note)}, Steps: p.steps, Dirs: p.dirs,
	}
	p.before.Journal = &j
	if err := s.record(p.before, p.keep); err != nil {
		return nil, err
	}
	return &transaction{j, s}, nil
}

// pending returns the unfinished transaction, nil if there is none.
func (s *Store) pending() (*transaction, error) {
	m, err := s.read()
	if err != nil || m.Journal == nil {
		return nil, err
	}
	return &transaction{*m.Journal, s}, nil
}

// written reports whether all changes of the transaction are made.
func (t *transaction) written() (bool, error) {
	for _, step := range t.Steps {
		now, err := observe(t.Root, step.Path)
		if err != nil || !now.same(step.After) {
			return false, err
		}
	}
	return true, nil
}

// write makes the changes passed to begin. After an error, roll back.
func (t *transaction) write(changes []Change) error {
	if _, err := Write(t.Root, changes); err != nil {
		return err
	}
	return t.update(func(m *Manifest) {
		t.Stage = stageWritten
		m.Journal = &t.Journal
	})
}

// commit ends the transaction and keeps its changes.
func (t *transaction) commit() error {
	return t.update(func(m *Manifest) {
		for _, step := range t.Steps {
			if e := m.entry(step.Path); e != nil {
				*m = m.with(step.Path, e.settled())
			}
		}
		m.Journal = nil
	})
}

// undo rolls back, and returns an error if something is left.
func (t *transaction) undo() error {
	left, err := t.rollback()
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("not everything was restored: %s", strings.Join(left, "; "))
	}
	return err
}

// rollback ends the transaction and undoes its changes. It returns descriptions of the
// paths that are left because others changed them meanwhile. It can be repeated after an
// error or a kill.
func (t *transaction) rollback() (left []string, err error) {
	if len(t.Steps) == 0 {
		return nil, t.update(func(m *Manifest) { m.Journal = nil })
	}
	var items []Item
	undone := map[string]*Entry{}
	for _, step := range slices.Backward(t.Steps) {
		now, err := observe(t.Root, step.Path)
		if err != nil {
			return nil, err
		}
		switch {
		case now.same(step.After):
			item, err := t.item(step.Path, step.Before)
			if err != nil {
				return nil, err
			}
			items = append(items, item)
			undone[step.Path] = step.Entry
		case now.same(step.Before):
			undone[step.Path] = step.Entry
		default:
			left = append(left, step.Path+" was changed by others since, and stays as it is")
		}
	}
	changes, err := Plan(t.Root, items)
	if err == nil {
		_, err = Write(t.Root, changes)
	}
	if err != nil {
		return left, err
	}
	still, err := removeDirs(t.Root, t.Dirs)
	if err != nil {
		return left, err
	}
	return left, t.update(func(m *Manifest) {
		for p, e := range undone {
			*m = m.with(p, e)
		}
		m.Dirs = slices.DeleteFunc(m.Dirs, func(d string) bool { return slices.Contains(t.Dirs, d) && !slices.Contains(still, d) })
		m.Journal = nil
	})
}

// update changes the manifest of an unfinished transaction.
func (t *transaction) update(edit func(*Manifest)) error {
	m, err := t.read()
	if err != nil || m.Journal == nil {
		return err
	}
	edit(&m)
	return t.save(m)
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
