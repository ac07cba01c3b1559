package configure

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/change"
	"github.com/gpuready/gpuready/toolkit/install"
)

// refusedName is the file next to the manifest that records the plan a runtime rejected.
const refusedName = "refused.json"

// restoringName is the file next to it that exists during a restore.
const restoringName = "restoring"

const maxNote = 1 << 20

// noteKey is the key of the note in a transaction's data.
const noteKey = "configure"

// HostJournal implements configure.Journal with the manifest of package install.
type HostJournal struct {
	Root   *host.Root
	Dir    string // the directory of the manifest
	BootID string
	Mutex  *sync.Mutex // held while the manifest is read and written
}

// Plan compares the items with the host.
func (j HostJournal) Plan(items []change.Item) ([]change.Change, error) {
	return change.Plan(j.Root, items)
}

// Begin makes the changes, or none of them.
func (j HostJournal) Begin(changes []change.Change, note []byte) error {
	j.Mutex.Lock()
	defer j.Mutex.Unlock()
	tx, err := install.Begin(j.Root, j.Dir, j.BootID, changes, map[string]string{noteKey: string(note)})
	if err != nil {
		return err
	}
	if err := tx.Write(); err != nil {
		return errors.Join(err, undo(tx))
	}
	return nil
}

// Pending returns the note of an unfinished transaction. It rolls back a partially written
// one, as if that had not been begun.
func (j HostJournal) Pending() (note []byte, pending bool, err error) {
	j.Mutex.Lock()
	defer j.Mutex.Unlock()
	tx, err := install.Pending(j.Root, j.Dir, j.BootID)
	if err != nil || tx == nil {
		return nil, false, err
	}
	complete, err := tx.Written()
	if err != nil {
		return nil, false, err
	}
	if !complete {
		return nil, false, undo(tx)
	}
	return []byte(tx.Data[noteKey]), true, nil
}

// Commit ends the transaction and keeps its changes.
func (j HostJournal) Commit() error {
	return j.end(func(tx *install.Tx) error { return tx.Commit() })
}

// Undo ends the transaction and rolls back its changes.
func (j HostJournal) Undo() error { return j.end(undo) }

func (j HostJournal) end(how func(*install.Tx) error) error {
	j.Mutex.Lock()
	defer j.Mutex.Unlock()
	tx, err := install.Pending(j.Root, j.Dir, j.BootID)
	if err != nil || tx == nil {
		return err
	}
	return how(tx)
}

func undo(tx *install.Tx) error {
	left, err := tx.Rollback()
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("not everything was restored: %s", strings.Join(left, "; "))
	}
	return err
}

// Refused returns the note of the last Refuse, nil if there is none.
func (j HostJournal) Refused() ([]byte, error) { return j.read(refusedName) }

// Refuse records the note of a rejected plan. nil removes it.
func (j HostJournal) Refuse(note []byte) error { return j.write(refusedName, note) }

// Restoring reports whether a restore has begun whose configuration the runtime may not have
// loaded yet. It also returns the runtime's handlers that were ours then.
func (j HostJournal) Restoring() (own []string, begun bool, err error) {
	data, err := j.read(restoringName)
	if err != nil || data == nil {
		return nil, false, err
	}
	return strings.Fields(string(data)), true, nil
}

// BeginRestoring records the beginning of a restore, and the handlers that are ours.
func (j HostJournal) BeginRestoring(own []string) error {
	return j.write(restoringName, []byte(strings.Join(own, "\n")+"\n"))
}

// EndRestoring records that the runtime has loaded the restored configuration.
func (j HostJournal) EndRestoring() error { return j.write(restoringName, nil) }

// read reads a file next to the manifest. It returns nil if there is none.
func (j HostJournal) read(name string) ([]byte, error) {
	data, err := j.Root.ReadFile(path.Join(j.Dir, name), maxNote)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// write writes a file next to the manifest, and its entry. Without data it removes both.
func (j HostJournal) write(name string, data []byte) error {
	item := change.Item{Path: path.Join(j.Dir, name), Absent: data == nil}
	if data != nil {
		item.File = &change.File{Data: data, Mode: 0o644}
	}
	changes, err := change.Plan(j.Root, []change.Item{item})
	if err != nil {
		return err
	}
	j.Mutex.Lock()
	defer j.Mutex.Unlock()
	return install.Apply(j.Root, j.Dir, j.BootID, changes)
}
