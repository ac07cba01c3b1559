package mps

import (
	"errors"
	"fmt"
	"os"
	"path"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/host/mount"
)

// shmKind is the file system in which daemon, servers and containers share memory.
// It has a bound of its own: a folder in the host's /run could be filled by any client,
// and /run with it. Attributes are the reference's (cmd/mps-control-daemon/mount).
var shmKind = mount.Kind{
	Source:     "gpuready-mps",
	Mode:       "1777", // clients are users of all kinds, as in every /dev/shm
	Attributes: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC,
	Inodes:     "16k",
}

// shmSize is the reference's.
const shmSize = "64m"

// shm has it mounted once, whichever control daemon is started first.
type shm struct{ mu sync.Mutex }

// mount mounts it where the host sees it. What is mounted there already stays: clients
// have it open, and somebody may have wanted another size.
func (s *shm) mount(at site) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir, err := mount.Resolve(at.seen(ShmDir(at.real)))
	if err != nil {
		return fmt.Errorf("make the shared memory of MPS: %w", err)
	}
	top, err := mount.Top(dir)
	if err != nil {
		return fmt.Errorf("make the shared memory of MPS: %w", err)
	}
	if !top.Shared && !at.isHost() {
		return fmt.Errorf("make the shared memory of MPS: what is mounted at %s is not seen by the host and the containers that get %s from it; "+
			"mount the host's %s there with mountPropagation: Bidirectional, and see that it is a shared mount of the host (mount --make-rshared)",
			dir, ShmDir(at.mpsRoot), at.real)
	}
	if top.At == dir {
		if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
			return fmt.Errorf("make the shared memory of MPS: %w", err)
		}
		return nil
	}
	fs, err := shmKind.New(shmSize)
	if err != nil {
		return fmt.Errorf("make the shared memory of MPS: %w", err)
	}
	defer fs.Close() //nolint:errcheck // it holds no data that could be lost
	if err := fs.MountOn(dir); err != nil {
		return fmt.Errorf("make the shared memory of MPS: %w", err)
	}
	return relabel(dir)
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
// was; "": there was nothing. Clients that run keep what they have.
func Unmount(hostRoot, root string) (string, error) {
	at := site{hostRoot: hostRoot, mpsRoot: root}
	if err := at.find(); err != nil {
		return "", err
	}
	dir, err := mount.Resolve(at.seen(ShmDir(at.real)))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("unmount the shared memory of MPS: %w", err)
	}
	there, err := shmKind.Is(dir)
	if err != nil || !there {
		return "", err
	}
	if top, err := mount.Top(path.Dir(dir)); err != nil || !top.Shared && !at.isHost() {
		return "", errors.Join(err, fmt.Errorf("unmount the shared memory of MPS: it would stay mounted on the host: mount the folder above %s with mountPropagation: Bidirectional", dir))
	}
	return ShmDir(at.real), shmKind.Remove(dir)
}
