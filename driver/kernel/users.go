package kernel

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// User is a process that has a device of the driver open or mapped.
type User struct {
	PID       int
	Command   string // /proc/<pid>/comm
	Container string // ID; "" for a process of the host
	Pod       string // UID; "" if its cgroup names none
	Device    string // a path as the process sees it
}

// maxUsers bounds the number of named processes.
const maxUsers = 16

// String names the process for people.
func (u User) String() string {
	s := fmt.Sprintf("pid %d (%s", u.PID, u.Command)
	if u.Container != "" {
		s += ", container " + u.Container[:min(12, len(u.Container))]
	}
	if u.Pod != "" {
		s += ", pod " + u.Pod
	}
	return s + ") with " + u.Device
}

func describeUsers(users []User) string {
	shown := users[:min(3, len(users))]
	words := make([]string, len(shown))
	for i, u := range shown {
		words[i] = u.String()
	}
	text := strings.Join(words, ", ")
	if more := len(users) - len(shown); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// FindUsers returns the processes that have a character device of NVIDIA's driver open or mapped,
// at most maxUsers, ordered by PID. It finds only those in this process's PID namespace.
func (s System) FindUsers() []User {
	majors := s.readMajors()
	if len(majors) == 0 {
		return nil
	}
	entries, err := os.ReadDir(s.Proc)
	if err != nil {
		return nil
	}
	var users []User
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if device := s.deviceOf(pid, majors); device != "" {
			users = append(users, s.describeUser(pid, device))
		}
	}
	slices.SortFunc(users, func(a, b User) int { return cmp.Compare(a.PID, b.PID) })
	return users[:min(maxUsers, len(users))]
}

// readMajors returns the major numbers of the driver's character devices, from /proc/devices.
func (s System) readMajors() map[uint32]bool {
	f, err := os.Open(filepath.Join(s.Proc, "devices"))
	if err != nil {
		return nil
	}
	defer f.Close() //nolint:errcheck // it is only read
	majors := map[uint32]bool{}
	lines := bufio.NewScanner(f)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "Block devices") {
		number, name, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		if major, err := strconv.ParseUint(number, 10, 32); err == nil && strings.HasPrefix(name, "nvidia") {
			majors[uint32(major)] = true
		}
	}
	return majors
}

// deviceOf returns a device with one of the major numbers that a process has open or mapped. Only what a link
// calls a device is looked at: to follow the link of any other file asks its file system, whose server
// (NFS, FUSE) may never answer, and a process may be made to wait for that by anybody's file.
func (s System) deviceOf(pid int, majors map[uint32]bool) string {
	dir := filepath.Join(s.Proc, strconv.Itoa(pid))
	for _, sub := range []string{"fd", "map_files"} {
		names, err := readNames(filepath.Join(dir, sub))
		if err != nil {
			continue
		}
		for _, name := range names {
			path := filepath.Join(dir, sub, name)
			target, err := os.Readlink(path)
			if err != nil || !strings.Contains(target, "/dev/") {
				continue
			}
			if major, ok := majorOf(path); ok && majors[major] {
				return record.Clean(target, 256)
			}
		}
	}
	return ""
}

// statLimit bounds the wait for a file system that has a directory dev.
const statLimit = time.Second

// asking is held while a file system is asked for a file. One that does not answer keeps it, and then no other is
// asked: so one thread hangs at most.
var asking sync.Mutex

// majorOf returns the major number of a character device. It asks the file system for nothing that the kernel
// does not know (AT_STATX_DONT_SYNC).
func majorOf(path string) (major uint32, ok bool) {
	if !asking.TryLock() {
		return 0, false
	}
	type result struct {
		major uint32
		ok    bool
	}
	answered := make(chan result, 1)
	go func() {
		var st unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
		asking.Unlock()
		answered <- result{st.Rdev_major, err == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR}
	}()
	limit := time.NewTimer(statLimit)
	defer limit.Stop()
	select {
	case r := <-answered:
		return r.major, r.ok
	case <-limit.C:
		return 0, false
	}
}

func readNames(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it is only read
	return f.Readdirnames(-1)
}

func (s System) describeUser(pid int, device string) User {
	dir := filepath.Join(s.Proc, strconv.Itoa(pid))
	u := User{PID: pid, Device: device}
	if comm, err := os.ReadFile(filepath.Join(dir, "comm")); err == nil {
		u.Command = record.Clean(strings.TrimSpace(string(comm)), 64)
	}
	if cgroup, err := os.ReadFile(filepath.Join(dir, "cgroup")); err == nil {
		u.Container, u.Pod = parseCgroup(string(cgroup))
	}
	return u
}

// parseCgroup finds a container's ID and its pod's UID in /proc/<pid>/cgroup, in the
// spellings of the kubelet's cgroup drivers: .../kubepods/burstable/pod<uid>/<id> and
// .../kubepods-burstable-pod<uid with _>.slice/cri-containerd-<id>.scope.
func parseCgroup(text string) (container, pod string) {
	for line := range strings.Lines(text) {
		_, path, _ := strings.Cut(strings.TrimSpace(line), ":/")
		for part := range strings.SplitSeq(path, "/") {
			part = strings.TrimSuffix(strings.TrimSuffix(part, ".scope"), ".slice")
			if i := strings.LastIndex(part, "pod"); i >= 0 {
				if uid := strings.ReplaceAll(part[i+len("pod"):], "_", "-"); len(uid) == 36 || len(uid) == 32 {
					pod = uid
				}
			}
			if id := part[strings.LastIndexByte(part, '-')+1:]; len(id) == 64 && strings.Trim(id, "0123456789abcdef") == "" {
				container = id
			}
		}
	}
	return container, pod
}
