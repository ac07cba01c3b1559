package vm

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// File is one file of a machine's root: the content Data, a copy of the file Source of the
// machine that runs the test, a symbolic link, or a folder.
type File struct {
	Data   []byte
	Source string      // a path outside; its permissions are taken where Mode is 0
	Link   string      // the target of a symbolic link
	Mode   fs.FileMode // permissions, and fs.ModeDir for a folder; 0 is 0644, or 0755 for a folder
}

// Files maps absolute paths inside the machine to files. Parent folders may be left out.
type Files map[string]File

// Program returns a file with the program at a path outside.
func Program(source string) File { return File{Source: source, Mode: 0o755} }

// Folder returns the files below a folder outside, with paths below at.
func Folder(source, at string) (Files, error) {
	files := Files{}
	err := filepath.WalkDir(source, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(source, name)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		f := File{Mode: info.Mode() & (fs.ModePerm | fs.ModeDir)}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			f.Link, err = os.Readlink(name)
		case info.Mode().IsRegular():
			f.Source = name
		}
		files[path.Join(at, filepath.ToSlash(rel))] = f
		return err
	})
	return files, err
}

// Merge returns all files of several sets; a later set replaces files of an earlier one.
func Merge(sets ...Files) Files {
	all := Files{}
	for _, set := range sets {
		maps.Copy(all, set)
	}
	return all
}

// merged maps folders to the links' targets of a system with a merged /usr. A file for /lib is
// written to /usr/lib.
var merged = map[string]string{"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}

// place returns a file's name in the archive: without the first slash, and below /usr if its
// folder is merged.
func place(at string) string {
	name := strings.TrimPrefix(path.Clean("/"+at), "/")
	first, rest, below := strings.Cut(name, "/")
	if target, ok := merged[first]; ok && below {
		return target + "/" + rest
	}
	return name
}

// writeArchive writes files as an archive that the kernel unpacks into its first root
// ("newc", Documentation/driver-api/early-userspace/buffer-format.rst).
func writeArchive(w io.Writer, files Files) error {
	byName := Files{}
	for link, target := range merged {
		byName[target] = File{Mode: fs.ModeDir | 0o755}
		byName[link] = File{Link: target}
	}
	for at, f := range files {
		byName[place(at)] = f
	}
	for name := range maps.Clone(byName) {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, ok := byName[dir]; !ok {
				byName[dir] = File{Mode: fs.ModeDir | 0o755}
			}
		}
	}
	delete(byName, "")
	a := archive{w: w}
	for _, name := range slices.Sorted(maps.Keys(byName)) { // a folder comes before what is in it
		if err := a.add(name, byName[name]); err != nil {
			return fmt.Errorf("file /%s of the machine: %w", name, err)
		}
	}
	return a.header("TRAILER!!!", 0, 0)
}

// archive writes the entries of a cpio archive.
type archive struct {
	w     io.Writer
	inode int
}

func (a *archive) add(name string, f File) error {
	switch {
	case f.Link != "":
		return a.entry(name, unix.S_IFLNK|0o777, []byte(f.Link))
	case f.Mode.IsDir():
		return a.entry(name, unix.S_IFDIR|permissions(f.Mode, 0o755), nil)
	case f.Source == "":
		return a.entry(name, unix.S_IFREG|permissions(f.Mode, 0o644), f.Data)
	}
	info, err := os.Stat(f.Source)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(f.Source)
	if err != nil {
		return err
	}
	return a.entry(name, unix.S_IFREG|permissions(f.Mode, uint32(info.Mode().Perm())), data)
}

// permissions returns the permission bits of a mode as the kernel has them.
func permissions(mode fs.FileMode, otherwise uint32) uint32 {
	p := uint32(mode.Perm())
	if p == 0 {
		p = otherwise
	}
	if mode&fs.ModeSetuid != 0 {
		p |= unix.S_ISUID
	}
	if mode&fs.ModeSticky != 0 {
		p |= unix.S_ISVTX
	}
	return p
}

func (a *archive) entry(name string, mode uint32, data []byte) error {
	if err := a.header(name, mode, len(data)); err != nil {
		return err
	}
	if _, err := a.w.Write(data); err != nil {
		return err
	}
	return a.pad(len(data))
}

// header writes the fixed part of an entry, all numbers in eight hexadecimal digits,
// and its name. Every owner is root, and every time is 0.
func (a *archive) header(name string, mode uint32, size int) error {
	a.inode++
	head := fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		a.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0, name)
	if _, err := io.WriteString(a.w, head); err != nil {
		return err
	}
	return a.pad(len(head))
}

// pad fills up to a multiple of four bytes.
func (a *archive) pad(written int) error {
	_, err := a.w.Write(make([]byte, (4-written%4)%4))
	return err
}
