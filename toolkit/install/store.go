package install

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/change"
)

// maxOriginal limits the size of an original, in bytes. Plan reads no larger file.
const maxOriginal = 64 << 20

// store is the install directory, which holds the manifest and the originals.
type store struct {
	root        *host.Root
	dir, bootID string
}

func (s store) read() (Manifest, error) { return Read(s.root, s.dir, s.bootID) }

func (s store) originals() string { return path.Join(s.dir, "originals") }

// OriginalPath returns the path of the original with this SHA-256.
func OriginalPath(dir, sha256 string) string { return path.Join(dir, "originals", sha256) }

// write writes one of our own files if it differs.
func (s store) write(name string, data []byte) error {
	changes, err := change.Plan(s.root, []change.Item{{Path: name, File: &change.File{Data: data, Mode: 0o600}}})
	if err != nil {
		return err
	}
	return change.Apply(s.root, changes)
}

// save writes the manifest and removes the originals that it does not need.
func (s store) save(m Manifest) error {
	if err := s.write(ManifestPath(s.dir), m.encode()); err != nil {
		return err
	}
	return s.removeUnused(m)
}

// writeOriginals writes the files that are replaced, so that they can be restored.
func (s store) writeOriginals(all map[string][]byte) error {
	for sum, data := range all {
		if err := s.write(OriginalPath(s.dir, sum), data); err != nil {
			return err
		}
	}
	return nil
}

// removeUnused removes the originals that the manifest does not need.
func (s store) removeUnused(m Manifest) error {
	entries, err := s.root.ReadDir(s.originals())
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
		if err := s.root.Remove(OriginalPath(s.dir, e.Name())); err != nil {
			return change.Explain(s.root, s.originals(), err)
		}
		removed++
	}
	if removed > 0 {
		err = s.root.SyncDir(s.originals())
	}
	if err == nil && left == 0 {
		if err = s.root.Remove(s.originals()); err == nil {
			err = s.root.SyncDir(s.dir)
		}
	}
	return change.Explain(s.root, s.originals(), err)
}

// item returns the item that restores a state, with the bytes of the original.
func (s store) item(p string, st State) (change.Item, error) {
	item := change.Item{Path: p, Link: st.Link, Absent: st.Absent}
	if st.Node != "" {
		item.Node = &change.Node{Mode: st.Mode.file()}
		_, err := fmt.Sscanf(st.Node, "%d:%d", &item.Node.Major, &item.Node.Minor)
		return item, err
	}
	if st.SHA256 == "" {
		return item, nil
	}
	at := OriginalPath(s.dir, st.SHA256)
	data, err := s.root.ReadFile(at, maxOriginal)
	if err == nil && hash(data) != st.SHA256 {
		err = errors.New("its content does not match the hash in its name")
	}
	if err != nil {
		return item, fmt.Errorf("%s, the original of %s, cannot be used: %w; restore %s by hand, nothing was done", at, p, err, p)
	}
	item.File = &change.File{Data: data, Mode: st.Mode.file(), Xattrs: st.Xattrs}
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
func (s store) create() error {
	dirs, err := change.Dirs(s.root, []change.Change{{Item: change.Item{Path: ManifestPath(s.dir)}}})
	if err != nil || len(dirs) == 0 {
		return err
	}
	m := Manifest{Version: manifestV, BootID: s.bootID, Dirs: dirs}
	top, inner := dirs[0], dirs[len(dirs)-1]
	temp := host.Temp(top)
	if _, err := s.root.MkdirAll(temp+inner[len(top):], 0o755); err != nil {
		if at, ok := errors.AsType[*fs.PathError](err); ok {
			err = &fs.PathError{Op: "mkdir", Path: s.dir, Err: at.Err}
		}
		return change.Explain(s.root, top, err)
	}
	err = s.write(ManifestPath(temp+inner[len(top):]), m.encode())
	for _, d := range slices.Backward(dirs[:len(dirs)-1]) {
		if err == nil {
			err = s.root.SyncDir(temp + d[len(top):])
		}
	}
	if err == nil {
		err = s.root.Rename(temp, top)
	}
	if err != nil {
		return errors.Join(change.Explain(s.root, top, err), s.remove(temp))
	}
	return change.Explain(s.root, top, s.root.SyncDir(path.Dir(top)))
}

// removeLast removes the manifest, the last of our files, and the directories that were
// made for it and are empty otherwise.
func (s store) removeLast(dirs []string) error {
	real, err := s.root.Resolve(s.dir)
	if err != nil {
		return err
	}
	for _, top := range dirs {
		if !within(real, top) || !s.holdsOnly(top, real) {
			continue
		}
		temp := host.Temp(top)
		err := s.root.Rename(top, temp)
		if errors.Is(err, syscall.EBUSY) {
			break // a mount
		}
		if err == nil {
			err = errors.Join(s.root.SyncDir(path.Dir(top)), s.remove(temp))
		}
		if err == nil {
			err = s.root.SyncDir(path.Dir(top))
		}
		return change.Explain(s.root, top, err)
	}
	err = s.root.Remove(ManifestPath(s.dir))
	if err == nil {
		err = s.root.SyncDir(s.dir)
	}
	if err == nil {
		_, err = removeDirs(s.root, dirs)
	}
	return change.Explain(s.root, ManifestPath(s.dir), err)
}

// holdsOnly reports whether top contains nothing but the manifest in dir.
func (s store) holdsOnly(top, dir string) bool {
	name := manifestName
	for p := dir; ; p = path.Dir(p) {
		entries, err := s.root.ReadDir(p)
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
func (s store) remove(temp string) error {
	info, err := s.root.Lstat(temp)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.IsDir() {
		entries, err := s.root.ReadDir(temp)
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
	return s.root.Remove(temp)
}

// removeDirs removes the empty directories, innermost first. It returns those that
// others use because they are not empty or a mount point.
func removeDirs(root *host.Root, dirs []string) (left []string, err error) {
	for _, d := range slices.Backward(dirs) {
		err := root.Remove(d)
		if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.EBUSY) || isNotDir(err) {
			left = append(left, d)
			continue
		}
		if err == nil {
			err = root.SyncDir(path.Dir(d))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // its own parent may be gone
			return left, change.Explain(root, d, err)
		}
	}
	slices.Reverse(left)
	return left, nil
}
