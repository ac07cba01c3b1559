// Package rootfs is the root file system of a container that is being created,
// seen by a hook. Paths are the container's own; links are followed as in a
// chroot, and never lead out (package host).
//
// Changes are made on the container's own mounts only: see mounts. A change follows
// its path one part at a time, holds each folder by a descriptor, asks the kernel on
// which mount that descriptor is, and is made in the folder held last. No decision
// is taken on a path.
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

// ErrHost is returned, wrapped, where a write would change what is not the container's alone.
var ErrHost = errors.New("this part of the container is a mount from the host, which is not written to")

var errEmpty = errors.New("empty file")

// Root is a container's root file system. What only looks is host.Root's.
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

// notHost refuses the root of this process, whatever link led to it.
func notHost(root *host.Root) error {
	there, err := root.Lstat("/")
	if err != nil {
		return err
	}
	here, err := os.Stat("/")
	if err == nil && os.SameFile(there, here) {
		return errors.New("this is the host's root file system and no container's")
	}
	return err
}

// OpenFile opens a regular file for reading, on whichever mount it is. Nothing else is
// opened, and no file without a size: of those in /proc some change when they are read.
func (r *Root) OpenFile(name string) (*os.File, error) { return r.openFile(name, nil) }

func (r *Root) openFile(name string, check func(fd int) error) (*os.File, error) {
	held, err := r.Hold(name, 0, check)
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

// ReadFile returns the content of a regular file of at most limit bytes, from whichever
// mount. It must not get into a file of the container: the container's user may be one
// who cannot read it. See ReadOwnFile.
func (r *Root) ReadFile(name string, limit int64) ([]byte, error) {
	return r.readFile(name, limit, nil)
}

// ReadOwnFile is ReadFile for a file on the container's own mounts, reached through them only.
func (r *Root) ReadOwnFile(name string, limit int64) ([]byte, error) {
	return r.readFile(name, limit, r.mounts.own)
}

// OpenOwnFile is OpenFile for a file on the container's own mounts, reached through them only.
func (r *Root) OpenOwnFile(name string) (*os.File, error) { return r.openFile(name, r.mounts.own) }

// ResolveOwn is Resolve for what is on the container's own mounts, and reached through them only.
func (r *Root) ResolveOwn(name string) (string, error) {
	held, err := r.Hold(name, 0, r.mounts.own)
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

// MkdirAll makes a folder and what is missing above it.
func (r *Root) MkdirAll(name string, perm fs.FileMode) error {
	if info, err := r.Stat(name); err == nil && info.IsDir() {
		return nil
	}
	dir, err := r.Hold(name, perm, r.mounts.own)
	if err != nil {
		return wrap("mkdir", name, err)
	}
	defer dir.Close()
	if info, err := dir.Stat(); err != nil || !info.IsDir() {
		return wrap("mkdir", name, errors.Join(syscall.ENOTDIR, err))
	}
	return nil
}

// Symlink makes name a link with the given target, whatever is there that is no folder.
func (r *Root) Symlink(target, name string) error {
	return r.in("symlink", name, func(dir int, base string) error {
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

// Replace puts data at name, whole or not at all. A link there is replaced. The disk is
// not waited for: containers do not outlive the machine.
func (r *Root) Replace(name string, data []byte, perm fs.FileMode) error {
	return r.in("write", name, func(dir int, base string) error {
		return replace(dir, base, func(temp string) error {
			fd, err := unix.Openat(dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
			if err != nil {
				return err
			}
			f := os.NewFile(uintptr(fd), temp)
			_, err = f.Write(data)
			if err == nil {
				err = f.Chmod(perm) // the umask took some away
			}
			return errors.Join(err, f.Close())
		})
	})
}

// Remove removes a file or link. What is not there is no error.
func (r *Root) Remove(name string) error {
	if _, err := r.Lstat(name); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := r.in("remove", name, func(dir int, base string) error { return unix.Unlinkat(dir, base, 0) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// in calls do with the folder that holds name, and the last part of name.
func (r *Root) in(op, name string, do func(dir int, base string) error) error {
	clean := path.Clean("/" + name)
	if clean == "/" {
		return wrap(op, name, fs.ErrInvalid)
	}
	dir, err := r.Hold(path.Dir(clean), 0, r.mounts.own)
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

// replace has put make something at a new name in dir, and renames that to base. Both are
// names in the folder that is held: a link in their place is neither followed nor waited for.
func replace(dir int, base string, put func(temp string) error) error {
	temp := ".gpu-cdi-hook." + rand.Text() + ".tmp"
	err := put(temp)
	if err == nil {
		err = unix.Renameat(dir, temp, dir, base)
	}
	if err != nil {
		_ = unix.Unlinkat(dir, temp, 0)
	}
	return err
}

// Chmod sets the mode of the folder or regular file that name leads to: of just
// that one which was looked at, even if the path leads elsewhere by then.
func (r *Root) Chmod(name string, mode fs.FileMode) error {
	f, err := r.Hold(name, 0, r.mounts.own)
	if err != nil {
		return wrap("chmod", name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return wrap("chmod", name, err)
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return wrap("chmod", name, errors.New("neither a folder nor a regular file"))
	}
	const all = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
	if info.Mode()&all == mode&all {
		return nil
	}
	return wrap("chmod", name, os.Chmod(byDescriptor(f), mode&all))
}

// HoldMountPoint holds the regular file that name leads to, for mounting on it. A mount
// there must be seen in this container alone, so a file on a mount that passes on what is
// mounted on it (MS_SHARED) is refused.
func (r *Root) HoldMountPoint(name string) (*os.File, error) {
	f, err := r.Hold(name, 0, nil)
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

// Readonly reports whether an error means that a place cannot be written to, as
// against one that something is wrong with: a read-only or full disk, a mount
// from the host.
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

// wrap names the container's path, shortened, in the place of any other.
func wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		err = p.Err
	}
	return &fs.PathError{Op: op, Path: strings.ToValidUTF8(name[:min(len(name), 200)], ""), Err: err}
}
