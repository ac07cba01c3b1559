package host

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// in calls do with the directory that holds name, pinned, and the last part of name.
func (r *Root) in(op, name string, do func(dir *os.Root, base string) error) error {
	clean := path.Clean("/" + name)
	if clean == "/" {
		return wrap(op, name, fs.ErrInvalid)
	}
	p, err := r.resolve(path.Dir(clean), true)
	if err != nil {
		return err
	}
	dir, err := r.root.OpenRoot(p)
	if err != nil {
		return wrap(op, name, err)
	}
	defer dir.Close()
	return wrap(op, name, do(dir, path.Base(clean)))
}

// WriteAtomic puts data at name, or leaves name as it was: the data is written
// to a file beside it, synced and renamed. The directory must exist. A link at
// name is replaced, not followed.
func (r *Root) WriteAtomic(name string, data []byte, perm fs.FileMode) error {
	return r.write(name, data, perm, true)
}

// Replace is WriteAtomic without waiting for the disk, for files that do not
// outlive the machine anyway.
func (r *Root) Replace(name string, data []byte, perm fs.FileMode) error {
	return r.write(name, data, perm, false)
}

func (r *Root) write(name string, data []byte, perm fs.FileMode, sync bool) error {
	return r.in("write", name, func(dir *os.Root, base string) error {
		var random [8]byte
		_, _ = rand.Read(random[:]) // never fails, as crypto/rand says
		// No program takes a dot file with this ending for one of its own.
		temp := "." + base[:min(len(base), 200)] + "." + hex.EncodeToString(random[:]) + ".tmp"
		if err := create(dir, temp, data, perm, sync); err != nil {
			_ = dir.Remove(temp)
			return err
		}
		if err := dir.Rename(temp, base); err != nil {
			_ = dir.Remove(temp)
			return err
		}
		if sync {
			return syncDir(dir)
		}
		return nil
	})
}

func create(dir *os.Root, name string, data []byte, perm fs.FileMode, sync bool) (err error) {
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err = f.Write(data); err != nil {
		return err
	}
	if err = f.Chmod(perm.Perm()); err != nil || !sync {
		return err
	}
	return f.Sync()
}

func syncDir(dir *os.Root) error {
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	// Some file systems (overlay of old kernels, 9p) cannot sync a directory.
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	return nil
}

// MkdirAll makes name and what is missing above it and returns the paths of the
// directories that it made, outermost first. If it fails it removes them again.
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
		if err := r.root.Mkdir(p[1:], perm); err != nil && !errors.Is(err, fs.ErrExist) {
			for _, dir := range slices.Backward(made) {
				_ = r.root.Remove(dir[1:])
			}
			return nil, wrap("mkdir", p, err)
		}
		made = append(made, p)
	}
	return made, nil
}

// Symlink makes name a link with the given target. A link that already says so
// is left alone, another link or a file is replaced atomically, a directory is
// an error. It tells whether it changed anything.
func (r *Root) Symlink(target, name string) (changed bool, err error) {
	err = r.in("symlink", name, func(dir *os.Root, base string) error {
		err := dir.Symlink(target, base)
		if !errors.Is(err, fs.ErrExist) {
			changed = err == nil
			return err
		}
		if now, err := dir.Readlink(base); err == nil && now == target {
			return nil
		}
		var random [8]byte
		_, _ = rand.Read(random[:])
		temp := ".link." + hex.EncodeToString(random[:]) + ".tmp"
		if err := dir.Symlink(target, temp); err != nil {
			return err
		}
		if err := dir.Rename(temp, base); err != nil {
			_ = dir.Remove(temp)
			return err
		}
		changed = true
		return nil
	})
	return changed, err
}

// Mknod makes a character device with exactly the given permissions.
func (r *Root) Mknod(name string, perm fs.FileMode, major, minor uint32) error {
	return r.in("mknod", name, func(dir *os.Root, base string) error {
		d, err := dir.Open(".")
		if err != nil {
			return err
		}
		defer d.Close()
		fd := int(d.Fd())
		if err := unix.Mknodat(fd, base, unix.S_IFCHR|uint32(perm.Perm()), int(unix.Mkdev(major, minor))); err != nil {
			return err
		}
		if err := dir.Chmod(base, perm.Perm()); err != nil { // the umask took some away
			_ = dir.Remove(base)
			return err
		}
		return nil
	})
}

// Remove removes a file, link, device or empty directory. What is not there is
// no error.
func (r *Root) Remove(name string) error {
	err := r.in("remove", name, func(dir *os.Root, base string) error { return dir.Remove(base) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Device tells the numbers of a character device; false for anything else.
func Device(info fs.FileInfo) (major, minor uint32, ok bool) {
	st, isStat := info.Sys().(*syscall.Stat_t)
	if !isStat || info.Mode()&fs.ModeCharDevice == 0 {
		return 0, 0, false
	}
	return unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev)), true //nolint:unconvert // Rdev is narrower elsewhere
}
