// Package apply brings a host to a wanted state, and back. The wanted state is data: Plan
// computes the required changes from the host's files, Print prints them byte for byte, and
// a Store makes them. Correct files are not touched, not even their time stamps.
//
// The store records what it puts on the host in a manifest, next to the hook. Next to it
// lies every file that was replaced or removed, under its hash: the original. Both are
// synced to the disk before the host is changed. So after a kill or a power loss there may
// be an entry without a file, but never a file without an entry, and never a change that
// cannot be undone.
//
// A change is one call of Apply, or a transaction: Begin, then Commit or Undo. A
// transaction is for changes to more than files, as when a container runtime has to be
// restarted and gets its old configuration back if that fails. The next start finds an
// unfinished transaction with Pending.
//
// Restore restores the version from before our first change. If others edit a file after
// we wrote it:
//   - and we write it again: Restore restores their version, without our parts if the
//     caller provides that (File.Without). The file from before the first change is kept,
//     and Restore reports its path.
//   - and Restore is called: the file stays as they left it. Restore reports which of
//     its lines are ours, and the path of the original. The manifest keeps the entry, so
//     that a later Apply does not treat our lines as theirs.
package apply

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/gpuready/gpuready/internal/host"
)

// maxOriginal limits the size of an original, in bytes. Plan reads no larger file.
const maxOriginal = 64 << 20

// Store is the account of what the toolkit changes on one host: the manifest and the
// originals, in the install directory. Its methods may be called concurrently, but only one
// process may change a host (see Lock).
type Store struct {
	Root   *host.Root
	Dir    string // the install directory
	BootID string // of the running boot

	mu sync.Mutex // held while the manifest is read and written
}

// Plan compares the items with the host.
func (s *Store) Plan(items []Item) ([]Change, error) { return Plan(s.Root, items) }

// Apply changes the host to the wanted state, and records the changes. It returns those that
// it made, also with an error. If interrupted, apply again. Without changes it writes nothing.
func (s *Store) Apply(items []Item) (made []Change, err error) {
	changes, err := s.Plan(items)
	if err != nil || len(changes) == 0 {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.apply(changes)
}

func (s *Store) apply(changes []Change) (made []Change, err error) {
	p, err := s.prepare(changes)
	if err != nil {
		return nil, err
	}
	if err := s.record(p.during, p.keep); err != nil {
		return nil, err
	}
	if made, err = Write(s.Root, changes); err != nil {
		return made, err
	}
	return made, s.save(p.after)
}

// Manifest returns the manifest, an empty one if there is none. It omits entries of another
// boot on file systems that are recreated at every boot.
func (s *Store) Manifest() (Manifest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.read()
}

// maxNote limits the size of a note, in bytes.
const maxNote = 1 << 20

// Note returns a note of SetNote, nil if there is none.
func (s *Store) Note(name string) ([]byte, error) {
	data, err := s.Root.ReadFile(path.Join(s.Dir, name), maxNote)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// SetNote keeps a note of the caller in a file next to the manifest, which Restore removes
// like any other. If note is nil, SetNote removes it.
func (s *Store) SetNote(name string, note []byte) error {
	item := Item{Path: path.Join(s.Dir, name), Absent: note == nil}
	if note != nil {
		item.File = &File{Data: note, Mode: 0o644}
	}
	_, err := s.Apply([]Item{item})
	return err
}

func (s *Store) originals() string { return path.Join(s.Dir, "originals") }

// originalPath returns the path of the original with this SHA-256.
func originalPath(dir, sha256 string) string { return path.Join(dir, "originals", sha256) }

// write writes one of our own files if it differs.
func (s *Store) write(name string, data []byte) error {
	changes, err := Plan(s.Root, []Item{{Path: name, File: &File{Data: data, Mode: 0o600}}})
	if err != nil {
		return err
	}
	_, err = Write(s.Root, changes)
	return err
}

// save writes the manifest and removes the originals that it does not need.
func (s *Store) save(m Manifest) error {
	if err := s.write(manifestPath(s.Dir), m.encode()); err != nil {
		return err
	}
	return s.removeUnused(m)
}

// writeOriginals writes the files that are replaced, so that they can be restored.
func (s *Store) writeOriginals(all map[string][]byte) error {
	for sum, data := range all {
		if err := s.write(originalPath(s.Dir, sum), data); err != nil {
			return err
		}
	}
	return nil
}

// removeUnused removes the originals that the manifest does not need.
func (s *Store) removeUnused(m Manifest) error {
	entries, err := s.Root.ReadDir(s.originals())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	need := m.originals()
	left, removed := 0, 0
	for _, e := range entries {
		if !isHash(e.Name()) || need[e.Name()] {
			left++
			continue
		}
		if err := s.Root.Remove(originalPath(s.Dir, e.Name())); err != nil {
			return explain(s.Root, s.originals(), err)
		}
		removed++
	}
	if removed > 0 {
		err = s.Root.SyncDir(s.originals())
	}
	if err == nil && left == 0 {
		if err = s.Root.Remove(s.originals()); err == nil {
			err = s.Root.SyncDir(s.Dir)
		}
	}
	return explain(s.Root, s.originals(), err)
}

// item returns the item that restores a state, with the bytes of the original.
func (s *Store) item(p string, st State) (Item, error) {
	item := Item{Path: p, Link: st.Link, Absent: st.Absent}
	if st.Node != "" {
		item.Node = &Node{Mode: st.Mode.file()}
		_, err := fmt.Sscanf(st.Node, "%d:%d", &item.Node.Major, &item.Node.Minor)
		return item, err
	}
	if st.SHA256 == "" {
		return item, nil
	}
	at := originalPath(s.Dir, st.SHA256)
	data, err := s.Root.ReadFile(at, maxOriginal)
	if err == nil && hash(data) != st.SHA256 {
		err = errors.New("its content does not match the hash in its name")
	}
	if err != nil {
		return item, fmt.Errorf("%s, the original of %s, cannot be used: %w; restore %s by hand, nothing was done", at, p, err, p)
	}
	item.File = &File{Data: data, Mode: st.Mode.file(), Xattrs: st.Xattrs}
	if st.UID != nil {
		item.File.Owner = &host.Owner{UID: *st.UID, GID: *st.GID}
	}
	if item.File.Xattrs == nil {
		item.File.Xattrs = map[string][]byte{}
	}
	return item, nil
}

// create creates the install directory with a manifest in it in one step, so that there
// is never a directory of ours without a manifest that names it.
func (s *Store) create() error {
	dirs, err := missingDirs(s.Root, []Change{{Item: Item{Path: manifestPath(s.Dir)}}})
	if err != nil || len(dirs) == 0 {
		return err
	}
	m := Manifest{Version: manifestV, BootID: s.BootID, Dirs: dirs}
	top, inner := dirs[0], dirs[len(dirs)-1]
	temp := host.Temp(top)
	if _, err := s.Root.MkdirAll(temp+inner[len(top):], 0o755); err != nil {
		if at, ok := errors.AsType[*fs.PathError](err); ok {
			err = &fs.PathError{Op: "mkdir", Path: s.Dir, Err: at.Err}
		}
		return explain(s.Root, top, err)
	}
	err = s.write(manifestPath(temp+inner[len(top):]), m.encode())
	for _, d := range slices.Backward(dirs[:len(dirs)-1]) {
		if err == nil {
			err = s.Root.SyncDir(temp + d[len(top):])
		}
	}
	if err == nil {
		err = s.Root.Rename(temp, top)
	}
	if err != nil {
		return errors.Join(explain(s.Root, top, err), s.remove(temp))
	}
	return explain(s.Root, top, s.Root.SyncDir(path.Dir(top)))
}

// removeLast removes the manifest, the last of our files, and the directories that were
// made for it and are empty otherwise.
func (s *Store) removeLast(dirs []string) error {
	real, err := s.Root.Resolve(s.Dir)
	if err != nil {
		return err
	}
	for _, top := range dirs {
		if !within(real, top) || !s.holdsOnly(top, real) {
			continue
		}
		temp := host.Temp(top)
		err := s.Root.Rename(top, temp)
		if errors.Is(err, syscall.EBUSY) {
			break // a mount
		}
		if err == nil {
			err = errors.Join(s.Root.SyncDir(path.Dir(top)), s.remove(temp))
		}
		if err == nil {
			err = s.Root.SyncDir(path.Dir(top))
		}
		return explain(s.Root, top, err)
	}
	err = s.Root.Remove(manifestPath(s.Dir))
	if err == nil {
		err = s.Root.SyncDir(s.Dir)
	}
	if err == nil {
		_, err = removeDirs(s.Root, dirs)
	}
	return explain(s.Root, manifestPath(s.Dir), err)
}

// holdsOnly reports whether top contains nothing but the manifest in dir.
func (s *Store) holdsOnly(top, dir string) bool {
	name := manifestName
	for p := dir; ; p = path.Dir(p) {
		entries, err := s.Root.ReadDir(p)
		if err != nil || len(entries) != 1 || entries[0].Name() != name {
			return false
		}
		if p == top {
			return true
		}
		name = path.Base(p)
	}
}

// remove removes a file or link that this program made under a temporary name, or a
// chain of directories with a manifest at its end, and nothing else.
func (s *Store) remove(temp string) error {
	info, err := s.Root.Lstat(temp)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.IsDir() {
		entries, err := s.Root.ReadDir(temp)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if !e.IsDir() && !strings.Contains(e.Name(), manifestName) {
				continue // so the directory stays
			}
			if err := s.remove(path.Join(temp, e.Name())); err != nil {
				return err
			}
		}
	}
	return s.Root.Remove(temp)
}

// removeDirs removes the empty directories, innermost first. It returns those that
// others use because they are not empty or a mount point.
func removeDirs(root *host.Root, dirs []string) (left []string, err error) {
	for _, d := range slices.Backward(dirs) {
		err := root.Remove(d)
		if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.ENOTDIR) {
			left = append(left, d)
			continue
		}
		if err == nil {
			err = root.SyncDir(path.Dir(d))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // its own parent may be gone
			return left, explain(root, d, err)
		}
	}
	slices.Reverse(left)
	return left, nil
}
