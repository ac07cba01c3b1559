package apply

import (
	"errors"
	"io/fs"
	"path"
	"strings"
)

// refusedName is the file next to the manifest that records the plan a runtime rejected.
const refusedName = "refused.json"

// restoringName is the file next to it that exists during a restore.
const restoringName = "restoring"

const maxNote = 1 << 20

// Refused returns the note of the last Refuse, nil if there is none.
func (s *Store) Refused() ([]byte, error) { return s.readNote(refusedName) }

// Refuse records the note of a rejected plan. nil removes it.
func (s *Store) Refuse(note []byte) error { return s.writeNote(refusedName, note) }

// Restoring reports whether a restore has begun whose configuration the runtime may not have
// loaded yet. It also returns the runtime's handlers that were ours then.
func (s *Store) Restoring() (own []string, begun bool, err error) {
	data, err := s.readNote(restoringName)
	if err != nil || data == nil {
		return nil, false, err
	}
	return strings.Fields(string(data)), true, nil
}

// BeginRestoring records the beginning of a restore, and the handlers that are ours.
func (s *Store) BeginRestoring(own []string) error {
	return s.writeNote(restoringName, []byte(strings.Join(own, "\n")+"\n"))
}

// EndRestoring records that the runtime has loaded the restored configuration.
func (s *Store) EndRestoring() error { return s.writeNote(restoringName, nil) }

// readNote reads a file next to the manifest. It returns nil if there is none.
func (s *Store) readNote(name string) ([]byte, error) {
	data, err := s.Root.ReadFile(path.Join(s.Dir, name), maxNote)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// writeNote writes a file next to the manifest, and its entry. Without data it removes both.
func (s *Store) writeNote(name string, data []byte) error {
	item := Item{Path: path.Join(s.Dir, name), Absent: data == nil}
	if data != nil {
		item.File = &File{Data: data, Mode: 0o644}
	}
	_, err := s.ApplyItems([]Item{item})
	return err
}
