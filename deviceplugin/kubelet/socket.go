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

// Endpoint returns the name of a resource's socket beside the kubelet's, which is that
// of the reference: "nvidia-gpu.sock", "nvidia-mig-1g.10gb.sock". Two plugins that
// serve the same resource thus notice each other.
func Endpoint(resource string) string {
	return "nvidia-" + strings.TrimPrefix(resource, resourcePrefix) + ".sock"
}

// ResourceOf is the inverse of Endpoint; it returns "" for any other name.
func ResourceOf(endpoint string) string {
	name, is := strings.CutPrefix(endpoint, "nvidia-")
	name, also := strings.CutSuffix(name, ".sock")
	if !is || !also || name == "" {
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

// removed reports whether the host has removed a folder that this process still has
// mounted. A new folder at that path would never be visible here.
func removed(path string) bool {
	var st syscall.Stat_t
	return syscall.Stat(path, &st) == nil && st.Nlink == 0
}

// sameFile ignores the time: that of a directory changes with its content, that of a
// socket with its permissions.
func (i identity) sameFile(o identity) bool { return i.dev == o.dev && i.ino == o.ino }

// newSocket returns a temporary name for a socket before it is renamed. It is no longer
// than the final name, and differs from that of another plugin starting at the same
// moment.
func newSocket() string { return "." + rand.Text()[:8] }

// listen creates the plugin's own socket, replacing one that an earlier plugin left. It
// renames it into place: a plugin that still runs must find another's socket there,
// never none, which it would create again. ours identifies the created socket, since
// another plugin may have replaced it at path by then.
func listen(path string) (ln *net.UnixListener, ours identity, err error) {
	// A kubelet that starts removes every socket of its folder, also one that is not
	// renamed yet.
	for range listenAttempts {
		if ln, ours, err = listenOnce(path); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return ln, ours, err
}

func listenOnce(path string) (ln *net.UnixListener, ours identity, err error) {
	temp := filepath.Join(filepath.Dir(path), newSocket())
	ln, err = net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return nil, ours, fmt.Errorf("make the plugin's socket in %s: %w; the plugin must run as root with that folder mounted writable", filepath.Dir(path), err)
	}
	// It may be handed to the next program, and a restarted kubelet removes it as a signal
	// to register again.
	ln.SetUnlinkOnClose(false)
	if ours, err = identify(temp); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_, _ = ln.Close(), os.Remove(temp) // both may be gone with the folder
		return nil, ours, fmt.Errorf("make the plugin's socket: %w", err)
	}
	return ln, ours, nil
}
