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

// mounts decides which mounts are the container's own, by their numbers. There are two kinds:
//
//   - The mount of the root file system. A volume whose place in the image is a link to "/"
//     covers it: then nothing is the container's own.
//   - A tmpfs that the runtime made for this container, such as /dev. Such a file system has no
//     mount outside of the container. What came in by a bind mount has one: its source, in the
//     same mount namespace. An emptyDir in memory, the pod's /dev/shm and the host's /run have.
//
// Everything else belongs to the host, to the pod or to others.
type mounts struct {
	root  string           // number of the first mount that was asked about, the root's
	table mountinfo        // "": not read yet
	known map[string]error // by number: nil for the container's own
}

// own fails if a descriptor is not on a mount of the container's own. The first one that
// it is called with is that of the root.
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

// private fails if what is mounted on a descriptor's mount is seen elsewhere.
func (m *mounts) private(fd int) error {
	id, err := mountID(fd)
	if err != nil {
		return err
	}
	if err := m.read(); err != nil {
		return err
	}
	if at, ok := m.table.find(id); !ok || at.shared {
		return fmt.Errorf("%w: what is mounted there would be seen outside of the container", ErrHost)
	}
	return nil
}

func (m *mounts) read() error {
	if m.table != "" {
		return nil
	}
	// Kernels before 5.8 may leave out a mount while another one goes, so the table is read
	// until two readings are the same.
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

// mountTable lists the mounts that this thread sees. That of /proc/self lists those of the
// process's first thread, which may be in a mount namespace of its own.
const mountTable = "/proc/thread-self/mountinfo"

// mountinfo is the text of mountTable; proc_pid_mountinfo(5) describes it.
type mountinfo string

// point is one mount. All its parts are as they are written there.
type point struct {
	id, parent string
	device     string // major:minor of the file system
	dir        string // of the file system, that is seen at the mount
	at         string // where it is mounted
	shared     bool
	kind       string // of file system
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

// uncovered fails if the mount of the root file system is on top of others that show another
// folder. Runtimes mount the root file system, and then once more on itself, before they mount
// anything into it: the lowest is theirs.
func (m mountinfo) uncovered(root point) error {
	for top := root; ; {
		below, ok := m.find(top.parent)
		if !ok || below.at != root.at {
			return nil
		}
		if below.device != root.device || below.dir != root.dir {
			return fmt.Errorf("%w: something is mounted on the container's whole root", ErrHost)
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

// statx is replaced in tests by that of a kernel that does not know it.
var statx = unix.Statx

// mountID returns the number of the mount that a descriptor is on, as mountinfo writes it.
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
	return "", errors.New("this kernel does not number mounts; Linux 3.15 or newer is needed")
}
