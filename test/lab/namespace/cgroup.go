package namespace

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Hierarchy is one tree of control groups, as mounted on this machine.
type Hierarchy struct {
	Mount string `json:"mount"` // where the machine has it, /sys/fs/cgroup/cpu
	Data  string `json:"data"`  // the mount option that names it, "cpu,cpuacct" or "none,name=systemd"; empty for v2
}

func (h Hierarchy) v2() bool { return h.Data == "" }

// HostHierarchies reads this machine's hierarchies.
func HostHierarchies() ([]Hierarchy, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	found, err := ParseHierarchies(f)
	if err == nil && len(found) == 0 {
		err = errors.New("no control groups are mounted on this machine; mount cgroup2 on /sys/fs/cgroup")
	}
	return found, err
}

// ParseHierarchies finds the hierarchies in a mountinfo file (proc_pid_mountinfo(5)). A hierarchy that is
// mounted twice is returned once.
func ParseHierarchies(r io.Reader) ([]Hierarchy, error) {
	var found []Hierarchy
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		mount, super := strings.Fields(before), strings.Fields(after)
		if !ok || len(mount) < 6 || len(super) < 3 {
			continue
		}
		h := Hierarchy{Mount: mount[4]}
		switch super[0] {
		case "cgroup":
			if h.Data = controllers(super[2]); h.Data == "" {
				continue
			}
		case "cgroup2":
		default:
			continue
		}
		if !slices.ContainsFunc(found, func(o Hierarchy) bool { return o.Data == h.Data }) {
			found = append(found, h)
		}
	}
	return found, lines.Err()
}

// controllers returns the mount options of a v1 mount that name the hierarchy.
func controllers(options string) string {
	var names []string
	for option := range strings.SplitSeq(options, ",") {
		switch {
		case strings.HasPrefix(option, "name="):
			return "none," + option
		case strings.Contains(option, "="):
		case slices.Contains([]string{"rw", "ro", "xattr", "clone_children", "noprefix", "cpuset_v2_mode", "favordynmods"}, option):
		default:
			names = append(names, option)
		}
	}
	return strings.Join(names, ",")
}

// MakeGroups creates a group of the given name at the top of every hierarchy and returns their
// directories. It first removes any group of that name left by a killed run.
func MakeGroups(hierarchies []Hierarchy, name string) ([]string, error) {
	if err := RemoveGroups(hierarchies, name); err != nil {
		return nil, err
	}
	var dirs []string
	for _, h := range hierarchies {
		dir := filepath.Join(h.Mount, name)
		if h.v2() {
			if err := enableControllers(h.Mount); err != nil {
				return nil, err
			}
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make a control group: %w", err)
		}
		// A v1 cpuset accepts no process before it has CPUs and memory.
		if slices.Contains(strings.Split(h.Data, ","), "cpuset") {
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				if err := inheritFile(h.Mount, dir, file); err != nil {
					return nil, err
				}
			}
			if err := os.WriteFile(filepath.Join(dir, "cgroup.clone_children"), []byte("1"), 0); err != nil {
				return nil, err
			}
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

func inheritFile(from, to, file string) error {
	value, err := os.ReadFile(filepath.Join(from, file))
	if errors.Is(err, fs.ErrNotExist) { // mounted with noprefix
		file = strings.TrimPrefix(file, "cpuset.")
		value, err = os.ReadFile(filepath.Join(from, file))
	}
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(to, file), value, 0)
}

// enableControllers makes all controllers of a v2 group available to its children.
func enableControllers(dir string) error {
	names, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(names)) {
		err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+name), 0)
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("%s: control groups below cannot have the controller %s while processes are in this one; "+
				"move them into a group below it first (in a container: start it with --cgroupns=host)", dir, name)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EOPNOTSUPP) {
			return fmt.Errorf("%s: enable the controller %s: %w", dir, name, err)
		}
	}
	return nil
}

// JoinGroups moves this process into the groups.
func JoinGroups(dirs []string) error {
	for _, dir := range dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("join a control group: %w", err)
		}
	}
	return nil
}

// MountGroups mounts the hierarchies below the directory at, laid out as on the machine. A process
// sees them from its control group namespace, which begins at the groups it joined.
func MountGroups(hierarchies []Hierarchy, at string) error {
	if len(hierarchies) == 1 && hierarchies[0].v2() {
		if err := unix.Mount("cgroup2", at, "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("mount cgroup2: %w", err)
		}
		return leaveTop(at)
	}
	if err := unix.Mount("cgroup", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755"); err != nil {
		return err
	}
	for _, h := range hierarchies {
		dir, kind := filepath.Join(at, filepath.Base(h.Mount)), "cgroup"
		if h.v2() {
			kind = "cgroup2"
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("cgroup", dir, kind, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, h.Data); err != nil {
			return fmt.Errorf("mount the control groups %s: %w", h.Data, err)
		}
	}
	return nil
}

// leaveTop moves this process out of the top group, as systemd does: a v2 group cannot have both
// processes and children with controllers.
func leaveTop(top string) error {
	dir := filepath.Join(top, "init.scope")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := JoinGroups([]string{dir}); err != nil {
		return err
	}
	return enableControllers(top)
}

// RemoveGroups removes the groups of that name and all below them. Their processes
// must have ended; the kernel may take a moment to notice.
func RemoveGroups(hierarchies []Hierarchy, name string) error {
	deadline := time.Now().Add(10 * time.Second)
	for _, h := range hierarchies {
		dir := filepath.Join(h.Mount, name)
		for {
			err := removeGroup(dir)
			if err == nil {
				break
			}
			if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
				return fmt.Errorf("remove the control group %s: %w; its processes are listed in cgroup.procs there", dir, err)
			}
			time.Sleep(10 * time.Millisecond) // the kernel does not notify when a v1 group is empty
		}
	}
	return nil
}

func removeGroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeGroup(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// FindGroups lists the names of groups that begin with prefix, in any hierarchy.
func FindGroups(hierarchies []Hierarchy, prefix string) []string {
	var names []string
	for _, h := range hierarchies {
		found, _ := filepath.Glob(filepath.Join(h.Mount, prefix+"*"))
		for _, dir := range found {
			if name := filepath.Base(dir); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}
