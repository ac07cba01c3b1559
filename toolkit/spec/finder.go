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

// finder looks below one driver root.
type finder struct {
	Files
	root    *host.Root // the driver root
	at      string     // where that is on the host
	version string
	lists   map[string][]string // names in the directories read, by their real path
	errs    []error             // what could not be looked at
	private map[string]bool     // directories that no other can change, see exposed
}

// absent says that an error is of something that is not there.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP)
}

// note keeps an error that is not of something absent, and says whether there was one.
func (f *finder) note(err error) (failed bool) {
	if err != nil && !absent(err) {
		f.errs = append(f.errs, err)
	}
	return err != nil
}

// read lists a directory, once: a host has thousands of libraries.
func (f *finder) read(dir string) (real string, names []string) {
	real, err := f.root.Resolve(dir)
	if f.note(err) {
		return "", nil
	}
	names, known := f.lists[real]
	if !known {
		names, err = f.root.Names(real)
		f.note(err)
		f.lists[real] = names
	}
	return real, names
}

// match returns the real paths of the files in a directory whose names match a
// pattern, as path.Match, sorted by the names. Links to nothing are passed over.
func (f *finder) match(dir, pattern string) []string {
	real, names := f.read(dir)
	// Nearly all names are told from a pattern by how they begin or end.
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

// file follows a path to its end and reports whether what is there is wanted. It refuses
// what lies in a folder that everybody can write to.
func (f *finder) file(p string, wanted func(fs.FileMode) bool) (real string, ok bool) {
	real, err := f.root.Resolve(p)
	if f.note(err) {
		return "", false
	}
	info, err := f.root.Lstat(real)
	if f.note(err) || !wanted(info.Mode()) {
		return "", false
	}
	if f.note(exposed(f.root, real, f.private)) {
		return "", false
	}
	return real, true
}

// exposed returns an error if everybody may write to a directory above a real path, as to
// /tmp. A container with a hostPath volume there could put something else in its place,
// and every container with a GPU would be given that. It keeps in private the directories
// for which that is not so.
func exposed(root *host.Root, real string, private map[string]bool) error {
	var passed []string
	for dir := path.Dir(real); !private[dir]; dir = path.Dir(dir) {
		info, err := root.Lstat(dir)
		if err != nil {
			return err
		}
		if info.Mode()&0o002 != 0 {
			return fmt.Errorf("%s cannot be given to containers: everybody may write to %s; move it, or take that right away (chmod o-w)", root.Path(real), root.Path(dir))
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
