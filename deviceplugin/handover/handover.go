// Package handover lets a process put another program, or a new copy of itself,
// in its own place without its clients noticing: the listening socket stays open
// across exec, so a connection that is made meanwhile waits instead of being
// refused, and the process keeps its number, so its container goes on.
package handover

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// variable names the file descriptor in the environment of the new program.
const variable = "GPUREADY_LISTEN_FD"

// Listener returns the socket that the program before left, nil if there is
// none. It takes it out of the environment, so that it is found once.
func Listener() (*net.UnixListener, error) {
	value, ok := os.LookupEnv(variable)
	if !ok {
		return nil, nil
	}
	if err := os.Unsetenv(variable); err != nil {
		return nil, err
	}
	fd, err := strconv.Atoi(value)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s=%q is no file descriptor; do not set it by hand", variable, value)
	}
	file := os.NewFile(uintptr(fd), "handed over")
	defer func() { _ = file.Close() }() // the listener has a copy of its own, closed on exec
	ln, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("%s=%s is no listening socket: %w", variable, value, err)
	}
	unixListener, ok := ln.(*net.UnixListener)
	if !ok {
		_ = ln.Close()
		return nil, fmt.Errorf("%s=%s is a %s socket, not a unix one", variable, value, ln.Addr().Network())
	}
	unixListener.SetUnlinkOnClose(false)
	return unixListener, nil
}

// Keep returns the socket of ln as a file that Exec can pass on, also after ln
// has been closed.
func Keep(ln *net.UnixListener) (*os.File, error) {
	file, err := ln.File()
	if err != nil {
		return nil, fmt.Errorf("keep %s open: %w", ln.Addr(), err)
	}
	return file, nil
}

// Exec replaces this process by the program at path, with the same arguments
// and environment, and hands it the socket (nil: none). It returns only if that
// fails. Everything else must have been closed.
func Exec(path string, socket *os.File) error {
	env := os.Environ()
	for i := 0; i < len(env); i++ {
		if strings.HasPrefix(env[i], variable+"=") {
			env = append(env[:i], env[i+1:]...)
			i--
		}
	}
	if socket != nil {
		// A copy that is not closed on exec, made as late as possible.
		fd, err := unix.FcntlInt(socket.Fd(), unix.F_DUPFD, 3)
		if err != nil {
			return fmt.Errorf("hand over the socket: %w", err)
		}
		env = append(env, variable+"="+strconv.Itoa(fd))
	}
	err := syscall.Exec(path, os.Args, env)
	return fmt.Errorf("execute %s again: %w", path, err)
}
