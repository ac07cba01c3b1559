package target

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

// refusedName is the file beside the account that says what a runtime did not take.
const refusedName = "refused.json"

// restoringName is the file beside it that is there while a restore is under way.
const restoringName = "restoring"

const maxNote = 1 << 20

// noteKey is where the note is in a transaction's data.
const noteKey = "configure"

// Journal keeps the account of a runtime's configuration: configure.Journal.
type Journal struct {
	Root    *host.Root
	Dir     string // where the account is
	BootID  string
	Account *sync.Mutex // held while the account is read and written
}

// Plan compares with what is on the host.
func (j Journal) Plan(items []change.Item) ([]change.Change, error) {
	return change.Plan(j.Root, items)
}

// Begin makes the changes, or none of them.
func (j Journal) Begin(changes []change.Change, note []byte) error {
	j.Account.Lock()
	defer j.Account.Unlock()
	tx, err := install.Begin(j.Root, j.Dir, j.BootID, changes, map[string]string{noteKey: string(note)})
	if err != nil {
		return err
	}
	if err := tx.Write(); err != nil {
		return errors.Join(err, undo(tx))
	}
	return nil
}

// Pending returns what was begun and not ended. What was written in part only is
// undone: that is as if it had not been begun.
func (j Journal) Pending() (note []byte, pending bool, err error) {
	j.Account.Lock()
	defer j.Account.Unlock()
	tx, err := install.Pending(j.Root, j.Dir, j.BootID)
	if err != nil || tx == nil {
		return nil, false, err
	}
	whole, err := tx.Written()
	if err != nil {
		return nil, false, err
	}
	if !whole {
		return nil, false, undo(tx)
	}
	return []byte(tx.Data[noteKey]), true, nil
}

// Commit ends what was begun: it stays.
func (j Journal) Commit() error {
	return j.end(func(tx *install.Tx) error { return tx.Commit() })
}

// Undo ends what was begun: what was there before is there again.
func (j Journal) Undo() error { return j.end(undo) }

func (j Journal) end(how func(*install.Tx) error) error {
	j.Account.Lock()
	defer j.Account.Unlock()
	tx, err := install.Pending(j.Root, j.Dir, j.BootID)
	if err != nil || tx == nil {
		return err
	}
	return how(tx)
}

func undo(tx *install.Tx) error {
	left, err := tx.Rollback()
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("not all is as it was: %s", strings.Join(left, "; "))
	}
	return err
}

// Refused returns what was kept by Refuse last; nil: nothing.
func (j Journal) Refused() ([]byte, error) { return j.read(refusedName) }

// Refuse keeps why not to try the same again; nil forgets it.
func (j Journal) Refuse(note []byte) error { return j.write(refusedName, note) }

// Restoring says whether a restore has begun of which the runtime has perhaps not
// taken in what it put back, and which of its handlers were ours then.
func (j Journal) Restoring() (own []string, begun bool, err error) {
	data, err := j.read(restoringName)
	if err != nil || data == nil {
		return nil, false, err
	}
	return strings.Fields(string(data)), true, nil
}

// BeginRestoring takes note that a restore begins, and of the handlers that are ours.
func (j Journal) BeginRestoring(own []string) error {
	return j.write(restoringName, []byte(strings.Join(own, "\n")+"\n"))
}

// EndRestoring takes note that the runtime has taken in what was put back.
func (j Journal) EndRestoring() error { return j.write(restoringName, nil) }

// read returns a file beside the account; nil: it is not there.
func (j Journal) read(name string) ([]byte, error) {
	data, err := j.Root.ReadFile(path.Join(j.Dir, name), maxNote)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// write makes a file beside the account, and an entry in it; without data there is none.
func (j Journal) write(name string, data []byte) error {
	item := change.Item{Path: path.Join(j.Dir, name), Absent: data == nil}
	if data != nil {
		item.File = &change.File{Data: data, Mode: 0o644}
	}
	changes, err := change.Plan(j.Root, []change.Item{item})
	if err != nil {
		return err
	}
	j.Account.Lock()
	defer j.Account.Unlock()
	return install.Apply(j.Root, j.Dir, j.BootID, changes)
}
