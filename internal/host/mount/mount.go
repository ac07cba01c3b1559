// Package mount mounts a filled tmpfs on a folder atomically: the file system is
// filled while it is hidden, and then mounted. The files below the mount are hidden,
// not changed.
package mount

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Kind is a kind of tmpfs, by which its mounts are recognized.
type Kind struct {
	Source     string // what /proc/self/mountinfo shows as their source
	Mode       string // of their root folder, octal: "1777"
	Attributes int    // unix.MOUNT_ATTR_*
	Inodes     string // at most, as tmpfs(5) reads it; "": as many as the kernel takes
}

// FS is a tmpfs that is not mounted yet.
type FS struct{ fd int }

// New makes a file system of at most size, as tmpfs(5) reads it ("32m").
func (k Kind) New(size string) (*FS, error) {
	fd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.ENOSYS) {
		return nil, errors.New("make a tmpfs: this kernel has no fsopen; Linux 5.2 or newer is needed")
	}
	if err != nil {
		return nil, fmt.Errorf("make a tmpfs: fsopen: %w%s", err, advice(err))
	}
	defer unix.Close(fd) //nolint:errcheck // it is of no use afterwards
	for _, o := range [][2]string{{"source", k.Source}, {"mode", k.Mode}, {"size", size}, {"nr_inodes", k.Inodes}} {
		if o[1] == "" {
			continue
		}
		if err := unix.FsconfigSetString(fd, o[0], o[1]); err != nil {
			return nil, fmt.Errorf("make a tmpfs: %s=%s: %w", o[0], o[1], err)
		}
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return nil, fmt.Errorf("make a tmpfs: %w%s", err, advice(err))
	}
	m, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, k.Attributes)
	if err != nil {
		return nil, fmt.Errorf("make a tmpfs: fsmount: %w%s", err, advice(err))
	}
	return &FS{m}, nil
}

func advice(err error) string {
	if errors.Is(err, unix.EPERM) {
		return "; mounting needs CAP_SYS_ADMIN: run it as root, in a privileged container"
	}
	return ""
}

// Dir returns a path to the file system's root, valid only in this process.
func (f *FS) Dir() string { return "/proc/self/fd/" + strconv.Itoa(f.fd) }

// MountOn mounts the file system on the folder at, on top of its content. The mount
// propagates like others of that place.
func (f *FS) MountOn(at string) error {
	if err := unix.MoveMount(f.fd, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w%s", at, err, advice(err))
	}
	return nil
}

// Close closes the file system, which ends it unless it was mounted.
func (f *FS) Close() error { return unix.Close(f.fd) }

// Point is a mount, as this process sees it.
type Point struct {
	ID     int
	Root   string // the mounted folder, in its file system; of a removed one it ends with "//deleted"
	At     string
	Type   string
	Source string
	Shared bool // mounts on it propagate, and so do those beside it
}

// Top returns the visible mount that contains path.
func Top(path string) (Point, error) {
	for range maxLooks {
		if p, err := lookTop(path); !errors.Is(err, errUnmounted) {
			return p, err
		}
	}
	return Point{}, fmt.Errorf("%s: its mount is not in /proc/self/mountinfo", path)
}

// maxLooks bounds how often Top looks again because the mount was unmounted meanwhile.
const maxLooks = 5

// errUnmounted means that the mount of a path is not listed, mostly because it was just unmounted.
var errUnmounted = errors.New("not in /proc/self/mountinfo")

// lookTop looks for the visible mount that contains path once. The error is errUnmounted if it is not listed.
func lookTop(path string) (Point, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID, &st); err != nil {
		return Point{}, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return Point{}, errors.New("this kernel does not number mounts; Linux 5.8 or newer is needed")
	}
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Point{}, err
	}
	for line := range bytes.Lines(data) {
		if p, ok := parse(string(line)); ok && uint64(p.ID) == st.Mnt_id {
			return p, nil
		}
	}
	return Point{}, errUnmounted
}

// TopAt returns the topmost mount at a path, and whether there is one.
// Unlike Top it needs no recent kernel. The path is one that Resolve returned.
func TopAt(path string) (p Point, there bool, err error) {
	all, err := layers(path)
	if len(all) > 0 {
		p, there = all[len(all)-1], true
	}
	return p, there, err
}

// Count returns the number of file systems mounted on top of each other at a path.
func Count(path string) (int, error) {
	all, err := layers(path)
	return len(all), err
}

func layers(path string) ([]Point, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var all []Point
	for line := range bytes.Lines(data) {
		if p, ok := parse(string(line)); ok && p.At == path {
			all = append(all, p)
		}
	}
	return all, nil
}

// Is reports whether the visible mount at path is of this kind.
func (k Kind) Is(path string) (bool, error) {
	p, err := Top(path)
	return err == nil && p.At == path && p.Type == "tmpfs" && p.Source == k.Source, err
}

// Remove unmounts all mounts of this kind at path. Open files in them stay usable.
func (k Kind) Remove(path string) error {
	for {
		ours, err := k.Is(path)
		if err != nil || !ours {
			return err
		}
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w%s", path, err, advice(err))
		}
	}
}

// Resolve returns path as mountinfo writes it: absolute and without links.
func Resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// parse reads a line of mountinfo; proc_pid_mountinfo(5) describes it.
func parse(line string) (p Point, ok bool) {
	before, after, ok := strings.Cut(line, " - ")
	fields, rest := strings.Fields(before), strings.Fields(after)
	if !ok || len(fields) < 6 || len(rest) < 2 {
		return Point{}, false
	}
	id, err := strconv.Atoi(fields[0])
	if err != nil {
		return Point{}, false
	}
	p = Point{ID: id, Root: unescape.Replace(fields[3]), At: unescape.Replace(fields[4]), Type: rest[0], Source: unescape.Replace(rest[1])}
	for _, optional := range fields[6:] {
		p.Shared = p.Shared || strings.HasPrefix(optional, "shared:")
	}
	return p, true
}
