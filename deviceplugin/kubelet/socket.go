package kubelet

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// maxSocketPath is what fits into sun_path of sockaddr_un with the final NUL
// (unix(7)).
const maxSocketPath = 107

// listenTries is how often to try to make a socket that is removed meanwhile.
const listenTries = 10

// CheckPath says whether a path is short enough for a unix socket.
func CheckPath(path string) error {
	if len(path) > maxSocketPath {
		return fmt.Errorf("the path %s has %d bytes and a unix socket can have %d; give the kubelet's socket by a shorter path", path, len(path), maxSocketPath)
	}
	return nil
}

// identity tells one file from another that was made later at the same path:
// inode numbers are used again, so the time of the inode's change is in it.
type identity struct {
	dev, ino   uint64
	sec, nanos int64
}

// identify returns the identity of what is at path; the zero one if nothing is.
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

// removed says that a folder is seen only by who has it mounted: the host has
// removed it, and may have made another that will never be seen here.
func removed(path string) bool {
	var st syscall.Stat_t
	return syscall.Stat(path, &st) == nil && st.Nlink == 0
}

// sameFile leaves the time out: that of a directory changes with its content,
// that of a socket with its permissions.
func (i identity) sameFile(o identity) bool { return i.dev == o.dev && i.ino == o.ino }

// newSocket returns the name of a socket before it is the plugin's: no longer than
// that one's, and another plugin's that starts at the same moment is another.
func newSocket() string { return "." + rand.Text()[:8] }

// listen makes the plugin's own socket, in the place of one that an earlier
// plugin left: by rename, for one that still runs must see another's socket there
// and not for a moment none, which it would make again. ours is the socket's, for
// by the time that it is at path another plugin may have put its own there.
func listen(path string) (ln *net.UnixListener, ours identity, err error) {
	// A kubelet that starts removes every socket of its folder, also one that has
	// not got its name yet.
	for range listenTries {
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
	// It may be handed to the next program, and the kubelet may remove it to
	// say that it has been started anew.
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
