package apply

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	manifestName = "manifest.json"
	maxManifest  = 4 << 20
	manifestV    = 2 // 1 had no originals and no journal
)

// Manifest lists everything that the toolkit has put on the host.
type Manifest struct {
	Version int      `json:"version"`
	BootID  string   `json:"bootID"` // of the entries that do not survive a reboot
	Entries []Entry  `json:"entries,omitempty"`
	Dirs    []string `json:"dirs,omitempty"` // made by the toolkit, outermost first
	Journal *Journal `json:"journal,omitempty"`
	Kept    []Kept   `json:"kept,omitempty"`
}

// Entry is one path and the state that was last written there.
type Entry struct {
	Path string `json:"path"`
	State
	// Pending is the other possible state after a change that was begun and perhaps not
	// made.
	Pending *State `json:"also,omitempty"`
	// Original is the state that Restore restores. It is nil in manifests of version 1,
	// where it is unknown and treated as absent.
	Original *State `json:"original,omitempty"`
	// First is the state before our first change, if others have changed the file
	// between our changes, so that Original is their version.
	First *State `json:"first,omitempty"`
	// Added are our lines in a file, for a person who has to remove them from a version
	// that others edited.
	Added []string `json:"added,omitempty"`
}

// Kept is an original that was not restored and that a person may want.
type Kept struct {
	Path   string `json:"path"` // its former path
	SHA256 string `json:"sha256"`
}

// Journal is an unfinished transaction.
type Journal struct {
	BootID string            `json:"bootID"` // of the boot in which it was begun
	Since  time.Time         `json:"since"`
	Stage  string            `json:"stage"`
	Data   map[string]string `json:"data,omitempty"`
	Steps  []Step            `json:"steps"`
	Dirs   []string          `json:"dirs,omitempty"` // made by the transaction
}

// Step is one change of a transaction.
type Step struct {
	Path   string `json:"path"`
	Before State  `json:"before"`
	After  State  `json:"after"`
	Entry  *Entry `json:"entry,omitempty"` // the entry before the change, nil if there was none
}

// manifestPath returns the path of the manifest.
func manifestPath(dir string) string { return path.Join(dir, manifestName) }

// read reads the manifest, see Manifest.
func (s *Store) read() (Manifest, error) {
	empty := Manifest{Version: manifestV, BootID: s.BootID}
	data, err := s.Root.ReadFile(manifestPath(s.Dir), maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return empty, nil
	}
	if err != nil {
		return empty, err
	}
	m, err := decode(data)
	if err != nil {
		return empty, fmt.Errorf("%s is not a manifest that this program can read: %w; remove the files that it names by hand, then the manifest itself", manifestPath(s.Dir), err)
	}
	m.Version = manifestV
	if m.BootID != s.BootID {
		m.dropVolatile(s.BootID)
	}
	return m, nil
}

// dropVolatile removes entries that did not survive the reboot.
func (m *Manifest) dropVolatile(bootID string) {
	m.BootID = bootID
	m.Entries = slices.DeleteFunc(m.Entries, func(e Entry) bool { return volatile(e.Path) })
	m.Dirs = slices.DeleteFunc(m.Dirs, volatile)
	if j := m.Journal; j != nil {
		j.Steps = slices.DeleteFunc(j.Steps, func(s Step) bool { return volatile(s.Path) })
		j.Dirs = slices.DeleteFunc(j.Dirs, volatile)
	}
}

func volatile(p string) bool {
	for _, dir := range []string{"/dev", "/run", "/var/run", "/tmp"} {
		if within(p, dir) {
			return true
		}
	}
	return false
}

func within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

func decode(data []byte) (Manifest, error) {
	var m Manifest
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		// A newer version may have fields that this program does not know.
		var v struct{ Version int }
		if json.Unmarshal(data, &v) == nil && v.Version > manifestV {
			return m, fmt.Errorf("its version is %d, not %d", v.Version, manifestV)
		}
		return m, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return m, errors.New("there is more data after its end")
	}
	return m, m.check()
}

var (
	isHash = regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString
	isNode = regexp.MustCompile(`^[0-9]{1,7}:[0-9]{1,7}$`).MatchString
)

// check validates everything, because the paths in the manifest are removed and replaced.
func (m Manifest) check() error {
	if m.Version < 1 || m.Version > manifestV {
		return fmt.Errorf("its version is %d, not %d", m.Version, manifestV)
	}
	seen := map[string]bool{}
	for _, e := range m.Entries {
		if err := e.check(); err != nil {
			return fmt.Errorf("entries: %w", err)
		}
		if seen[e.Path] {
			return fmt.Errorf("entries: %s is there twice", e.Path)
		}
		seen[e.Path] = true
	}
	for _, k := range m.Kept {
		if err := errors.Join(checkPath(k.Path), State{SHA256: k.SHA256}.check()); err != nil {
			return fmt.Errorf("kept: %w", err)
		}
	}
	dirs := m.Dirs
	if m.Journal != nil {
		dirs = slices.Concat(dirs, m.Journal.Dirs)
		if err := m.Journal.check(); err != nil {
			return fmt.Errorf("journal: %w", err)
		}
	}
	for _, d := range dirs {
		if err := checkPath(d); err != nil {
			return fmt.Errorf("dirs: %w", err)
		}
	}
	return nil
}

func (j Journal) check() error {
	for _, s := range j.Steps {
		err := errors.Join(checkPath(s.Path), s.Before.check(), s.After.check())
		if err == nil && s.Entry != nil {
			if err = s.Entry.check(); err == nil && s.Entry.Path != s.Path {
				err = fmt.Errorf("its entry is of %q", s.Entry.Path)
			}
		}
		if err != nil {
			return fmt.Errorf("%q: %w", s.Path, err)
		}
	}
	return nil
}

func (e Entry) check() error {
	err := errors.Join(checkPath(e.Path), e.State.check())
	for _, s := range []*State{e.Pending, e.Original, e.First} {
		if s != nil {
			err = errors.Join(err, s.check())
		}
	}
	if err != nil {
		return fmt.Errorf("%q: %w", e.Path, err)
	}
	return nil
}

func (s State) check() error {
	kinds := 0
	for _, is := range []bool{s.SHA256 != "", s.Link != "", s.Node != "", s.Absent} {
		if is {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return errors.New("it must have exactly one of sha256, link, node and absent")
	case s.SHA256 != "" && !isHash(s.SHA256):
		return fmt.Errorf("%q is not a SHA-256 in hexadecimal digits", s.SHA256)
	case s.Node != "" && !isNode(s.Node):
		return fmt.Errorf("%q is not a device number", s.Node)
	case strings.ContainsRune(s.Link, 0):
		return fmt.Errorf("%q is not the target of a link", s.Link)
	case s.Mode > 0o7777 || (s.UID == nil) != (s.GID == nil) || s.UID != nil && (*s.UID < 0 || *s.GID < 0):
		return errors.New("mode, uid and gid are not those of a file")
	}
	for name := range s.Xattrs {
		if !strings.Contains(name, ".") || strings.ContainsRune(name, 0) {
			return fmt.Errorf("%q is not an extended attribute", name)
		}
	}
	return nil
}

func checkPath(p string) error {
	if !path.IsAbs(p) || path.Clean(p) != p || p == "/" || strings.ContainsRune(p, 0) {
		return fmt.Errorf("%q is not a clean absolute path", p)
	}
	return nil
}

// entry returns the entry of a path.
func (m Manifest) entry(p string) *Entry {
	for i := range m.Entries {
		if m.Entries[i].Path == p {
			return &m.Entries[i]
		}
	}
	return nil
}

// with returns a copy of the manifest with an entry, or without it if e is nil.
func (m Manifest) with(p string, e *Entry) Manifest {
	m.Entries = slices.Clone(m.Entries)
	at := slices.IndexFunc(m.Entries, func(e Entry) bool { return e.Path == p })
	switch {
	case at < 0 && e != nil:
		m.Entries = append(m.Entries, *e)
	case at >= 0 && e != nil:
		m.Entries[at] = *e
	case at >= 0:
		m.Entries = slices.Delete(m.Entries, at, at+1)
	}
	return m
}

func (m Manifest) withDirs(dirs []string) Manifest {
	m.Dirs = slices.Clone(m.Dirs)
	for _, d := range dirs {
		if !slices.Contains(m.Dirs, d) {
			m.Dirs = append(m.Dirs, d)
		}
	}
	return m
}

func (m Manifest) encode() []byte {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		panic(err) // strings and numbers only
	}
	return append(data, '\n')
}

// originals returns the hashes of all files whose bytes the manifest needs.
func (m Manifest) originals() map[string]bool {
	need := map[string]bool{}
	add := func(s *State) {
		if s != nil && s.SHA256 != "" {
			need[s.SHA256] = true
		}
	}
	entry := func(e Entry) { add(e.Original); add(e.First) }
	for _, e := range m.Entries {
		entry(e)
	}
	for _, k := range m.Kept {
		need[k.SHA256] = true
	}
	if m.Journal != nil {
		for _, s := range m.Journal.Steps {
			add(&s.Before)
			if s.Entry != nil {
				entry(*s.Entry)
			}
		}
	}
	return need
}
