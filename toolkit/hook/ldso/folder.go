package ldso

import (
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/library"
	"github.com/gpuready/gpuready/toolkit/hook/rootfs"
)

// folder is an open directory of an image whose libraries are read.
type folder struct {
	root *rootfs.Root
	name string // as the loader names it
	at   string // the resolved path
	own  bool   // only files on the container's own mounts are read
	dir  *host.Dir
	file buffered // the file being read

	entries []fs.DirEntry // sorted; nil if they were not listed
}

// openFolder opens a directory. With own set, neither the directory nor a file in it is read
// from a mount that is not the container's own. Otherwise the cache, which every user of the
// container can read, would contain names that only root may list.
func openFolder(root *rootfs.Root, name string, own bool) (*folder, error) {
	resolve := root.Resolve
	if own {
		resolve = root.ResolveOwn
	}
	at, err := resolve(name)
	if err != nil {
		return nil, err
	}
	dir, err := root.OpenDir(at)
	if err != nil {
		return nil, err
	}
	return &folder{root: root, name: name, at: at, own: own, dir: dir}, nil
}

func (f *folder) close() { _ = f.dir.Close() }

// names returns an entry for each name of the library base, which is a file or a link to
// one: its soname, and the plain ".so" if the driver or a hook created one.
func (f *folder) names(base string) []library.Entry {
	name, link, err := f.soname(base)
	if err != nil {
		return nil
	}
	leads := func(name string) bool { return name == base || f.leads(name, base, link) }
	if name == "" {
		name = base
	}
	flags := library.Flags()
	e := library.Entry{Name: name, Path: path.Join(f.name, name), Flags: flags}
	if name != base && !leads(name) { // use the file itself, which cannot lead elsewhere
		e.Path = path.Join(f.name, base)
	}
	entries := []library.Entry{e}
	if stem, _, ok := strings.Cut(base, ".so"); ok && stem+".so" != name && leads(stem+".so") {
		entries = append(entries, library.Entry{Name: stem + ".so", Path: path.Join(f.name, stem+".so"), Flags: flags})
	}
	return entries
}

// leads reports whether a name in the directory leads to the same file as base, which may be
// a link itself.
func (f *folder) leads(name, base string, link bool) bool {
	if f.entries != nil {
		if _, there := slices.BinarySearchFunc(f.entries, name, func(e fs.DirEntry, name string) int { return strings.Compare(e.Name(), name) }); !there {
			return false
		}
	}
	target, err := f.dir.Readlink(name)
	switch {
	case err == nil && target == base:
		return true
	case err != nil && !link:
		return false
	}
	one, err1 := f.root.Resolve(path.Join(f.at, name))
	two, err2 := f.root.Resolve(path.Join(f.at, base))
	return err1 == nil && err2 == nil && one == two
}

// soname returns the soname of a library in the directory, and reports whether base is a
// link.
func (f *folder) soname(base string) (name string, link bool, err error) {
	if file, err := f.dir.OpenFile(base); err == nil {
		defer file.Close()
		if f.own {
			if err := f.root.CheckOwn(file.Fd()); err != nil {
				return "", false, err
			}
		}
		name, err = library.Soname(f.file.reset(file))
		return name, false, err
	}
	open := f.root.OpenFile
	if f.own {
		open = f.root.OpenOwnFile
	}
	file, err := open(path.Join(f.at, base))
	if err != nil {
		return "", true, err
	}
	defer file.Close()
	name, err = library.Soname(f.file.reset(file))
	return name, true, err
}

// buffered reads a file's beginning once, since most libraries have the needed pieces there.
type buffered struct {
	r     io.ReaderAt
	first [4096]byte
	n     int
}

// reset switches to another file.
func (b *buffered) reset(r io.ReaderAt) *buffered {
	b.r = r
	b.n, _ = r.ReadAt(b.first[:], 0) // an error occurs again below
	return b
}

func (b *buffered) ReadAt(p []byte, at int64) (int, error) {
	if at >= 0 && at <= int64(b.n) && int64(len(p)) <= int64(b.n)-at {
		return copy(p, b.first[at:b.n]), nil
	}
	return b.r.ReadAt(p, at)
}
