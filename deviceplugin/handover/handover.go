// Package handover lets a process put another program, or a new copy of itself,
// in its own place without its clients noticing: listening sockets stay open
// across exec, so a connection that is made meanwhile waits instead of being
// refused, and the process keeps its number, so its container goes on.
package handover

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// variable has the sockets' names and file descriptors in the environment of the
// new program: "a.sock=7,b.sock=8".
const variable = "GPUREADY_LISTEN_FDS"

// Listeners returns the sockets that the program before left, by the names that
// it gave them. It takes them out of the environment, so that they are found
// once. After an error none is open.
func Listeners() (map[string]*net.UnixListener, error) {
	value, ok := os.LookupEnv(variable)
	if !ok {
		return nil, nil
	}
	if err := os.Unsetenv(variable); err != nil {
		return nil, err
	}
	all := map[string]*net.UnixListener{}
	var errs []error
	for item := range strings.SplitSeq(value, ",") {
		name, number, _ := strings.Cut(item, "=")
		fd, err := strconv.Atoi(number)
		if err != nil || fd < 3 || name == "" || all[name] != nil {
			errs = append(errs, fmt.Errorf("%s=%q: %q is no name and file descriptor; do not set it by hand", variable, value, item))
			continue
		}
		ln, err := listener(fd)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s=%q: %s: %w", variable, value, name, err))
			continue
		}
		all[name] = ln
	}
	if len(errs) > 0 {
		for _, ln := range all {
			errs = append(errs, ln.Close())
		}
		return nil, errors.Join(errs...)
	}
	return all, nil
}

func listener(fd int) (*net.UnixListener, error) {
	file := os.NewFile(uintptr(fd), "handed over")
	defer func() { _ = file.Close() }() // the listener has a copy of its own, closed on exec
	ln, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("no listening socket: %w", err)
	}
	unixListener, ok := ln.(*net.UnixListener)
	if !ok {
		_ = ln.Close()
		return nil, fmt.Errorf("a %s socket, not a unix one", ln.Addr().Network())
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
// and environment, and hands it the sockets, each under a name without comma and
// equals sign. It returns only if that fails. Everything else must have been
// closed.
func Exec(path string, sockets map[string]*os.File) error {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, variable+"=") })
	var items []string
	for _, name := range slices.Sorted(maps.Keys(sockets)) {
		// A copy that is not closed on exec, made as late as possible.
		fd, err := unix.FcntlInt(sockets[name].Fd(), unix.F_DUPFD, 3)
		if err != nil {
			return fmt.Errorf("hand over the socket %s: %w", name, err)
		}
		items = append(items, name+"="+strconv.Itoa(fd))
	}
	if len(items) > 0 {
		env = append(env, variable+"="+strings.Join(items, ","))
	}
	err := syscall.Exec(path, os.Args, env)
	return fmt.Errorf("execute %s again: %w", path, err)
}
