package spec

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/library"
)

// finder finds files below one driver root.
type finder struct {
	Files
	machine *host.Root // the host
	root    *host.Root // the driver root
	at      string     // its path on the host
	version string
	lists   map[string][]string // names in the directories read, by their real path
	errs    []error             // errors of reading
	private map[string]bool     // directories that others cannot change, see exposed

	folders   []library.Folder    // that may hold libraries
	libraries []string            // folders that do
	taken     map[string]string   // the libraries added, by their names
	refused   map[string]error    // why a file of a name is left out, see leaveOut
	leftOut   map[string][]string // the files left out, by the world-writable directory above them
}

// absent reports whether an error means that a path does not exist.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP)
}

// failed reports whether err is an error. It records it, except for an absent path.
func (f *finder) failed(err error) bool {
	if err != nil && !absent(err) {
		f.errs = append(f.errs, err)
	}
	return err != nil
}

// read lists a directory, once: a host has thousands of libraries.
func (f *finder) read(dir string) (real string, names []string) {
	real, err := f.root.Resolve(dir)
	if f.failed(err) {
		return "", nil
	}
	names, known := f.lists[real]
	if !known {
		names, err = library.Names(f.root, real)
		f.failed(err)
		f.lists[real] = names
	}
	return real, names
}

// match returns the real paths of the files in a directory whose names match a pattern as
// in path.Match, sorted by the names. It skips dangling links.
func (f *finder) match(dir, pattern string) []string {
	real, names := f.read(dir)
	// The start and end of a name exclude nearly all that do not match.
	first, rest, wild := strings.Cut(pattern, "*")
	last := rest[strings.LastIndex(rest, "*")+1:]
	var matching []string
	for _, name := range names {
		if !strings.HasPrefix(name, first) || !strings.HasSuffix(name, last) || !wild && name != pattern {
			continue
		}
		if ok, _ := path.Match(pattern, name); ok {
			matching = append(matching, name)
		}
	}
	slices.Sort(matching)
	var found []string
	for _, name := range matching {
		if p, ok := f.file(path.Join(real, name), fs.FileMode.IsRegular); ok && !slices.Contains(found, p) {
			found = append(found, p)
		}
	}
	return found
}

// file resolves a path and reports whether the file has the wanted mode. It leaves out a file
// in a world-writable directory.
func (f *finder) file(p string, wanted func(fs.FileMode) bool) (real string, ok bool) {
	real, err := f.root.Resolve(p)
	if f.failed(err) {
		return "", false
	}
	info, err := f.root.Lstat(real)
	if f.failed(err) || !wanted(info.Mode()) {
		return "", false
	}
	dir, err := exposed(f.root, real, f.private)
	if f.failed(err) {
		return "", false
	}
	if dir != "" {
		f.leaveOut(path.Base(p), real, dir)
		return "", false
	}
	return real, true
}

// leaveOut records that a file is not mounted, because the directory dir above it is world-writable.
func (f *finder) leaveOut(name, real, dir string) {
	if !slices.Contains(f.leftOut[dir], real) {
		f.leftOut[dir] = append(f.leftOut[dir], real)
	}
	f.refused[name] = errors.New(explainExposed(f.root.Path(real), f.root.Path(dir), 0))
}

// warn adds a warning for each world-writable directory with files that are left out.
func (f *finder) warn() {
	for _, dir := range slices.Sorted(maps.Keys(f.leftOut)) {
		files := f.leftOut[dir]
		f.Warnings = append(f.Warnings, explainExposed(f.root.Path(files[0]), f.root.Path(dir), len(files)-1))
	}
}

// explainExposed says why a file, and more of them, are not mounted.
func explainExposed(file, dir string, more int) string {
	if more > 0 {
		file = fmt.Sprintf("%s and %d more", file, more)
	}
	return fmt.Sprintf("%s cannot be mounted into containers: %s is world-writable; move it, or remove the permission (chmod o-w)", file, dir)
}

// exposed returns the directory above a real path that is world-writable, as /tmp is, "" if none is.
// A container with a hostPath volume there could replace the file, and every container
// with a GPU would get that. exposed records the other directories in private.
func exposed(root *host.Root, real string, private map[string]bool) (dir string, err error) {
	var passed []string
	for dir := path.Dir(real); !private[dir]; dir = path.Dir(dir) {
		info, err := root.Lstat(dir)
		if err != nil {
			return "", err
		}
		if info.Mode()&0o002 != 0 {
			return dir, nil
		}
		if passed = append(passed, dir); dir == "/" {
			break
		}
	}
	for _, dir := range passed {
		private[dir] = true
	}
	return "", nil
}

// mount adds a mount of a real path below the driver root.
func (f *finder) mount(real, container string, options []string) {
	f.Mounts = append(f.Mounts, Mount{Host: path.Join(f.at, real), Container: container, Options: options})
}
