// Package handover lets a process put another program, or a new copy of itself,
// in its own place without its clients noticing: listening sockets stay open
// across exec, so a connection that is made meanwhile waits instead of being
// refused, and the process keeps its number, so its container goes on. What the
// next program cannot find out by itself is left to it in memory.
package handover

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

// variable has the sockets' names and file descriptors in the environment of the
// new program: "a.sock=7,b.sock=8".
const variable = "GPUREADY_LISTEN_FDS"

// wordVariable has the file descriptor of what else is left to the new program.
const wordVariable = "GPUREADY_HANDOVER_FD"

// maxWord bounds that.
const maxWord = 8 << 20

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

// Word returns what the program before left besides its sockets, nil where that is
// nothing. As Listeners does, it takes it out of the environment.
func Word() ([]byte, error) {
	value, ok := os.LookupEnv(wordVariable)
	if !ok {
		return nil, nil
	}
	if err := os.Unsetenv(wordVariable); err != nil {
		return nil, err
	}
	fd, err := strconv.Atoi(value)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s=%q: no file descriptor; do not set it by hand", wordVariable, value)
	}
	f := os.NewFile(uintptr(fd), "handed over")
	defer func() { _ = f.Close() }()
	// Not from where the writer is in the file, which both share.
	word, err := io.ReadAll(io.NewSectionReader(f, 0, maxWord))
	if err != nil {
		return nil, fmt.Errorf("%s=%q: %w; do not set it by hand", wordVariable, value, err)
	}
	return word, nil
}

// leave makes a file in memory of what is left to the new program.
func leave(word []byte) (fd int, err error) {
	if len(word) > maxWord {
		return 0, fmt.Errorf("it has %d bytes, and no more than %d are read", len(word), maxWord)
	}
	if fd, err = unix.MemfdCreate("handover", 0); err != nil {
		return 0, err
	}
	for at := 0; at < len(word); {
		n, err := unix.Write(fd, word[at:])
		if err != nil && !errors.Is(err, unix.EINTR) {
			return 0, errors.Join(err, unix.Close(fd))
		}
		at += max(n, 0)
	}
	return fd, nil
}

// Exec replaces this process by the program at path, with the same arguments
// and environment, and hands it the sockets, each under a name without comma and
// equals sign, and a word, where that is not nil. It returns only if that fails.
// Everything else must have been closed. A SIGHUP that comes before the next
// program asks for them is ignored.
func Exec(path string, sockets map[string]*os.File, word []byte) error {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, variable+"=") || strings.HasPrefix(kv, wordVariable+"=")
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
		env = append(env, variable+"="+strings.Join(items, ","))
	}
	if word != nil {
		fd, err := leave(word)
		if err != nil {
			return fmt.Errorf("hand over what is in force: %w", err)
		}
		env = append(env, wordVariable+"="+strconv.Itoa(fd))
	}
	if err := ignore(syscall.SIGHUP); err != nil {
		return err
	}
	return fmt.Errorf("execute %s again: %w", path, syscall.Exec(path, os.Args, env))
}

// ignore has the kernel drop a signal from now on, which exec leaves so: a handler
// does not outlive it, and a SIGHUP would end the next program before that has one.
// Go's runtime is not told, for signal.Ignore lets a signal kill that a thread is
// handling at that moment.
func ignore(sig syscall.Signal) error {
	action := struct{ handler, flags, restorer, mask uintptr }{handler: 1} // SIG_IGN, as the kernel lays it out on 64 bits
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, unsafe.Sizeof(action.mask), 0, 0)
	if errno != 0 {
		return fmt.Errorf("ignore %v: %w", sig, errno)
	}
	return nil
}
