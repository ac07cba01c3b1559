package serve

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// socketName is GPUSIM_SOCKET of state.h.
const socketName = "gpusim.sock"

// serveState gives the driver's state, open for writing, to whoever connects to the socket in the
// driver root, until the returned function is called: containers have the driver root read-only,
// and a process with the capability mig/config changes the MIG layout all the same. libnvidia-ml asks
// only if it has that capability.
func (d *driver) serveState() (end func() error, err error) {
	path := filepath.Join(d.Root, socketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	state, err := d.at(d.Root).StatePath()
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := ln.AcceptUnix()
			if err != nil {
				return // it is closed
			}
			if err := sendFile(c, state); err != nil {
				d.Log.Warn("a client did not get the driver's state", "err", oneLine(err))
			}
		}
	})
	return func() error {
		err := ln.Close()
		running.Wait()
		return err
	}, nil
}

// sendFile sends an open file, and closes the connection.
func sendFile(c *net.UnixConn, path string) error {
	defer c.Close() //nolint:errcheck // what the client has got it keeps
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was not written here
	if err := c.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	_, _, err = c.WriteMsgUnix([]byte{0}, unix.UnixRights(int(f.Fd())), nil)
	return err
}
