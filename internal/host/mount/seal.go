package mount

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Seal makes a read-only mount of the host's root really read-only in a container. The
// flag of a bind mount applies to that one mount: file systems that the host has
// mounted below it, or mounts later, stay writable. Seal does not change the
// container's own mounts in the folder.
type Seal struct {
	dir    string
	except []string
	known  map[string]bool // mount IDs that were looked at
}

// entry is a line of mountinfo, proc_pid_mountinfo(5).
type entry struct {
	id, device, root, at string
	readOnly             bool
}

// NewSeal makes all file systems read-only that the host has mounted below dir, only in
// this mount namespace. This process may still write to the folders in except: the mount
// at such a folder, or else at the folder above it, stays unchanged. It returns nil if
// dir itself is not mounted read-only, or this process is in the host's mount namespace.
func NewSeal(dir string, except ...string) (*Seal, error) {
	s := &Seal{dir: filepath.Clean(dir), except: except, known: map[string]bool{}}
	needed, err := s.needed()
	if err != nil || !needed {
		return nil, err
	}
	// Read the host's table last: mounts removed there meanwhile are gone here, too.
	here, err := entries("/proc/self/mountinfo", s.dir)
	if err != nil {
		return nil, fmt.Errorf("make the host's mounts read-only: %w", err)
	}
	host, err := entries(filepath.Join(s.dir, "proc/1/mountinfo"), "/")
	if err != nil {
		return nil, fmt.Errorf("make the host's mounts read-only: %w", err)
	}
	writable := s.writable(here, host)
	if err := set(s.dir, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return nil, err
	}
	for _, e := range writable {
		if err := set(e.at, 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return nil, err
		}
	}
	for _, e := range here {
		s.known[e.id] = true
	}
	return s, s.Refresh()
}

// needed reports whether dir is a read-only mount in a namespace other than the host's.
func (s *Seal) needed() (bool, error) {
	here, err := entries("/proc/self/mountinfo", s.dir)
	if err != nil {
		return false, err
	}
	e, found := top(here, s.dir)
	if !found || !e.readOnly || s.dir == "/" {
		return false, nil
	}
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return false, err
	}
	its, err := os.Readlink(filepath.Join(s.dir, "proc/1/ns/mnt"))
	if err != nil {
		return false, fmt.Errorf("make the host's mounts read-only: cannot tell which mounts are the host's: %w", err)
	}
	return own != its, nil
}

// writable returns the mounts that stay writable: the container's own, which the host
// does not have at that place, and those of the excepted folders.
func (s *Seal) writable(here, host []entry) []entry {
	type place struct{ device, root, at string }
	has, seen := map[place]int{}, map[place]int{}
	for _, e := range host {
		has[place{e.device, e.root, e.at}]++
	}
	tops := map[string]entry{} // the last of several at one place covers the others
	for _, e := range here {
		p := place{e.device, e.root, path.Join("/", strings.TrimPrefix(e.at, s.dir))}
		seen[p]++
		brought := has[p] > 0 && below(tops, e.at) // with a folder of the host that is mounted by name
		if seen[p] > has[p] && !brought && e.at != s.dir {
			tops[e.at] = e
		}
	}
	for _, folder := range s.except {
		if e, found := s.holder(here, folder); found {
			tops[e.at] = e
		}
	}
	var all []entry
	for _, e := range tops {
		if !e.readOnly {
			all = append(all, e)
		}
	}
	return all
}

// below reports whether a path is below one of the mounts.
func below(mounts map[string]entry, at string) bool {
	for dir := path.Dir(at); dir != "/" && dir != "."; dir = path.Dir(dir) {
		if _, found := mounts[dir]; found {
			return true
		}
	}
	return false
}

// holder returns the mount at a folder, or else at the folder above it.
func (s *Seal) holder(here []entry, folder string) (entry, bool) {
	if e, found := top(here, folder); found {
		return e, true
	}
	return top(here, path.Dir(folder))
}

// Refresh makes mounts read-only that the host has added since. The error names mounts that
// cannot be changed; the others are changed all the same.
func (s *Seal) Refresh() error {
	here, err := entries("/proc/self/mountinfo", s.dir)
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, folder := range s.except {
		if e, found := s.holder(here, folder); found {
			keep[e.id] = true
		}
	}
	var errs []error
	there := map[string]bool{}
	for _, e := range here {
		there[e.id] = true
		if s.known[e.id] || keep[e.id] || e.readOnly {
			continue
		}
		err := set(e.at, unix.AT_SYMLINK_NOFOLLOW, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) { // unmounted meanwhile
			continue
		}
		errs = append(errs, err)
	}
	s.known = there
	return errors.Join(errs...)
}

// set changes the attributes of the mount at a path, with AT_RECURSIVE also of all below
// it. It looks up no path below it then, so a dead network file system does not matter.
func set(at string, flags uint, attributes *unix.MountAttr) error {
	err := unix.MountSetattr(unix.AT_FDCWD, at, flags, attributes)
	if errors.Is(err, unix.ENOSYS) {
		return errors.New("make the host's mounts read-only: this kernel has no mount_setattr; Linux 5.12 or newer is needed")
	}
	if err != nil {
		return fmt.Errorf("make the host's mounts read-only: %s: %w%s", at, err, advice(err))
	}
	return nil
}

// entries reads the mounts at and below dir from a mountinfo.
func entries(file, dir string) ([]entry, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var all []entry
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 6 {
			continue
		}
		at := unescape.Replace(fields[4])
		if at != dir && !strings.HasPrefix(at, strings.TrimSuffix(dir, "/")+"/") {
			continue
		}
		all = append(all, entry{
			id: fields[0], device: fields[2], root: fields[3], at: at,
			readOnly: fields[5] == "ro" || strings.HasPrefix(fields[5], "ro,"),
		})
	}
	return all, nil
}

// top returns the visible mount at a path, the last one mounted there.
func top(all []entry, at string) (e entry, found bool) {
	for i := range all {
		if all[i].at == at {
			e, found = all[i], true
		}
	}
	return e, found
}
