package apply

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host"
)

// missingDirs lists the directories that Apply will make, outermost first.
func missingDirs(root *host.Root, changes []Change) ([]string, error) {
	var dirs []string
	for _, c := range changes {
		if c.Verb == "remove" {
			continue
		}
		dir, err := root.Resolve(path.Dir(c.Path))
		if err != nil {
			return nil, err
		}
		at := len(dirs)
		for ; dir != "/" && !slices.Contains(dirs, dir); dir = path.Dir(dir) {
			if _, err := root.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
				break
			}
			dirs = slices.Insert(dirs, at, dir)
		}
	}
	return dirs, nil
}

// Write makes the changes in order, without a record. Each is atomic, and synced to the disk
// before the next begins. Write stops at the first error, and returns the changes made.
func Write(root *host.Root, changes []Change) (made []Change, err error) {
	for i, c := range changes {
		if err := writeChange(root, c); err != nil {
			return changes[:i], explain(root, c.Path, err)
		}
	}
	return changes, nil
}

func writeChange(root *host.Root, c Change) error {
	now, _, err := ReadItem(root, c.Path)
	if err != nil {
		return err
	}
	if c.matches(now) {
		return nil // another program has made it meanwhile
	}
	if !c.Was.Same(now) && c.Node == nil {
		return &fs.PathError{Op: c.Verb, Path: c.Path, Err: errChanged}
	}
	if !c.Absent {
		if err := mkdirs(root, path.Dir(c.Path)); err != nil {
			return err
		}
	}
	switch {
	case c.Absent:
		err = root.Remove(c.Path)
	case c.File != nil:
		return root.WriteFileAttr(c.Path, c.File.Data, host.Attr{Mode: c.File.Mode, Owner: c.File.Owner, Xattrs: c.File.Xattrs})
	case c.Node != nil: // a process that uses the old node has it open, so it is not harmed
		err = root.Mknod(c.Path, c.Node.Mode, c.Node.Major, c.Node.Minor)
	default:
		_, err = root.Symlink(c.Link, c.Path)
	}
	if err == nil {
		err = root.SyncDir(path.Dir(c.Path))
	}
	return err
}

func mkdirs(root *host.Root, dir string) error {
	made, err := root.MkdirAll(dir, 0o755)
	for _, d := range made {
		if err == nil {
			err = root.SyncDir(path.Dir(d))
		}
	}
	return err
}

// Refused is an error of the host's file system that a person can fix. The file that was to
// be changed is unchanged.
type Refused struct {
	Err  error
	Next string // the remedy
}

func (r *Refused) Error() string { return r.Err.Error() + "; nothing was left half-written; " + r.Next }
func (r *Refused) Unwrap() error { return r.Err }

// explain wraps an error of writing at a path in a Refused if a person can fix it.
func explain(root *host.Root, name string, err error) error {
	_, refused := errors.AsType[*Refused](err)
	switch {
	case err == nil || refused:
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return &Refused{err, "make room on that file system and run again"}
	case errors.Is(err, syscall.EROFS):
		return &Refused{err, "mount it writable"}
	case !errors.Is(err, fs.ErrPermission):
		return err
	case immutable(root, name), immutable(root, path.Dir(name)):
		return &Refused{err, "the file or its directory has an attribute that forbids changes: remove it with chattr -i -a"}
	}
	return &Refused{err, "run as root, with the host's directories mounted writable, and check whether SELinux or AppArmor refused it"}
}

// immutable reports whether a file or directory has the attribute i or a of chattr(1).
func immutable(root *host.Root, name string) bool {
	real, err := root.Resolve(name)
	if err != nil {
		return false
	}
	var st unix.Statx_t
	err = unix.Statx(unix.AT_FDCWD, root.Path(real), unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_DONT_SYNC, 0, &st)
	return err == nil && st.Attributes&(unix.STATX_ATTR_IMMUTABLE|unix.STATX_ATTR_APPEND) != 0
}
