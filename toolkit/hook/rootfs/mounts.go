package rootfs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mounts decides which mounts are the container's own, by their IDs. There are two kinds:
//
//   - The mount of the root file system. If a volume covers it, because its destination in
//     the image is a link to "/", nothing is the container's own.
//   - A tmpfs that the runtime created for this container, such as /dev. Such a file system
//     has no mount outside of the container. A bind mount's file system has one, its source
//     in the same mount namespace: an emptyDir in memory, the pod's /dev/shm, the host's /run.
//
// Everything else belongs to the host, to the pod or to others.
type mounts struct {
	root  string           // ID of the first mount that was checked, the root's
	table mountinfo        // "" if not read yet
	known map[string]error // by ID: nil for the container's own
}

// own returns an error if a descriptor is not on one of the container's own mounts. Its first
// call must be for the root.
func (m *mounts) own(fd int) error {
	id, err := mountID(fd)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrHost, err)
	}
	if m.known == nil {
		m.root, m.known = id, map[string]error{}
	}
	decided, ok := m.known[id]
	if !ok {
		decided = m.decide(id)
		m.known[id] = decided
	}
	return decided
}

func (m *mounts) decide(id string) error {
	if err := m.read(); err != nil {
		return fmt.Errorf("%w: %w", ErrHost, err)
	}
	at, ok := m.table.find(id)
	if !ok {
		return fmt.Errorf("%w: mount %s is not in %s", ErrHost, id, mountTable)
	}
	if id == m.root {
		return m.table.uncovered(at)
	}
	if at.kind != "tmpfs" || at.dir != "/" || !m.table.onlyBelow(m.root, at.device) {
		return ErrHost
	}
	return nil
}

// private returns an error if a new mount on a descriptor's mount would be visible elsewhere.
func (m *mounts) private(fd int) error {
	id, err := mountID(fd)
	if err != nil {
		return err
	}
	if err := m.read(); err != nil {
		return err
	}
	if at, ok := m.table.find(id); !ok || at.shared {
		return fmt.Errorf("%w: a mount there would be visible outside of the container", ErrHost)
	}
	return nil
}

func (m *mounts) read() error {
	if m.table != "" {
		return nil
	}
	// Kernels before 5.8 may omit a mount while another one is removed, so the table is read
	// until two readings agree.
	var last []byte
	for range 10 {
		data, err := os.ReadFile(mountTable)
		if err != nil {
			return err
		}
		if last != nil && bytes.Equal(data, last) {
			m.table = mountinfo(data)
			return nil
		}
		last = data
	}
	return fmt.Errorf("%s does not stop changing", mountTable)
}

// mountTable lists the mounts of this thread. That of /proc/self lists those of the process's
// first thread, which may be in a mount namespace of its own.
const mountTable = "/proc/thread-self/mountinfo"

// mountinfo is the text of mountTable; proc_pid_mountinfo(5) describes it.
type mountinfo string

// point is one mount, with the fields as in mountTable.
type point struct {
	id, parent string
	device     string // major:minor of the file system
	dir        string // directory of the file system at the mount's root
	at         string // the mount point
	shared     bool
	kind       string // the type of the file system
}

func parse(line string) (p point, ok bool) {
	before, after, ok := strings.Cut(line, " - ")
	fields := strings.Fields(before)
	if !ok || len(fields) < 6 {
		return point{}, false
	}
	p = point{id: fields[0], parent: fields[1], device: fields[2], dir: fields[3], at: fields[4]}
	for _, optional := range fields[6:] {
		p.shared = p.shared || strings.HasPrefix(optional, "shared:")
	}
	p.kind, _, _ = strings.Cut(after, " ")
	return p, true
}

func (m mountinfo) find(id string) (point, bool) {
	for line := range strings.Lines(string(m)) {
		if strings.HasPrefix(line, id+" ") {
			return parse(line)
		}
	}
	return point{}, false
}

// uncovered returns an error if the mount of the root file system covers a mount of another
// directory. Runtimes mount the root file system, and then once more on itself, before they
// mount anything into it, so the lowest mount is theirs.
func (m mountinfo) uncovered(root point) error {
	for top := root; ; {
		below, ok := m.find(top.parent)
		if !ok || below.at != root.at {
			return nil
		}
		if below.device != root.device || below.dir != root.dir {
			return fmt.Errorf("%w: a volume covers the container's whole root", ErrHost)
		}
		top = below
	}
}

// onlyBelow reports whether all mounts of a device are below the mount root.
func (m mountinfo) onlyBelow(root, device string) bool {
	parents, of := map[string]string{}, []string(nil)
	for line := range strings.Lines(string(m)) {
		p, ok := parse(line)
		if !ok {
			return false
		}
		parents[p.id] = p.parent
		if p.device == device {
			of = append(of, p.parent)
		}
	}
	for _, at := range of {
		for steps := 0; at != root; steps++ {
			up, ok := parents[at]
			if !ok || steps > len(parents) {
				return false
			}
			at = up
		}
	}
	return true
}

// statx is replaced in tests to simulate a kernel without it.
var statx = unix.Statx

// mountID returns the ID of a descriptor's mount, in the form of mountinfo.
func mountID(fd int) (string, error) {
	var st unix.Statx_t
	err := statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st)
	if err == nil && st.Mask&unix.STATX_MNT_ID != 0 {
		return strconv.FormatUint(st.Mnt_id, 10), nil
	}
	// Before Linux 5.8, or refused by a sandbox.
	data, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strings.TrimSpace(id), nil
		}
	}
	return "", errors.New("this kernel has no mount IDs; Linux 3.15 or newer is needed")
}
