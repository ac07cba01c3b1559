// Package rootfs is the root file system of a container that is being created,
// seen by a hook. Paths are the container's own; links are followed as in a
// chroot, and never lead out (package host). What the container shows of the
// host, a folder that is mounted into it or /proc, is read but not written to.
package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/gpuready/gpuready/internal/host"
)

// ErrHost is returned, wrapped, where a write would change what is the host's.
var ErrHost = errors.New("this part of the container is a mount from the host, which is not written to")

// Root is a container's root file system. What only reads is host.Root's.
type Root struct {
	*host.Root
	mounts []string
	host   func() []string // mounts, resolved
}

// Open opens the root file system at dir, a path of this process. mounts are
// the destinations of what is mounted into it from the host.
func Open(dir string, mounts []string) (*Root, error) {
	root, err := host.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := notHost(root); err != nil {
		_ = root.Close()
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	r := &Root{Root: root, mounts: mounts}
	r.host = sync.OnceValue(r.resolveMounts)
	return r, nil
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

func (r *Root) resolveMounts() []string {
	var real []string
	for _, m := range r.mounts {
		if p, err := r.Resolve(m); err == nil {
			real = append(real, p)
		}
	}
	return real
}

// own fails if what name leads to, if anything, is the host's.
func (r *Root) own(op, name string) error {
	real, err := r.Resolve(name)
	if err != nil {
		return err
	}
	for _, m := range r.host() {
		if real == m || strings.HasPrefix(real, strings.TrimSuffix(m, "/")+"/") {
			return &fs.PathError{Op: op, Path: name, Err: ErrHost}
		}
	}
	return nil
}

// MkdirAll makes a folder and what is missing above it.
func (r *Root) MkdirAll(name string, perm fs.FileMode) error {
	info, err := r.Stat(name)
	if err == nil && info.IsDir() {
		return nil
	}
	if err := r.own("mkdir", name); err != nil {
		return err
	}
	_, err = r.Root.MkdirAll(name, perm)
	return err
}

// Symlink makes name a link with the given target, whatever is there that is no folder.
func (r *Root) Symlink(target, name string) error {
	if err := r.own("symlink", path.Dir(path.Clean("/"+name))); err != nil {
		return err
	}
	_, err := r.Root.Symlink(target, name)
	return err
}

// Replace puts data at name, whole or not at all. A link there is replaced.
func (r *Root) Replace(name string, data []byte, perm fs.FileMode) error {
	if err := r.own("write", path.Dir(path.Clean("/"+name))); err != nil {
		return err
	}
	return r.Root.Replace(name, data, perm)
}

// Remove removes a file or link. What is not there is no error.
func (r *Root) Remove(name string) error {
	if _, err := r.Lstat(name); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := r.own("remove", path.Dir(path.Clean("/"+name))); err != nil {
		return err
	}
	return r.Root.Remove(name)
}

// Chmod sets the mode of the folder or regular file that name leads to: of just
// that one which was looked at, even if the path leads elsewhere by then.
func (r *Root) Chmod(name string, mode fs.FileMode) error {
	if err := r.own("chmod", name); err != nil {
		return err
	}
	f, err := r.OpenPath(name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return &fs.PathError{Op: "chmod", Path: name, Err: errors.New("neither a folder nor a regular file")}
	}
	const all = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
	if info.Mode()&all == mode&all {
		return nil
	}
	err = os.Chmod("/proc/self/fd/"+strconv.Itoa(int(f.Fd())), mode&all)
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		p.Path = name
	}
	return err
}

// Readonly says whether an error means that a place cannot be written to, as
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
