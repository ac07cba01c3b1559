package root

// This file atomically creates and removes single files, links and device nodes. It
// removes only what it created.

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Kind is the kind of an Entry.
type Kind string

// The kinds of Entry.
const (
	Dir   Kind = "dir"
	File  Kind = "file"
	Link  Kind = "link"
	Node  Kind = "node"
	State Kind = "state" // the state file: changed in place, so that is not done here
	Log   Kind = "log"   // a file that programs append to, empty at first
)

// Entry is one file, link or device node below a root.
type Entry struct {
	Path    string `json:"path"` // relative to the root
	Kind    Kind   `json:"kind"`
	Mode    uint32 `json:"mode,omitempty"`
	Sum     string `json:"sum,omitempty"`     // of a File's content, SHA-256
	Target  string `json:"target,omitempty"`  // of a Link
	Major   uint32 `json:"major,omitempty"`   // of a Node
	Minor   uint32 `json:"minor,omitempty"`   // of a Node
	Plain   bool   `json:"plain,omitempty"`   // a plain file stands in for the Node
	Library bool   `json:"library,omitempty"` // its content came from the library folder

	content []byte // of a File; nil in one that was read from a manifest
}

// NewFile returns a File with the given content.
func NewFile(name string, mode uint32, content []byte) Entry {
	sum := sha256.Sum256(content)
	return Entry{Path: name, Kind: File, Mode: mode, Sum: hex.EncodeToString(sum[:]), content: content}
}

// Union returns the entries of will and the changed entries of was: during the change,
// either may exist.
func Union(was, will []Entry) []Entry {
	all := slices.Clone(will)
	for _, e := range was {
		if !slices.ContainsFunc(will, e.same) {
			all = append(all, e)
		}
	}
	return all
}

func (e Entry) same(o Entry) bool {
	return e.Path == o.Path && e.Kind == o.Kind && e.Mode == o.Mode && e.Sum == o.Sum &&
		e.Target == o.Target && e.Major == o.Major && e.Minor == o.Minor && e.Plain == o.Plain
}

// Put creates e below root, unless it already exists as described. It replaces anything
// else at the path.
func (e Entry) Put(root string) error {
	path := filepath.Join(root, e.Path)
	if e.Kind == Dir || e.is(path) {
		return nil
	}
	temp := Temporary(path)
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := e.create(temp); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.Rename(temp, path)
}

func (e Entry) create(path string) error {
	switch {
	case e.Kind == Link:
		return os.Symlink(e.Target, path)
	case e.Kind == Node && !e.Plain:
		device := unix.Mkdev(e.Major, e.Minor)
		if err := unix.Mknod(path, unix.S_IFCHR|e.Mode, int(device)); err != nil {
			return fmt.Errorf("mknod: %w", err)
		}
	default:
		if e.Kind == File && e.content == nil {
			return errors.New("it is gone, and only gpusim up can make it again")
		}
		if err := os.WriteFile(path, e.content, fs.FileMode(e.Mode)); err != nil {
			return err
		}
	}
	return os.Chmod(path, fs.FileMode(e.Mode)) // whatever the umask
}

// Is reports whether exactly what e describes exists below root.
func (e Entry) Is(root string) bool { return e.is(filepath.Join(root, e.Path)) }

// is reports whether path is exactly what e describes.
func (e Entry) is(path string) bool {
	info, err := os.Lstat(path)
	if err != nil {
		return false
	}
	switch {
	case e.Kind == Dir:
		return info.IsDir()
	case e.Kind == State || e.Kind == Log:
		return info.Mode().IsRegular()
	case e.Kind == Link:
		target, err := os.Readlink(path)
		return err == nil && target == e.Target
	case e.Kind == Node && !e.Plain:
		var st unix.Stat_t
		return unix.Lstat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR &&
			st.Rdev == unix.Mkdev(e.Major, e.Minor) && uint32(info.Mode().Perm()) == e.Mode
	case !info.Mode().IsRegular() || uint32(info.Mode().Perm()) != e.Mode:
		return false
	case e.Kind == Node:
		return info.Size() == 0
	case e.content != nil && info.Size() != int64(len(e.content)):
		return false
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	if e.content != nil {
		return bytes.Equal(data, e.content)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]) == e.Sum
}

// Remove removes e, if it is unchanged, and any left-over of an interrupted Put. It
// reports whether e is gone. Directories are for RemoveEmpty.
func (e Entry) Remove(root string) (gone bool, err error) {
	path := filepath.Join(root, e.Path)
	if err := os.Remove(Temporary(path)); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		return false, err
	}
	if e.Kind == Dir || !Exists(path) {
		return true, nil
	}
	if !e.is(path) {
		return false, nil
	}
	return true, os.Remove(path)
}

// MissingDirs returns the missing directories that entries need, parents first.
func MissingDirs(root string, entries []Entry) []string {
	var missing []string
	seen := map[string]bool{".": true}
	var need func(dir string)
	need = func(dir string) {
		if seen[dir] {
			return
		}
		seen[dir] = true
		need(filepath.Dir(dir))
		if !Exists(filepath.Join(root, dir)) {
			missing = append(missing, dir)
		}
	}
	for _, e := range entries {
		if e.Kind == Dir {
			need(e.Path)
		} else {
			need(filepath.Dir(e.Path))
		}
	}
	return missing
}

// RemoveEmpty removes the directories in dirs that are empty and that no entry needs,
// and returns the rest. Parents come first in dirs.
func RemoveEmpty(root string, dirs []string, entries []Entry) []string {
	needed := map[string]bool{}
	for _, e := range entries {
		if e.Kind == Dir {
			needed[e.Path] = true
		}
		for d := filepath.Dir(e.Path); d != "."; d = filepath.Dir(d) {
			needed[d] = true
		}
	}
	var left []string
	for _, d := range slices.Backward(dirs) {
		path := filepath.Join(root, d)
		if needed[d] || (os.Remove(path) != nil && Exists(path)) {
			left = append(left, d)
		}
	}
	slices.Reverse(left)
	return left
}

// Mkdir creates a directory, unless it exists, and sets its mode whatever the umask.
func Mkdir(path string) error {
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Chmod(path, 0o755)
}

// Exists reports whether there is anything at path, even a dangling link.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Temporary returns the name under which path is created before a rename. No program
// searches for it: they search for libcuda.so.* and the like.
func Temporary(path string) string {
	return filepath.Join(filepath.Dir(path), ".new-"+filepath.Base(path))
}
