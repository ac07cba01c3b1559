// Package install keeps account of what the toolkit has put on the host, so
// that exactly that can be taken away again, and nothing that others made or
// changed since.
//
// The account is a file beside the hook. It is written before the host is
// changed: a toolkit that is killed in between has an entry for something that
// is not there, never something without an entry.
package install

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/change"
)

// HookName is the file name of the hook in the install directory.
const HookName = "gpu-cdi-hook"

const (
	manifestName = "manifest.json"
	maxManifest  = 4 << 20
	manifestV    = 1
)

// Manifest is what is on the host because of the toolkit.
type Manifest struct {
	Version int      `json:"version"`
	BootID  string   `json:"bootID"` // of the entries that do not outlive a boot
	Entries []Entry  `json:"entries,omitempty"`
	Dirs    []string `json:"dirs,omitempty"` // made by the toolkit, outermost first
}

// Entry is one path and what was put there; one of SHA256, Link and Node is set.
type Entry struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256,omitempty"`
	Link   string `json:"link,omitempty"`
	Node   string `json:"node,omitempty"` // "195:255"
}

// ManifestPath is where the account is kept.
func ManifestPath(dir string) string { return path.Join(dir, manifestName) }

// Read returns the account, empty where there is none. What lies on file systems
// that are made anew at every boot and is from another boot is left out.
func Read(root *host.Root, dir, bootID string) (Manifest, error) {
	empty := Manifest{Version: manifestV, BootID: bootID}
	data, err := root.ReadFile(ManifestPath(dir), maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return empty, nil
	}
	if err != nil {
		return empty, err
	}
	var m Manifest
	err = json.Unmarshal(data, &m)
	if err == nil && m.Version != manifestV {
		err = fmt.Errorf("its version is %d, not %d", m.Version, manifestV)
	}
	if err != nil {
		return empty, fmt.Errorf("%s is not an account that this program can read: %w; remove what it names by hand, then the file itself", ManifestPath(dir), err)
	}
	if m.BootID != bootID {
		m.BootID = bootID
		m.Entries = slices.DeleteFunc(m.Entries, func(e Entry) bool { return volatile(e.Path) })
		m.Dirs = slices.DeleteFunc(m.Dirs, volatile)
	}
	return m, nil
}

func volatile(p string) bool {
	for _, dir := range []string{"/dev", "/run", "/var/run", "/tmp"} {
		if p == dir || strings.HasPrefix(p, dir+"/") {
			return true
		}
	}
	return false
}

// With returns the account as it will be after the changes, which make dirs.
func (m Manifest) With(changes []change.Change, dirs []string) Manifest {
	entries := map[string]Entry{}
	var order []string
	for _, e := range m.Entries {
		entries[e.Path] = e
		order = append(order, e.Path)
	}
	for _, c := range changes {
		if c.Absent {
			delete(entries, c.Path)
			continue
		}
		if _, ok := entries[c.Path]; !ok {
			order = append(order, c.Path)
		}
		entries[c.Path] = entry(c.Item)
	}
	out := Manifest{Version: m.Version, BootID: m.BootID}
	seen := map[string]bool{}
	for _, p := range order {
		if e, ok := entries[p]; ok && !seen[p] {
			seen[p] = true
			out.Entries = append(out.Entries, e)
		}
	}
	for _, d := range slices.Concat(m.Dirs, dirs) {
		if !slices.Contains(out.Dirs, d) {
			out.Dirs = append(out.Dirs, d)
		}
	}
	return out
}

func entry(i change.Item) Entry {
	switch {
	case i.File != nil:
		sum := sha256.Sum256(i.File.Data)
		return Entry{Path: i.Path, SHA256: hex.EncodeToString(sum[:])}
	case i.Node != nil:
		return Entry{Path: i.Path, Node: fmt.Sprintf("%d:%d", i.Node.Major, i.Node.Minor)}
	}
	return Entry{Path: i.Path, Link: i.Link}
}

// Item is the account as a file that is wanted on the host.
func (m Manifest) Item(dir string) change.Item {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		panic(err) // strings and numbers only
	}
	return change.Item{Path: ManifestPath(dir), File: &change.File{Data: append(data, '\n'), Mode: 0o644}}
}

// Hook is the hook as a file that is wanted on the host.
func Hook(dir string, program []byte) change.Item {
	return change.Item{Path: path.Join(dir, HookName), File: &change.File{Data: program, Mode: 0o755}}
}

// Apply makes the changes and keeps account of them.
func Apply(root *host.Root, dir, bootID string, changes []change.Change) error {
	if len(changes) == 0 {
		return nil
	}
	dirs, err := change.Dirs(root, append([]change.Change{{Item: change.Item{Path: ManifestPath(dir)}}}, changes...))
	if err != nil {
		return err
	}
	m, err := Read(root, dir, bootID)
	if err != nil {
		return err
	}
	// First with what is removed still in it, so that nothing is ever there
	// without an entry; then without.
	var made []change.Change
	for _, c := range changes {
		if !c.Absent {
			made = append(made, c)
		}
	}
	if err := save(root, dir, m.With(made, dirs)); err != nil {
		return err
	}
	if err := change.Apply(root, changes); err != nil {
		return err
	}
	return save(root, dir, m.With(changes, dirs))
}

func save(root *host.Root, dir string, m Manifest) error {
	changes, err := change.Plan(root, []change.Item{m.Item(dir)})
	if err != nil {
		return err
	}
	return change.Apply(root, changes)
}

// Uninstall returns what has to be removed to take away everything that the
// toolkit put on the host, and, in words, what is left because it was changed
// by others.
func Uninstall(root *host.Root, dir, bootID string) (changes []change.Change, dirs, left []string, err error) {
	m, err := Read(root, dir, bootID)
	if err != nil {
		return nil, nil, nil, err
	}
	var items []change.Item
	for _, e := range slices.Backward(m.Entries) {
		same, err := e.unchanged(root)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, nil, nil, err
		case !same:
			left = append(left, e.Path+" was changed by others since")
		default:
			items = append(items, change.Item{Path: e.Path, Absent: true})
		}
	}
	items = append(items, change.Item{Path: ManifestPath(dir), Absent: true})
	changes, err = change.Plan(root, items)
	dirs = slices.Clone(m.Dirs)
	slices.Reverse(dirs)
	return changes, dirs, left, err
}

func (e Entry) unchanged(root *host.Root) (bool, error) {
	info, err := root.Lstat(e.Path)
	if err != nil {
		return false, err
	}
	switch {
	case e.Node != "":
		major, minor, ok := host.Device(info)
		return ok && e.Node == fmt.Sprintf("%d:%d", major, minor), nil
	case e.Link != "":
		if info.Mode()&fs.ModeSymlink == 0 {
			return false, nil
		}
		target, err := root.Readlink(e.Path)
		return target == e.Link, err
	case !info.Mode().IsRegular():
		return false, nil
	}
	data, err := root.ReadFile(e.Path, 64<<20)
	if err != nil {
		return false, err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]) == e.SHA256, nil
}

// RemoveDirs removes directories, innermost first, that are empty.
func RemoveDirs(root *host.Root, dirs []string) {
	for _, d := range dirs {
		// Not empty: others use it now. Not there: fine as well.
		_ = root.Remove(d)
	}
}
