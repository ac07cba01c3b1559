package kernel

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
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
	users, _ := s.findDriverUsers(nil)
	return users[:min(maxUsers, len(users))]
}

// findDriverUsers returns the processes that have a character device of NVIDIA's driver open or mapped, except
// own processes. It returns an error with what it found if there may be others.
func (s System) findDriverUsers(own []int) ([]User, error) {
	majors, err := s.readMajors()
	if err != nil {
		return nil, err
	}
	if len(majors) == 0 {
		return nil, nil
	}
	return s.findHolders(own, func(n deviceNumber) bool { return majors[n.major] })
}

// deviceNumber identifies a character device.
type deviceNumber struct{ major, minor uint32 }

// errUnanswered is returned if a file system did not answer what a process has open.
var errUnanswered = errors.New("a file system does not answer what a process has open")

// findHolders returns the processes, by PID, that have a character device open or mapped whose number holds
// reports true. It leaves out own processes, and those that these started. It returns an error with what it
// found if there may be others.
func (s System) findHolders(own []int, holds func(deviceNumber) bool) ([]User, error) {
	entries, err := os.ReadDir(s.Proc)
	if err != nil {
		return nil, err
	}
	var users []User
	for _, e := range entries {
		pid, notProcess := strconv.Atoi(e.Name())
		if notProcess != nil || pid == os.Getpid() || s.belongsTo(pid, own) {
			continue
		}
		device, unanswered := s.deviceOf(pid, holds)
		if device != "" {
			users = append(users, s.describeUser(pid, device))
		}
		if unanswered {
			err = errUnanswered
		}
	}
	slices.SortFunc(users, func(a, b User) int { return cmp.Compare(a.PID, b.PID) })
	return users, err
}

// belongsTo reports whether a process is one of some processes, a child of one, or in the session of one.
func (s System) belongsTo(pid int, processes []int) bool {
	if len(processes) == 0 || slices.Contains(processes, pid) {
		return len(processes) > 0
	}
	data, err := os.ReadFile(filepath.Join(s.Proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return false
	}
	// "<pid> (<name>) <state> <parent> <group> <session> …" (proc_pid_stat(5)); the name may have any character.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	for _, i := range []int{1, 3} {
		if i >= len(fields) {
			return false
		}
		if n, err := strconv.Atoi(fields[i]); err == nil && slices.Contains(processes, n) {
			return true
		}
	}
	return false
}

// firstNamespace is the inode of the PID namespace of the node's first process (PROC_PID_INIT_INO in the
// kernel's include/linux/proc_ns.h).
const firstNamespace = "pid:[4026531836]"

// seesNode reports whether this process is in the node's own PID namespace: it then finds all processes, and
// process 1 has the node's file system.
func (s System) seesNode() bool {
	namespace, err := os.Readlink(filepath.Join(s.Proc, "self/ns/pid"))
	return err == nil && namespace == firstNamespace
}

// NodeRoot returns the node's file system as its first process has it; false if this process cannot see that.
func (s System) NodeRoot() (string, bool) {
	return filepath.Join(s.Proc, "1/root"), s.seesNode()
}

// readMajors returns the major numbers of the driver's character devices, from /proc/devices.
func (s System) readMajors() (map[uint32]bool, error) {
	f, err := os.Open(filepath.Join(s.Proc, "devices"))
	if err != nil {
		return nil, err
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
	return majors, lines.Err()
}

// deviceOf returns a device that a process has open or mapped and whose number holds reports true. Only what a
// link calls a device is looked at: to follow the link of any other file asks its file system, whose server
// (NFS, FUSE) may never answer, and a process may be made to wait for that by anybody's file. unanswered reports
// whether a file system did not answer.
func (s System) deviceOf(pid int, holds func(deviceNumber) bool) (device string, unanswered bool) {
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
			switch number, answered := numberOf(path); {
			case !answered:
				unanswered = true
			case number != nil && holds(*number):
				return record.Clean(target, 256), unanswered
			}
		}
	}
	return "", unanswered
}

// statLimit bounds the wait for a file system that has a directory dev.
const statLimit = time.Second

// asking is held while a file system is asked for a file. One that does not answer keeps it, and then no other is
// asked: so one thread hangs at most.
var asking sync.Mutex

// numberOf returns the number of a character device, nil for another file. It asks the file system for nothing
// that the kernel does not know (AT_STATX_DONT_SYNC), and reports whether it answered.
func numberOf(path string) (number *deviceNumber, answered bool) {
	if !asking.TryLock() {
		return nil, false
	}
	result := make(chan *deviceNumber, 1)
	go func() {
		var st unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
		asking.Unlock()
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
			result <- nil
			return
		}
		result <- &deviceNumber{st.Rdev_major, st.Rdev_minor}
	}()
	limit := time.NewTimer(statLimit)
	defer limit.Stop()
	select {
	case n := <-result:
		return n, true
	case <-limit.C:
		return nil, false
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
