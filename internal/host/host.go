// Package host provides a rooted view of a file system: the host's, from a
// container that mounts it somewhere, or a container's, from a hook.
//
// Paths given to a Root are absolute paths as a process inside that root would
// write them. Symbolic links are followed as chroot(2) would follow them:
// absolute targets and ".." begin and end at the root. Links are followed one path
// component at a time, as a convenience. Safety rests on os.Root below, which never
// leaves the root even if links change meanwhile.
package host

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/inotify"
)

const (
	maxLinks = 40   // as the kernel's MAXSYMLINKS
	maxParts = 2048 // PATH_MAX is 4096, every part takes a slash and a letter
	maxDepth = 256  // directories below each other; each takes a descriptor while a path is followed
)

// ErrTooLarge is returned, wrapped, for a file above the limit given to ReadFile.
var ErrTooLarge = errors.New("file too large")

// ErrNotRegular is returned, wrapped, for a directory, device, pipe or socket in place of
// a regular file.
var ErrNotRegular = errors.New("not a regular file")

// Root is a file system below one directory. Its methods may be called concurrently.
type Root struct {
	dir   string
	root  *os.Root
	dot   *os.File       // the same directory
	trace func(Op) error // see Trace
}

// Open opens the file system below dir; "" means "/".
func Open(dir string) (*Root, error) {
	if dir == "" {
		dir = "/"
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	dot, err := root.Open(".")
	if err != nil {
		_ = root.Close()
		return nil, err
	}
	return &Root{dir: path.Clean(dir), root: root, dot: dot}, nil
}

// Close closes the directory.
func (r *Root) Close() error { return errors.Join(r.dot.Close(), r.root.Close()) }

// Dir returns the directory given to Open.
func (r *Root) Dir() string { return r.dir }

// Path returns the path in this process of a path of the host. It follows no links.
func (r *Root) Path(name string) string { return path.Join(r.dir, path.Clean("/"+name)) }

// Host is the inverse of Path: it returns the path on the host of a path of this
// process. It returns false for a path outside the root.
func (r *Root) Host(here string) (string, bool) {
	here = path.Clean(here)
	if r.dir == "/" {
		return here, path.IsAbs(here)
	}
	if here == r.dir {
		return "/", true
	}
	rest, ok := strings.CutPrefix(here, r.dir+"/")
	return "/" + rest, ok
}

// Resolve follows every link of name and returns the absolute path of its target inside
// the root. Parts that do not exist are kept unchanged, so that a path to be created can
// be resolved.
func (r *Root) Resolve(name string) (string, error) {
	p, err := r.resolve(name, true)
	if err != nil {
		return "", err
	}
	return path.Join("/", p), nil
}

// resolve returns a path for os.Root, "." for the root itself. The last part is
// followed only if follow is set. It keeps each directory on the way open, so that its
// work in a hostile tree grows only with the length of the path.
func (r *Root) resolve(name string, follow bool) (string, error) {
	w := walk{todo: split(name)}
	err := fs.ErrInvalid
	if !strings.ContainsRune(name, 0) {
		err = r.withRoot(func(fd int) error {
			defer w.close()
			w.top = fd
			return w.run(follow)
		})
	}
	if err != nil {
		return "", &fs.PathError{Op: "resolve", Path: name, Err: err}
	}
	if len(w.done) == 0 {
		return ".", nil
	}
	return path.Join(w.done...), nil
}

// split returns the parts of a path without "" and ".", but with "..".
func split(name string) []string {
	return slices.DeleteFunc(strings.Split(name, "/"), func(s string) bool { return s == "" || s == "." })
}

// reason strips this process's path from an error, which then names the host's path once.
func reason(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	if l, ok := errors.AsType[*os.LinkError](err); ok {
		return l.Err
	}
	return err
}

func wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	if p, ok := errors.AsType[*fs.PathError](err); ok && p.Op == "resolve" {
		return err
	}
	return &fs.PathError{Op: op, Path: name, Err: reason(err)}
}

// Stat describes the target of a path.
func (r *Root) Stat(name string) (fs.FileInfo, error) {
	p, err := r.resolve(name, true)
	if err != nil {
		return nil, err
	}
	info, err := r.root.Lstat(p)
	return info, wrap("stat", name, err)
}

// Lstat describes a path itself, even if it is a link.
func (r *Root) Lstat(name string) (fs.FileInfo, error) {
	p, err := r.resolve(name, false)
	if err != nil {
		return nil, err
	}
	info, err := r.root.Lstat(p)
	return info, wrap("lstat", name, err)
}

// Readlink returns the target of a link, as it is written.
func (r *Root) Readlink(name string) (string, error) {
	p, err := r.resolve(name, false)
	if err != nil {
		return "", err
	}
	target, err := r.root.Readlink(p)
	return target, wrap("readlink", name, err)
}

// OpenFile opens a regular file for reading. Nothing else is ever opened: a pipe
// would block and opening a device can have effects.
func (r *Root) OpenFile(name string) (*os.File, error) {
	p, err := r.resolve(name, true)
	if err != nil {
		return nil, err
	}
	before, err := r.root.Lstat(p)
	if err != nil {
		return nil, wrap("open", name, err)
	}
	if !before.Mode().IsRegular() {
		return nil, wrap("open", name, ErrNotRegular)
	}
	f, err := r.root.OpenFile(p, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, wrap("open", name, err)
	}
	if after, err := f.Stat(); err != nil || !after.Mode().IsRegular() {
		_ = f.Close()
		return nil, wrap("open", name, ErrNotRegular)
	}
	return f, nil
}

// ReadFile returns the content of a regular file of at most limit bytes.
func (r *Root) ReadFile(name string, limit int64) ([]byte, error) {
	f, err := r.OpenFile(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var size int64 // of files in /proc it is 0
	if info, err := f.Stat(); err == nil {
		size = min(info.Size(), limit)
	}
	// In one piece: callers read programs of megabytes to compare them.
	buffer := bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead))
	if _, err := buffer.ReadFrom(io.LimitReader(f, limit+1)); err != nil {
		return nil, wrap("read", name, err)
	}
	data := buffer.Bytes()
	if int64(len(data)) > limit {
		return nil, wrap("read", name, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit))
	}
	return data, nil
}

// ReadDir lists a directory, sorted by name.
func (r *Root) ReadDir(name string) ([]fs.DirEntry, error) { return r.ReadDirAtMost(name, -1) }

// ReadDirAtMost is like ReadDir for a directory that may be endless: it returns at most
// limit entries, the first ones in the file system's order.
func (r *Root) ReadDirAtMost(name string, limit int) ([]fs.DirEntry, error) {
	f, err := r.openDir(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(limit)
	if errors.Is(err, io.EOF) { // of an empty one
		err = nil
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, wrap("readdir", name, err)
}

// Names returns the names in a directory, in no order. ReadDir also stats each entry,
// which takes ten times as long.
func (r *Root) Names(name string) ([]string, error) { return r.NamesAtMost(name, -1) }

// NamesAtMost is like Names for a directory that may be endless: its error wraps ErrTooLarge if
// there are more than limit names, unless limit is negative.
func (r *Root) NamesAtMost(name string, limit int) ([]string, error) {
	f, err := r.openDir(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	most := limit + 1
	if limit < 0 {
		most = -1
	}
	names, err := f.Readdirnames(most)
	if errors.Is(err, io.EOF) { // of an empty one
		err = nil
	}
	if limit >= 0 && len(names) > limit {
		return nil, wrap("readdir", name, fmt.Errorf("%w: more than %d names", ErrTooLarge, limit))
	}
	return names, wrap("readdir", name, err)
}

func (r *Root) openDir(name string) (*os.File, error) {
	p, err := r.resolve(name, true)
	if err != nil {
		return nil, err
	}
	info, err := r.root.Lstat(p)
	if err == nil && !info.IsDir() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, wrap("readdir", name, err)
	}
	f, err := r.root.OpenFile(p, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	return f, wrap("readdir", name, err)
}

// Glob returns, sorted, the paths below dir whose last part matches pattern
// (as path.Match). A missing directory has none.
func (r *Root) Glob(dir, pattern string) ([]string, error) {
	if _, err := path.Match(pattern, ""); err != nil {
		return nil, err
	}
	names, err := r.Names(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found []string
	for _, name := range names {
		if ok, _ := path.Match(pattern, name); ok {
			found = append(found, path.Join(dir, name))
		}
	}
	slices.Sort(found)
	return found, nil
}

// NearestDir returns the deepest existing directory on the way to name: the one to watch
// for name to appear. Both are real paths inside the root.
func (r *Root) NearestDir(name string) (string, error) {
	real, err := r.Resolve(name)
	if err != nil {
		return "", err
	}
	for p := real; ; p = path.Dir(p) {
		info, err := r.root.Lstat(strings.TrimPrefix(path.Join(".", p), "/"))
		switch {
		case inotify.Exhausted(err):
			return "", err
		case p == "/" || err == nil && info.IsDir():
			return p, nil
		}
	}
}
