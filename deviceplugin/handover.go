package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A process replaces itself by another program, or by a new copy of itself, without its
// clients noticing. Listening sockets stay open across exec, so new connections wait instead
// of being refused. The process keeps its number, so its container keeps running. Other data
// is passed to the next program in memory.

// socketsVariable is the environment variable with the sockets' names and file descriptors for
// the new program: "a.sock=7,b.sock=8".
const socketsVariable = "GPUREADY_LISTEN_FDS"

// dataVariable is the environment variable with the file descriptor of the data for the
// new program.
const dataVariable = "GPUREADY_HANDOVER_FD"

// maxData bounds the size of that data.
const maxData = 8 << 20

// takeListeners returns the sockets that the previous program handed over, by their names. It
// unsets the environment variable, so that they are found only once. After an error none is open.
func takeListeners() (map[string]*net.UnixListener, error) {
	value, ok := os.LookupEnv(socketsVariable)
	if !ok {
		return nil, nil
	}
	if err := os.Unsetenv(socketsVariable); err != nil {
		return nil, err
	}
	all := map[string]*net.UnixListener{}
	var errs []error
	for item := range strings.SplitSeq(value, ",") {
		name, number, _ := strings.Cut(item, "=")
		fd, err := strconv.Atoi(number)
		if err != nil || fd < 3 || name == "" || all[name] != nil {
			errs = append(errs, fmt.Errorf("%s=%q: %q is not a name and a file descriptor; do not set it by hand", socketsVariable, value, item))
			continue
		}
		ln, err := newListener(fd)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s=%q: %s: %w", socketsVariable, value, name, err))
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

// newListener returns the listener on a file descriptor.
func newListener(fd int) (*net.UnixListener, error) {
	file := os.NewFile(uintptr(fd), "handed over")
	defer func() { _ = file.Close() }() // the listener has a copy of its own, closed on exec
	ln, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("not a listening socket: %w", err)
	}
	unixListener, ok := ln.(*net.UnixListener)
	if !ok {
		_ = ln.Close()
		return nil, fmt.Errorf("a %s socket, not a unix one", ln.Addr().Network())
	}
	unixListener.SetUnlinkOnClose(false)
	return unixListener, nil
}

// takeData returns the data that the previous program handed over, or nil if there is none. It
// unsets the environment variable.
func takeData() ([]byte, error) {
	value, ok := os.LookupEnv(dataVariable)
	if !ok {
		return nil, nil
	}
	if err := os.Unsetenv(dataVariable); err != nil {
		return nil, err
	}
	fd, err := strconv.Atoi(value)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s=%q: not a file descriptor; do not set it by hand", dataVariable, value)
	}
	f := os.NewFile(uintptr(fd), "handed over")
	defer func() { _ = f.Close() }()
	// Read from the start: the file offset is shared with the writer.
	data, err := io.ReadAll(io.NewSectionReader(f, 0, maxData))
	if err != nil {
		return nil, fmt.Errorf("%s=%q: %w; do not set it by hand", dataVariable, value, err)
	}
	return data, nil
}

// writeMemFile creates a file in memory with the data for the new program.
func writeMemFile(data []byte) (fd int, err error) {
	if len(data) > maxData {
		return 0, fmt.Errorf("it has %d bytes, but at most %d are read", len(data), maxData)
	}
	if fd, err = unix.MemfdCreate("handover", 0); err != nil {
		return 0, err
	}
	for at := 0; at < len(data); {
		n, err := unix.Write(fd, data[at:])
		if err != nil && !errors.Is(err, unix.EINTR) {
			return 0, errors.Join(err, unix.Close(fd))
		}
		at += max(n, 0)
	}
	return fd, nil
}

// execProgram replaces this process by the program at path, with the same arguments and
// environment. It hands over the sockets, each under a name without comma and equals
// sign, and the data if it is not nil. It returns only on failure. Everything else must
// have been closed. A SIGHUP that comes before the next program handles it is ignored.
func execProgram(path string, sockets map[string]*os.File, data []byte) error {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, socketsVariable+"=") || strings.HasPrefix(kv, dataVariable+"=")
	})
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
		env = append(env, socketsVariable+"="+strings.Join(items, ","))
	}
	if data != nil {
		fd, err := writeMemFile(data)
		if err != nil {
			return fmt.Errorf("hand over the data: %w", err)
		}
		env = append(env, dataVariable+"="+strconv.Itoa(fd))
	}
	if err := ignoreSignal(syscall.SIGHUP); err != nil {
		return err
	}
	return fmt.Errorf("execute %s again: %w", path, syscall.Exec(path, os.Args, env))
}

// ignoreSignal makes the kernel drop a signal from now on, also after exec.
// A handler does not survive exec, and a SIGHUP would end the next program before it
// has one. It bypasses Go's runtime, since signal.Ignore lets a signal kill the process
// if a thread is handling it at that moment.
func ignoreSignal(sig syscall.Signal) error {
	action := struct{ handler, flags, restorer, mask uintptr }{handler: 1} // SIG_IGN, as the kernel lays it out on 64 bits
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, unsafe.Sizeof(action.mask), 0, 0)
	if errno != 0 {
		return fmt.Errorf("ignore %v: %w", sig, errno)
	}
	return nil
}
