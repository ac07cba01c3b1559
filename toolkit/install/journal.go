package install

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/change"
)

// ErrPending is returned, wrapped, if an unfinished transaction is in the way.
var ErrPending = errors.New("a change is unfinished")

// Stages that a transaction enters by itself. The caller defines further ones.
const (
	StageBegun   = "begun"   // some of it may be written
	StageWritten = "written" // all of it is written
)

// Tx is a transaction: changes that are kept or undone together.
type Tx struct {
	Journal
	store
	changes []change.Change // none if it was found by Pending
}

// Begin writes the planned changes, their reason and everything needed to undo them to
// the disk. The data is the caller's: it tells the next start what was under way, such
// as {"restart": "containerd.service"}. Without changes the transaction has no effect
// and nothing is written.
func Begin(root *host.Root, dir, bootID string, changes []change.Change, data map[string]string) (*Tx, error) {
	s := store{root, dir, bootID}
	if len(changes) == 0 {
		return &Tx{store: s}, nil
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
	j := Journal{BootID: bootID, Since: time.Now().UTC().Truncate(time.Second), Stage: StageBegun, Data: data, Steps: p.steps, Dirs: p.dirs}
	p.before.Journal = &j
	if err := s.record(p.before, p.keep); err != nil {
		return nil, err
	}
	return &Tx{Journal: j, store: s, changes: changes}, nil
}

// Pending returns the unfinished transaction, nil if there is none.
func Pending(root *host.Root, dir, bootID string) (*Tx, error) {
	s := store{root, dir, bootID}
	m, err := s.read()
	if err != nil || m.Journal == nil {
		return nil, err
	}
	return &Tx{Journal: *m.Journal, store: s}, nil
}

// Rebooted reports whether the machine, and so every daemon on it, was restarted since
// the transaction began.
func (t *Tx) Rebooted() bool { return len(t.Steps) > 0 && t.BootID != t.bootID }

// Written reports whether all changes of the transaction are made. If not, undo it with
// Rollback and plan again.
func (t *Tx) Written() (bool, error) {
	for _, step := range t.Steps {
		now, err := observe(t.root, step.Path)
		if err != nil || !now.same(step.After) {
			return false, err
		}
	}
	return true, nil
}

// Write makes the changes passed to Begin, and enters StageWritten. After an error, call
// Rollback.
func (t *Tx) Write() error {
	if err := change.Apply(t.root, t.changes); err != nil {
		return err
	}
	return t.Advance(StageWritten, nil)
}

// Advance records that a stage is reached, and adds data to the recorded data.
func (t *Tx) Advance(stage string, data map[string]string) error {
	return t.update(func(m *Manifest) {
		all := map[string]string{}
		maps.Copy(all, t.Data)
		maps.Copy(all, data)
		t.Stage, t.Data = stage, all
		m.Journal = &t.Journal
	})
}

// Commit ends the transaction and keeps its changes.
func (t *Tx) Commit() error {
	return t.update(func(m *Manifest) {
		for _, step := range t.Steps {
			if e := m.entry(step.Path); e != nil {
				*m = m.with(step.Path, e.settled())
			}
		}
		m.Journal = nil
	})
}

// Rollback ends the transaction and undoes its changes. It returns descriptions of the
// paths that are left because others changed them meanwhile. It can be repeated after an
// error or a kill.
func (t *Tx) Rollback() (left []string, err error) {
	if len(t.Steps) == 0 {
		return nil, t.update(func(m *Manifest) { m.Journal = nil })
	}
	var items []change.Item
	undone := map[string]*Entry{}
	for _, step := range slices.Backward(t.Steps) {
		now, err := observe(t.root, step.Path)
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
	changes, err := change.Plan(t.root, items)
	if err == nil {
		err = change.Apply(t.root, changes)
	}
	if err != nil {
		return left, err
	}
	still, err := removeDirs(t.root, t.Dirs)
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
func (t *Tx) update(edit func(*Manifest)) error {
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
	return fmt.Errorf("%w since %s, at stage %q, of %v: finish or undo it first", ErrPending, j.Since.Format(time.RFC3339), j.Stage, paths)
}
