package host

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// spot is an open directory and the last part of a name in it.
type spot struct {
	*Root
	dir  *os.Root
	at   string // real path of dir
	base string
}

func (s spot) path(base string) string { return path.Join(s.at, base) }

// atSpot calls do with the spot of name.
func (r *Root) atSpot(op, name string, do func(s spot) error) error {
	clean := path.Clean("/" + name)
	if clean == "/" {
		return wrap(op, name, fs.ErrInvalid)
	}
	p, err := r.resolve(path.Dir(clean), true)
	if err != nil {
		return err
	}
	// OpenRoot alone would wait for a writer if the path were a pipe.
	pinned, err := r.root.OpenFile(p, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return wrap(op, name, err)
	}
	defer pinned.Close()
	dir, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(int(pinned.Fd())))
	if err != nil {
		return wrap(op, name, err)
	}
	defer dir.Close()
	return wrap(op, name, do(spot{r, dir, path.Join("/", p), path.Base(clean)}))
}

func (s spot) rename(from, to string) error {
	return s.do(Op{Kind: OpRename, Path: s.path(from), To: s.path(to)}, func() error { return s.dir.Rename(from, to) })
}

func (s spot) remove(base string) error {
	return s.do(Op{Kind: OpRemove, Path: s.path(base)}, func() error { return s.dir.Remove(base) })
}

// replace calls make to create a file under a temporary name, and renames it to the
// spot.
func (s spot) replace(make func(temp string) error) error {
	temp := temp(s.base)
	err := make(temp)
	if err == nil {
		err = s.rename(temp, s.base)
	}
	if err != nil {
		_ = s.remove(temp)
	}
	return err
}

// WriteAtomic writes data to name, or leaves name unchanged: it writes the data to a
// file beside it, syncs and renames that. The directory must exist. A link at name is
// replaced, not followed.
func (r *Root) WriteAtomic(name string, data []byte, perm fs.FileMode) error {
	return r.WriteFileAttr(name, data, Attr{Mode: perm.Perm()})
}

// WriteFileAttr is like WriteAtomic, and sets all attributes of the file, not only its
// permissions.
func (r *Root) WriteFileAttr(name string, data []byte, attr Attr) error {
	return r.atSpot("write", name, func(s spot) error {
		err := s.replace(func(temp string) error { return s.create(temp, data, attr) })
		if err == nil {
			err = s.sync()
		}
		return err
	})
}

func (s spot) create(name string, data []byte, attr Attr) (err error) {
	at := s.path(name)
	var f *os.File
	err = s.do(Op{Kind: OpCreate, Path: at, Mode: 0o600}, func() (err error) {
		f, err = s.dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	err = s.do(Op{Kind: OpWrite, Path: at, Data: data}, func() error {
		_, err := f.Write(data)
		return err
	})
	if err != nil {
		return err
	}
	if err = s.setAttr(f, at, attr); err != nil {
		return err
	}
	return s.do(Op{Kind: OpSync, Path: at}, f.Sync)
}

// sync writes the names in the directory to the disk.
func (s spot) sync() error {
	d, err := s.dir.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	err = s.do(Op{Kind: OpSyncDir, Path: s.at}, d.Sync)
	// Some file systems (overlay of old kernels, 9p) cannot sync a directory.
	if errors.Is(err, syscall.EINVAL) {
		return nil
	}
	return err
}

// SyncDir writes all changes of the names in a directory to the disk.
func (r *Root) SyncDir(name string) error {
	p, err := r.resolve(name, true)
	if err != nil {
		return err
	}
	dir, err := r.root.OpenRoot(p)
	if err != nil {
		return wrap("sync", name, err)
	}
	defer dir.Close()
	return wrap("sync", name, spot{Root: r, dir: dir, at: path.Join("/", p)}.sync())
}

// MkdirAll creates name and missing directories above it, and returns the paths of the
// directories that it created, outermost first. If it fails it removes them again.
func (r *Root) MkdirAll(name string, perm fs.FileMode) (made []string, err error) {
	real, err := r.Resolve(name)
	if err != nil {
		return nil, err
	}
	var missing []string
	for p := real; p != "/"; p = path.Dir(p) {
		info, err := r.root.Lstat(p[1:])
		if err == nil {
			if !info.IsDir() {
				return nil, wrap("mkdir", p, syscall.ENOTDIR)
			}
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, wrap("mkdir", p, err)
		}
		missing = append([]string{p}, missing...)
	}
	for _, p := range missing {
		err := r.do(Op{Kind: OpMkdir, Path: p, Mode: perm}, func() error { return r.root.Mkdir(p[1:], perm) })
		if err != nil && !errors.Is(err, fs.ErrExist) {
			for _, dir := range slices.Backward(made) {
				_ = r.Remove(dir)
			}
			return nil, wrap("mkdir", p, err)
		}
		made = append(made, p)
	}
	return made, nil
}

// Rename renames a file within its directory.
func (r *Root) Rename(from, to string) error {
	if path.Dir(path.Clean(from)) != path.Dir(path.Clean(to)) {
		return wrap("rename", from, syscall.EXDEV)
	}
	return r.atSpot("rename", from, func(s spot) error { return s.rename(s.base, path.Base(to)) })
}

// Symlink makes name a link with the given target. A link with that target is left
// alone, another link or a file is replaced atomically, a directory is an error. It
// reports whether it changed anything.
func (r *Root) Symlink(target, name string) (changed bool, err error) {
	err = r.atSpot("symlink", name, func(s spot) error {
		link := func(base string) error {
			return s.do(Op{Kind: OpSymlink, Path: s.path(base), To: target}, func() error { return s.dir.Symlink(target, base) })
		}
		err := link(s.base)
		if errors.Is(err, fs.ErrExist) {
			if now, err := s.dir.Readlink(s.base); err == nil && now == target {
				return nil
			}
			err = s.replace(link)
		}
		changed = err == nil
		return err
	})
	return changed, err
}

// Mknod creates a character device with exactly the given permissions, and replaces an
// existing file. The device never exists with other permissions.
func (r *Root) Mknod(name string, perm fs.FileMode, major, minor uint32) error {
	return r.atSpot("mknod", name, func(s spot) error {
		d, err := s.dir.Open(".")
		if err != nil {
			return err
		}
		defer d.Close()
		return s.replace(func(temp string) error {
			err := s.do(Op{Kind: OpMknod, Path: s.path(temp), Mode: perm}, func() error {
				return unix.Mknodat(int(d.Fd()), temp, unix.S_IFCHR|uint32(perm.Perm()), int(unix.Mkdev(major, minor)))
			})
			if err != nil {
				return err
			}
			// The umask cleared some bits.
			return s.do(Op{Kind: OpChmod, Path: s.path(temp), Mode: perm.Perm()}, func() error { return s.dir.Chmod(temp, perm.Perm()) })
		})
	})
}

// Remove removes a file, link, device or empty directory. A missing one is not an
// error.
func (r *Root) Remove(name string) error {
	err := r.atSpot("remove", name, func(s spot) error { return s.remove(s.base) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Device returns the numbers of a character device; false for anything else.
func Device(info fs.FileInfo) (major, minor uint32, ok bool) {
	st, isStat := info.Sys().(*syscall.Stat_t)
	if !isStat || info.Mode()&fs.ModeCharDevice == 0 {
		return 0, 0, false
	}
	return unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev)), true //nolint:unconvert // Rdev is narrower elsewhere
}
