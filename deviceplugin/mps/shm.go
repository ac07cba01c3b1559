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

// File systems that clients can fill are separate and bounded, since otherwise they
// would fill the host's /run. Attributes are NVIDIA's
// (cmd/mps-control-daemon/mount).
const attributes = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC

var (
	// shmKind is the file system in which daemon, servers and containers share memory.
	// Clients run as any user, as in every /dev/shm.
	shmKind = mount.Kind{Source: "gpuready-mps", Mode: "1777", Attributes: attributes, Inodes: "16k"}
	// logKind is the file system of a daemon's logs. Clients have no access, but the daemon
	// writes a line for each connection that a client makes.
	logKind = mount.Kind{Source: "gpuready-mps-log", Mode: "755", Attributes: attributes, Inodes: "64"}
)

const (
	shmSize = "64m" // the reference's
	logSize = "16m" // some 100,000 connections
)

// shm mounts the shared memory once, for whichever control daemon starts first.
type shm struct{ mu sync.Mutex }

// mountOnce mounts the shared memory. An existing mount there is made writable for all
// users.
func (s *shm) mountOnce(at site) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir, fresh, err := at.mountOnce(shmKind, shmSize, ShmDir(at.real))
	if err == nil && !fresh {
		err = os.Chmod(dir, 0o777|os.ModeSticky)
	}
	if err != nil {
		return fmt.Errorf("make the shared memory of MPS: %w", err)
	}
	if !fresh {
		return nil
	}
	return labelForContainers(dir)
}

// mountLogs mounts the folder of the daemon's logs. If logs fill more than half of it,
// it removes them: a daemon that cannot write to its logs may not start. It does not
// clean a file system that another program mounted there.
func (s site) mountLogs() error {
	dir, _, err := s.mountOnce(logKind, logSize, LogDir(s.real, s.resource))
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
	return removeContents(dir)
}

// mountOnce mounts a file system on a folder where the host sees it. It returns the folder
// as this process sees it, and whether it mounted anything. An existing mount stays: it
// is in use, and its size may have been chosen.
func (s site) mountOnce(kind mount.Kind, size, hostPath string) (dir string, fresh bool, err error) {
	dir, err = mount.Resolve(s.local(hostPath))
	if err != nil {
		return "", false, err
	}
	top, err := mount.Top(dir)
	if err != nil {
		return "", false, err
	}
	if !top.Shared && !s.isHost() {
		return "", false, fmt.Errorf("mounts at %s are not visible to the host and to the containers that get %s from it; "+
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

// removeContents removes everything in a folder without following links.
func removeContents(dir string) error {
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

// isHost reports whether this process itself has the host's mounts. A container's first
// process is never the host's.
func (s site) isHost() bool {
	if os.Getpid() == 1 {
		return false
	}
	hosts, err := os.Readlink(s.local("/proc/1/ns/mnt"))
	own, ownErr := os.Readlink("/proc/self/ns/mnt")
	return err == nil && ownErr == nil && hosts == own
}

// resolveRoot follows the links in the path of the daemons' folder as the host does: an
// absolute link leads elsewhere in a container.
func (s *site) resolveRoot() error {
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

// mkdir creates a folder of the daemons.
func (s site) mkdir(hostPath string) error {
	err := os.MkdirAll(s.local(hostPath), 0o755)
	if errors.Is(err, unix.EROFS) && s.hostRoot != "/" && s.hostRoot != "" {
		return fmt.Errorf("make the daemon's folders: %w; mps.yaml mounts the host's %s alone so that it can be written: "+
			"for flags.mpsRoot %s set its volume mps to %s, mounted at %s with mountPropagation: Bidirectional",
			err, defaultRoot, s.mpsRoot, s.real, s.local(s.real))
	}
	if err != nil {
		return fmt.Errorf("make the daemon's folders: %w", err)
	}
	return nil
}

// Unmount removes the mounts that Run made below root, a host path, and returns their
// paths. Running clients keep theirs.
func Unmount(hostRoot, root string) (removed []string, err error) {
	at := site{hostRoot: hostRoot, mpsRoot: root}
	if err := at.resolveRoot(); err != nil {
		return nil, err
	}
	below := os.DirFS(at.local(at.real))
	for _, m := range []struct {
		kind    mount.Kind
		pattern string
	}{{shmKind, "shm"}, {logKind, "*/log"}, {logKind, "*/*/log"}} { // a resource is a domain and a name
		found, err := fs.Glob(below, m.pattern)
		if err != nil {
			return removed, fmt.Errorf("unmount what MPS has mounted: %w", err)
		}
		for _, name := range found {
			unmounted, err := at.unmount(m.kind, path.Join(at.real, name))
			if err != nil {
				return removed, fmt.Errorf("unmount what MPS has mounted: %w", err)
			}
			if unmounted {
				removed = append(removed, path.Join(at.real, name))
			}
		}
	}
	return removed, nil
}

// unmount removes the mount at a host path if it is of that kind.
func (s site) unmount(kind mount.Kind, hostPath string) (unmounted bool, err error) {
	dir, err := mount.Resolve(s.local(hostPath))
	if err != nil {
		return false, err
	}
	isMounted, err := kind.Is(dir)
	if err != nil || !isMounted {
		return false, err
	}
	if top, err := mount.Top(path.Dir(dir)); err != nil || !top.Shared && !s.isHost() {
		return false, errors.Join(err, fmt.Errorf("%s would stay mounted on the host: mount the folder above %s with mountPropagation: Bidirectional", hostPath, dir))
	}
	return true, kind.Remove(dir)
}
