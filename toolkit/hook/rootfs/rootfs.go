// Package rootfs accesses the root file system of a container that is being created, for a
// hook. Paths are the container's own. Links are followed as in a chroot, and never lead out
// (package host).
//
// Changes are only made on the container's own mounts: see mounts. A change follows its path
// one part at a time, opens each directory, asks the kernel for the mount of that descriptor,
// and is made relative to the last directory. No decision is based on a path.
package rootfs

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host"
)

// ErrHost is returned, wrapped, if a write would change more than the container.
var ErrHost = errors.New("this part of the container is a mount from the host, which is not written to")

var errEmpty = errors.New("empty file")

// Root is a container's root file system. Read-only methods are those of host.Root.
type Root struct {
	*host.Root
	mounts *mounts
}

// Open opens the root file system at dir, a path of this process.
func Open(dir string) (*Root, error) {
	root, err := host.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := notHost(root); err != nil {
		_ = root.Close()
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return &Root{Root: root, mounts: &mounts{}}, nil
}

// notHost returns an error if root is the root of this process, reached by any link.
func notHost(root *host.Root) error {
	given, err := root.Lstat("/")
	if err != nil {
		return err
	}
	own, err := os.Stat("/")
	if err == nil && os.SameFile(given, own) {
		return errors.New("this is the host's root file system and not a container's")
	}
	return err
}

// OpenFile opens a regular file for reading, on any mount. It opens nothing else, and no file
// without a size: some files in /proc change when they are read.
func (r *Root) OpenFile(name string) (*os.File, error) { return r.openFile(name, nil) }

func (r *Root) openFile(name string, check func(fd int) error) (*os.File, error) {
	held, err := r.OpenPath(name, 0, check)
	if err != nil {
		return nil, err
	}
	defer held.Close()
	info, err := held.Stat()
	if err != nil {
		return nil, wrap("open", name, err)
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, wrap("open", name, host.ErrNotRegular)
	case info.Size() == 0:
		return nil, wrap("open", name, errEmpty)
	}
	f, err := os.OpenFile(byDescriptor(held), os.O_RDONLY|unix.O_NONBLOCK, 0)
	return f, wrap("open", name, err)
}

// ReadFile returns the content of a regular file of at most limit bytes, from any mount. The
// content must not be written to a file of the container, whose user may not be allowed to
// read it. See ReadOwnFile.
func (r *Root) ReadFile(name string, limit int64) ([]byte, error) {
	return r.readFile(name, limit, nil)
}

// ReadOwnFile is like ReadFile, but only reads a file on the container's own mounts that is
// only reached through them.
func (r *Root) ReadOwnFile(name string, limit int64) ([]byte, error) {
	return r.readFile(name, limit, r.mounts.own)
}

// OpenOwnFile is like OpenFile, but only opens a file on the container's own mounts that is
// only reached through them.
func (r *Root) OpenOwnFile(name string) (*os.File, error) { return r.openFile(name, r.mounts.own) }

// ResolveOwn is like Resolve, but only resolves a path on the container's own mounts that is
// only reached through them.
func (r *Root) ResolveOwn(name string) (string, error) {
	held, err := r.OpenPath(name, 0, r.mounts.own)
	if err != nil {
		return "", err
	}
	defer held.Close()
	return r.Resolve(name)
}

// CheckOwn returns an error unless a descriptor is on one of the container's own mounts.
func (r *Root) CheckOwn(fd int) error {
	if r.mounts.known == nil { // the root's comes first
		if _, err := r.ResolveOwn("/"); err != nil {
			return err
		}
	}
	return r.mounts.own(fd)
}

func (r *Root) readFile(name string, limit int64, check func(fd int) error) ([]byte, error) {
	f, err := r.openFile(name, check)
	if errors.Is(err, errEmpty) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var size int64
	if info, err := f.Stat(); err == nil {
		size = min(info.Size(), limit)
	}
	data := bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead))
	if _, err := data.ReadFrom(io.LimitReader(f, limit+1)); err != nil {
		return nil, wrap("read", name, err)
	}
	if int64(data.Len()) > limit {
		return nil, wrap("read", name, fmt.Errorf("%w: more than %d bytes", host.ErrTooLarge, limit))
	}
	return data.Bytes(), nil
}

// MkdirAll creates a directory and its missing parents.
func (r *Root) MkdirAll(name string, perm fs.FileMode) error {
	if info, err := r.Stat(name); err == nil && info.IsDir() {
		return nil
	}
	dir, err := r.OpenPath(name, perm, r.mounts.own)
	if err != nil {
		return wrap("mkdir", name, err)
	}
	defer dir.Close()
	if info, err := dir.Stat(); err != nil || !info.IsDir() {
		return wrap("mkdir", name, errors.Join(syscall.ENOTDIR, err))
	}
	return nil
}

// Symlink creates a link with the given target at name, and replaces anything there except a
// directory.
func (r *Root) Symlink(target, name string) error {
	return r.inParent("symlink", name, func(dir int, base string) error {
		link := func(base string) error { return unix.Symlinkat(target, dir, base) }
		err := link(base)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
		var now [unix.PathMax]byte
		if n, err := unix.Readlinkat(dir, base, now[:]); err == nil && string(now[:n]) == target {
			return nil
		}
		return replace(dir, base, link)
	})
}

// Replace atomically writes data to name, and replaces a link there. It does not sync, since
// containers do not survive a reboot.
func (r *Root) Replace(name string, data []byte, perm fs.FileMode) error {
	return r.inParent("write", name, func(dir int, base string) error {
		return replace(dir, base, func(temp string) error {
			fd, err := unix.Openat(dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
			if err != nil {
				return err
			}
			f := os.NewFile(uintptr(fd), temp)
			_, err = f.Write(data)
			if err == nil {
				err = f.Chmod(perm) // regardless of the umask
			}
			return errors.Join(err, f.Close())
		})
	})
}

// Remove removes a file or link. A missing one is not an error.
func (r *Root) Remove(name string) error {
	if _, err := r.Lstat(name); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := r.inParent("remove", name, func(dir int, base string) error { return unix.Unlinkat(dir, base, 0) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// inParent calls do with a descriptor of name's directory, and the last part of name.
func (r *Root) inParent(op, name string, do func(dir int, base string) error) error {
	clean := path.Clean("/" + name)
	if clean == "/" {
		return wrap(op, name, fs.ErrInvalid)
	}
	dir, err := r.OpenPath(path.Dir(clean), 0, r.mounts.own)
	if err != nil {
		return wrap(op, name, err)
	}
	defer dir.Close()
	err = do(int(dir.Fd()), path.Base(clean))
	if errors.Is(err, unix.EBUSY) { // something is mounted on the name itself
		err = ErrHost
	}
	return wrap(op, name, err)
}

// replace calls create with a temporary name in dir, and renames the result to base. Both
// names are relative to the open directory, so a link there is neither followed nor blocks.
func replace(dir int, base string, create func(temp string) error) error {
	temp := ".gpu-cdi-hook." + rand.Text() + ".tmp"
	err := create(temp)
	if err == nil {
		err = unix.Renameat(dir, temp, dir, base)
	}
	if err != nil {
		_ = unix.Unlinkat(dir, temp, 0)
	}
	return err
}

// Chmod sets the mode of the directory or regular file that name leads to. It changes exactly
// the checked file, even if the path leads elsewhere by then.
func (r *Root) Chmod(name string, mode fs.FileMode) error {
	f, err := r.OpenPath(name, 0, r.mounts.own)
	if err != nil {
		return wrap("chmod", name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return wrap("chmod", name, err)
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return wrap("chmod", name, errors.New("neither a directory nor a regular file"))
	}
	const all = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
	if info.Mode()&all == mode&all {
		return nil
	}
	return wrap("chmod", name, os.Chmod(byDescriptor(f), mode&all))
}

// HoldMountPoint opens the regular file that name leads to, for mounting on it. The mount must
// only be visible in this container, so a file on a mount that propagates new mounts
// (MS_SHARED) is refused.
func (r *Root) HoldMountPoint(name string) (*os.File, error) {
	f, err := r.OpenPath(name, 0, nil)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = host.ErrNotRegular
	}
	if err == nil {
		err = r.mounts.private(int(f.Fd()))
	}
	if err != nil {
		_ = f.Close()
		return nil, wrap("mount on", name, err)
	}
	return f, nil
}

// Readonly reports whether an error means that a path cannot be written, as on a read-only or
// full disk or a mount from the host.
func Readonly(err error) bool {
	for _, reason := range readonly {
		if errors.Is(err, reason) {
			return true
		}
	}
	return false
}

var readonly = []error{ErrHost, fs.ErrPermission, syscall.EROFS, syscall.ENOSPC, syscall.EDQUOT}

func byDescriptor(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// wrap returns an error with the container's path, shortened, in place of any other.
func wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		err = p.Err
	}
	return &fs.PathError{Op: op, Path: strings.ToValidUTF8(name[:min(len(name), 200)], ""), Err: err}
}
