package kubelet

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxSocketPath is the longest path that fits into sun_path of sockaddr_un with the
// final NUL (unix(7)).
const maxSocketPath = 107

// listenAttempts bounds the attempts to create a socket that is removed meanwhile.
const listenAttempts = 10

// CheckPath returns an error if a path is too long for a unix socket.
func CheckPath(path string) error {
	if len(path) > maxSocketPath {
		return fmt.Errorf("the path %s has %d bytes and a unix socket can have %d; give the kubelet's socket by a shorter path", path, len(path), maxSocketPath)
	}
	return nil
}

const resourcePrefix = "nvidia.com/"

// Endpoint returns the name of a resource's socket: "nvidia-gpu.sock",
// "nvidia-mig-1g.10gb.sock". NVIDIA's device plugin uses the same names, so two plugins for the
// same resource notice each other.
func Endpoint(resource string) string {
	return "nvidia-" + strings.TrimPrefix(resource, resourcePrefix) + ".sock"
}

// ResourceOf returns the resource of an endpoint, or "" for any other name.
func ResourceOf(endpoint string) string {
	name, hasPrefix := strings.CutPrefix(endpoint, "nvidia-")
	name, hasSuffix := strings.CutSuffix(name, ".sock")
	if !hasPrefix || !hasSuffix || name == "" {
		return ""
	}
	return resourcePrefix + name
}

// identity distinguishes a file from a later one at the same path. Inode numbers are
// reused, so it includes the time of the inode's change.
type identity struct {
	dev, ino   uint64
	sec, nanos int64
}

// identify returns the identity of the file at path, or the zero identity if there is
// none.
func identify(path string) (identity, error) {
	var st syscall.Stat_t
	err := syscall.Stat(path, &st)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return identity{}, nil
	}
	if err != nil {
		return identity{}, fmt.Errorf("stat %s: %w", path, err)
	}
	return identity{dev: st.Dev, ino: st.Ino, sec: st.Ctim.Sec, nanos: st.Ctim.Nsec}, nil
}

// isRemoved reports whether the host has removed a folder that this process still has
// mounted. A new folder at that path would never be visible here.
func isRemoved(path string) bool {
	var st syscall.Stat_t
	return syscall.Stat(path, &st) == nil && st.Nlink == 0
}

// isSameFile compares without the time: that of a directory changes with its content, that of
// a socket with its permissions.
func (i identity) isSameFile(o identity) bool { return i.dev == o.dev && i.ino == o.ino }

// tempSocketName returns a temporary name for a socket before it is renamed. It is no longer
// than the final name, and differs from that of another plugin starting at the same
// moment.
func tempSocketName() string { return "." + rand.Text()[:8] }

// listen creates the plugin's own socket, replacing one that an earlier plugin left. It renames
// the socket into place, so that the path is never empty: an earlier plugin that still runs
// would create its socket there again. id is that of the created socket; another plugin may have
// replaced the file at path since.
func listen(path string) (ln *net.UnixListener, id identity, err error) {
	// A kubelet that starts removes every socket of its folder, also one that is not
	// renamed yet.
	for range listenAttempts {
		if ln, id, err = listenOnce(path); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return ln, id, err
}

func listenOnce(path string) (ln *net.UnixListener, id identity, err error) {
	temp := filepath.Join(filepath.Dir(path), tempSocketName())
	ln, err = net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return nil, id, fmt.Errorf("make the plugin's socket in %s: %w; the plugin must run as root with that folder mounted writable", filepath.Dir(path), err)
	}
	// It may be handed to the next program, and a restarted kubelet removes it as a signal
	// to register again.
	ln.SetUnlinkOnClose(false)
	if id, err = identify(temp); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_, _ = ln.Close(), os.Remove(temp) // both may be gone with the folder
		return nil, id, fmt.Errorf("make the plugin's socket: %w", err)
	}
	return ln, id, nil
}
