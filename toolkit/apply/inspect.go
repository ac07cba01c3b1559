package apply

import (
	"fmt"
	"strings"
	"time"
)

// Inspected compares the manifest, the toolkit's record of what it has written on the host, with what
// is there now.
type Inspected struct {
	Files      []InspectedFile
	Unfinished string // description of an unfinished transaction, "" if there is none
}

// InspectedFile is one path of the manifest.
type InspectedFile struct {
	Path     string
	What     string // "file", "link" or "device node"
	Changed  bool   // something else has changed it since the toolkit wrote it
	Removed  bool   // something else has removed it since the toolkit wrote it
	Original bool   // the path existed before, and Restore brings that content back
}

// Inspect reports every path that the toolkit has written or removed on the host. It changes nothing.
func (s *Store) Inspect() (Inspected, error) {
	m, err := s.Manifest()
	if err != nil {
		return Inspected{}, err
	}
	var found Inspected
	for _, e := range m.Entries {
		now, err := observe(s.Root, e.Path)
		if err != nil {
			return found, err
		}
		f := InspectedFile{Path: e.Path, What: "file", Original: !e.original().Absent}
		switch {
		case e.Link != "":
			f.What = "link"
		case e.Node != "":
			f.What = "device node"
		}
		f.Removed = now.Absent && !e.Absent
		f.Changed = !f.Removed && !e.ours(now)
		found.Files = append(found.Files, f)
	}
	if j := m.Journal; j != nil {
		var paths []string
		for _, step := range j.Steps {
			paths = append(paths, step.Path)
		}
		found.Unfinished = fmt.Sprintf("since %s: %s", j.Since.Format(time.RFC3339), strings.Join(paths, ", "))
	}
	return found, nil
}
