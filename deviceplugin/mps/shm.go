package mps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/host/mount"
)

// What clients can fill has a file system of its own, with a bound: in the host's /run
// they would fill that. Attributes are the reference's (cmd/mps-control-daemon/mount).
const attributes = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC

var (
	// shmKind is the file system in which daemon, servers and containers share memory.
	// Clients are users of all kinds, as in every /dev/shm.
	shmKind = mount.Kind{Source: "gpuready-mps", Mode: "1777", Attributes: attributes, Inodes: "16k"}
	// logKind is the file system of a daemon's logs. No client sees it, but the daemon
	// writes a line for each connection that a client makes.
	logKind = mount.Kind{Source: "gpuready-mps-log", Mode: "755", Attributes: attributes, Inodes: "64"}
)

const (
	shmSize = "64m" // the reference's
	logSize = "16m" // some 100,000 connections
)

// shm has the shared memory mounted once, whichever control daemon is started first.
type shm struct{ mu sync.Mutex }

// mount mounts the shared memory. What is mounted there already gets room for all users.
func (s *shm) mount(at site) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir, fresh, err := at.mount(shmKind, shmSize, ShmDir(at.real))
	if err == nil && !fresh {
		err = os.Chmod(dir, 0o777|os.ModeSticky)
	}
	if err != nil {
		return fmt.Errorf("make the shared memory of MPS: %w", err)
	}
	if !fresh {
		return nil
	}
	return relabel(dir)
}

// mountLogs mounts the folder of the daemon's logs. Logs that fill more than half of it
// are removed: a daemon that cannot write to its logs may not start. A file system that
// somebody else mounted there is theirs to clean.
func (s site) mountLogs() error {
	dir, _, err := s.mount(logKind, logSize, LogDir(s.real, s.resource))
	if err != nil {
		return fmt.Errorf("make the folder of the MPS logs: %w", err)
	}
	if ours, err := logKind.Is(dir); err != nil || !ours {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("make the folder of the MPS logs: statfs %s: %w", dir, err)
	}
	if st.Bfree >= st.Blocks/2 {
		return nil
	}
	return empty(dir)
}

// mount mounts a file system on a folder where the host sees it, and returns the folder
// as this process sees it and whether it has mounted something. What is mounted there
// already stays: it is in use, and somebody may have wanted another size.
func (s site) mount(kind mount.Kind, size, hostPath string) (dir string, fresh bool, err error) {
	dir, err = mount.Resolve(s.seen(hostPath))
	if err != nil {
		return "", false, err
	}
	top, err := mount.Top(dir)
	if err != nil {
		return "", false, err
	}
	if !top.Shared && !s.isHost() {
		return "", false, fmt.Errorf("what is mounted at %s is not seen by the host and the containers that get %s from it; "+
			"mount the host's %s there with mountPropagation: Bidirectional, and see that it is a shared mount of the host (mount --make-rshared)",
			dir, hostPath, s.real)
	}
	if top.At == dir {
		return dir, false, nil
	}
	made, err := kind.New(size)
	if err != nil {
		return "", false, err
	}
	defer made.Close() //nolint:errcheck // it holds no data that could be lost
	return dir, true, made.MountOn(dir)
}

// empty removes everything in a folder, and follows no link.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// isHost says whether this process has the host's mounts itself. A container's first
// process is nobody's host.
func (s site) isHost() bool {
	if os.Getpid() == 1 {
		return false
	}
	hosts, err := os.Readlink(s.seen("/proc/1/ns/mnt"))
	own, ownErr := os.Readlink("/proc/self/ns/mnt")
	return err == nil && ownErr == nil && hosts == own
}

// find follows the links in the path of the daemons' folder as the host does: one that
// is absolute leads elsewhere in a container.
func (s *site) find() error {
	root, err := host.Open(s.hostRoot)
	if err != nil {
		return fmt.Errorf("find flags.mpsRoot: %w", err)
	}
	defer func() { _ = root.Close() }()
	if s.real, err = root.Resolve(s.mpsRoot); err != nil {
		return fmt.Errorf("find flags.mpsRoot %s: %w", s.mpsRoot, err)
	}
	return nil
}

// make makes a folder of the daemons.
func (s site) make(hostPath string) error {
	err := os.MkdirAll(s.seen(hostPath), 0o755)
	if errors.Is(err, unix.EROFS) && s.hostRoot != "/" && s.hostRoot != "" {
		return fmt.Errorf("make the daemon's folders: %w; mps.yaml mounts the host's %s alone so that it can be written: "+
			"for flags.mpsRoot %s let its volume mps be %s, mounted at %s with mountPropagation: Bidirectional",
			err, defaultRoot, s.mpsRoot, s.real, s.seen(s.real))
	}
	if err != nil {
		return fmt.Errorf("make the daemon's folders: %w", err)
	}
	return nil
}

// Unmount takes away what Run mounted below root, a host path, and returns where that
// was. Clients that run keep what they have.
func Unmount(hostRoot, root string) (removed []string, err error) {
	at := site{hostRoot: hostRoot, mpsRoot: root}
	if err := at.find(); err != nil {
		return nil, err
	}
	below := os.DirFS(at.seen(at.real))
	for _, m := range []struct {
		kind    mount.Kind
		pattern string
	}{{shmKind, "shm"}, {logKind, "*/log"}, {logKind, "*/*/log"}} { // a resource is a domain and a name
		found, err := fs.Glob(below, m.pattern)
		if err != nil {
			return removed, fmt.Errorf("unmount what MPS has mounted: %w", err)
		}
		for _, name := range found {
			gone, err := at.unmount(m.kind, path.Join(at.real, name))
			if err != nil {
				return removed, fmt.Errorf("unmount what MPS has mounted: %w", err)
			}
			if gone {
				removed = append(removed, path.Join(at.real, name))
			}
		}
	}
	return removed, nil
}

// unmount takes away what is mounted at a host path if it is of a kind.
func (s site) unmount(kind mount.Kind, hostPath string) (gone bool, err error) {
	dir, err := mount.Resolve(s.seen(hostPath))
	if err != nil {
		return false, err
	}
	there, err := kind.Is(dir)
	if err != nil || !there {
		return false, err
	}
	if top, err := mount.Top(path.Dir(dir)); err != nil || !top.Shared && !s.isHost() {
		return false, errors.Join(err, fmt.Errorf("%s would stay mounted on the host: mount the folder above %s with mountPropagation: Bidirectional", hostPath, dir))
	}
	return true, kind.Remove(dir)
}
