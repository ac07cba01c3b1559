// Package rootfs assembles, inspects and describes the file systems of container images.
//
// A Tree is the file system of a container. It is read from an image's archive (Read)
// and extended by files to be added (With). Check looks for files that must not be in
// an image of this project, and for programs that would not start in it. WriteBase writes
// the base, which Apt's packages provide. SBOM lists the content.
package rootfs

import (
	"crypto/sha1" // SPDX wants it beside SHA-256
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// Tree is a file system: files by absolute path, including directories and links.
type Tree map[string]File

// File is a file of a Tree.
type File struct {
	Mode         fs.FileMode // type and permissions, setuid, setgid, sticky
	UID, GID     int
	Size         int64
	Link         string // target of a symbolic link
	SHA1, SHA256 string // of a regular file
	Object       *Object
	Text         []byte // of package metadata and the Bundle; see keepText
}

// StatusFolder is the folder in which an image without a package manager lists the
// installed packages, one file for each.
const StatusFolder = "/var/lib/dpkg/status.d"

// Bundle is the file in which programs look for trusted certificate authorities: the
// first choice of Go's crypto/x509 on Linux.
const Bundle = "/etc/ssl/certs/ca-certificates.crt"

// keepText reports whether the content of a file is needed.
func keepText(name string) bool {
	return path.Dir(name) == StatusFolder && path.Ext(name) != ".md5sums" || name == "/usr/lib/os-release" || name == Bundle
}

// Regular returns a regular file owned by root.
func Regular(name string, mode fs.FileMode, data []byte) (File, error) {
	one, two := sha1.Sum(data), sha256.Sum256(data)
	f := File{
		Mode: mode, Size: int64(len(data)),
		SHA1: hex.EncodeToString(one[:]), SHA256: hex.EncodeToString(two[:]),
	}
	if keepText(name) {
		f.Text = data
	}
	var err error
	if f.Object, err = ReadObject(data); err != nil {
		return File{}, fmt.Errorf("%s: cannot be read as ELF: %w; build it again", name, err)
	}
	return f, nil
}

// Paths returns the paths, sorted.
func (t Tree) Paths() []string { return slices.Sorted(maps.Keys(t)) }

// Size returns the size of the regular files in bytes.
func (t Tree) Size() int64 {
	var n int64
	for _, f := range t {
		n += f.Size
	}
	return n
}

// With returns the tree with more files and the directories that they need. The paths
// must not contain links.
func (t Tree) With(files map[string]File) Tree {
	all := maps.Clone(t)
	if all == nil {
		all = Tree{}
	}
	for name, f := range files {
		all[name] = f
		for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
			if _, ok := all[dir]; ok {
				break
			}
			all[dir] = File{Mode: fs.ModeDir | 0o755}
		}
	}
	return all
}

// Resolve follows the links of a path, within the tree. It returns false if there is no
// such file.
func (t Tree) Resolve(name string) (string, bool) {
	todo, at := strings.Split(strings.Trim(path.Clean(name), "/"), "/"), "/"
	for links := 0; len(todo) > 0; {
		next := path.Join(at, todo[0])
		todo = todo[1:]
		if next == "/" || next == at {
			continue
		}
		f, ok := t[next]
		switch {
		case !ok:
			return "", false
		case f.Mode.Type() == fs.ModeSymlink:
			if links++; links > 40 {
				return "", false
			}
			todo = append(strings.Split(strings.Trim(f.Link, "/"), "/"), todo...)
			if path.IsAbs(f.Link) {
				at = "/"
			}
		default:
			at = next
		}
	}
	return at, true
}

// Difference lists the differences between two trees, one line each, or nothing if they
// are equal. have and want are the names in the lines.
func Difference(have, want Tree) []string {
	var lines []string
	for _, name := range have.With(want).Paths() {
		h, hOK := have[name]
		w, wOK := want[name]
		switch {
		case !hOK:
			lines = append(lines, name+" is missing")
		case !wOK:
			lines = append(lines, name+" is not expected")
		case h.Mode != w.Mode || h.UID != w.UID || h.GID != w.GID:
			lines = append(lines, fmt.Sprintf("%s is %v of %d:%d, %v of %d:%d expected", name, h.Mode, h.UID, h.GID, w.Mode, w.UID, w.GID))
		case h.SHA256 != w.SHA256 || h.Link != w.Link:
			lines = append(lines, name+" has another content")
		}
	}
	return lines
}
