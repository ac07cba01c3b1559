package spec

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/gpuready/gpuready/internal/host"
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
		names, err = f.root.Names(real)
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

// file resolves a path and reports whether the file has the wanted mode. It refuses a file
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
	if f.failed(exposed(f.root, real, f.private)) {
		return "", false
	}
	return real, true
}

// exposed returns an error if a directory above a real path is world-writable, as /tmp is.
// A container with a hostPath volume there could replace the file, and every container
// with a GPU would get that. exposed records the other directories in private.
func exposed(root *host.Root, real string, private map[string]bool) error {
	var passed []string
	for dir := path.Dir(real); !private[dir]; dir = path.Dir(dir) {
		info, err := root.Lstat(dir)
		if err != nil {
			return err
		}
		if info.Mode()&0o002 != 0 {
			return fmt.Errorf("%s cannot be mounted into containers: %s is world-writable; move it, or remove the permission (chmod o-w)", root.Path(real), root.Path(dir))
		}
		if passed = append(passed, dir); dir == "/" {
			break
		}
	}
	for _, dir := range passed {
		private[dir] = true
	}
	return nil
}

// mount adds a mount of a real path below the driver root.
func (f *finder) mount(real, container string, options []string) {
	f.Mounts = append(f.Mounts, Mount{Host: path.Join(f.at, real), Container: container, Options: options})
}
