package host

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// OpenPath follows name as Resolve does and returns a descriptor of its target, of any file
// type, that can neither read nor write (O_PATH).
//
// With perm, Hold creates missing folders. With check, it enters or creates nothing before
// check has accepted it: check gets descriptors of the root, of each folder and link on
// the way and of the result, in this order.
func (r *Root) OpenPath(name string, perm fs.FileMode, check func(fd int) error) (*os.File, error) {
	w := walk{todo: split(name), perm: perm, check: check}
	var held *os.File
	err := fs.ErrInvalid
	if !strings.ContainsRune(name, 0) {
		err = r.withRoot(func(fd int) error {
			defer w.close()
			w.top = fd
			if err := w.accept(fd); err != nil {
				return err
			}
			if err := w.run(true); err != nil {
				return err
			}
			if w.missing {
				return syscall.ENOENT
			}
			last, err := unix.FcntlInt(uintptr(w.at()), unix.F_DUPFD_CLOEXEC, 0)
			if err == nil {
				held = os.NewFile(uintptr(last), name)
			}
			return err
		})
	}
	return held, wrap("open", name, err)
}

// withRoot calls do with the descriptor of the root. The descriptor stays open, and so
// cannot become another file's, until do returns.
func (r *Root) withRoot(do func(fd int) error) error {
	conn, err := r.dot.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	if err := conn.Control(func(fd uintptr) { result = do(int(fd)) }); err != nil {
		return err
	}
	return result
}

// walk is the state of following a path.
type walk struct {
	top  int   // descriptor of the root; not ours to close
	dirs []int // one for each part of done that exists; ".." ends the last
	done []string
	todo []string

	missing bool // the last part of done is not there

	perm  fs.FileMode        // of folders to make where there is none; 0: none is made
	check func(fd int) error // nil: everything is accepted
}

// at returns the descriptor of the walk's current directory.
func (w *walk) at() int {
	if n := len(w.dirs); n > 0 {
		return w.dirs[n-1]
	}
	return w.top
}

func (w *walk) accept(fd int) error {
	if w.check == nil {
		return nil
	}
	return w.check(fd)
}

func (w *walk) close() {
	for _, fd := range w.dirs {
		_ = unix.Close(fd)
	}
}

// pop goes one part up, but never above the root.
func (w *walk) pop() {
	if n := len(w.done); n > 0 {
		_ = unix.Close(w.dirs[n-1])
		w.dirs, w.done = w.dirs[:n-1], w.done[:n-1]
	}
}

func (w *walk) run(follow bool) error {
	links := 0
	for steps := 1; len(w.todo) > 0; steps++ {
		part := w.todo[0]
		w.todo = w.todo[1:]
		switch {
		case steps > maxParts || len(w.done) >= maxDepth:
			return syscall.ENAMETOOLONG
		case part == ".." && w.missing: // like the kernel: a missing directory has no parent
			return fs.ErrNotExist
		case part == "..":
			w.pop()
			continue
		case w.missing || len(w.todo) == 0 && !follow:
			w.done = append(w.done, part)
			continue
		}
		target, err := w.enter(part)
		if err != nil {
			return err
		}
		if target == "" {
			continue
		}
		if links++; links > maxLinks {
			return syscall.ELOOP
		}
		if path.IsAbs(target) {
			for len(w.done) > 0 {
				w.pop()
			}
		}
		w.todo = append(split(target), w.todo...)
	}
	return nil
}

// enter enters a part, or returns the target if it is a link.
func (w *walk) enter(part string) (link string, err error) {
	fd, err := openat(w.at(), part, unix.O_PATH|unix.O_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) && w.perm != 0 {
		if err := unix.Mkdirat(w.at(), part, uint32(w.perm.Perm())); err != nil && !errors.Is(err, unix.EEXIST) {
			return "", err
		}
		fd, err = openat(w.at(), part, unix.O_PATH|unix.O_NOFOLLOW)
	}
	if errors.Is(err, unix.ENOENT) {
		w.missing, w.done = true, append(w.done, part)
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var st unix.Stat_t
	if err = w.accept(fd); err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFLNK {
		w.dirs, w.done = append(w.dirs, fd), append(w.done, part)
		return "", nil
	}
	defer unix.Close(fd) //nolint:errcheck // a link, only looked at
	if err != nil {
		return "", err
	}
	var text [unix.PathMax]byte
	n, err := unix.Readlinkat(fd, "", text[:])
	if err == nil && n == 0 {
		err = fs.ErrNotExist
	}
	return string(text[:max(n, 0)]), err
}

// openat opens a name without blocking, and retries when a signal interrupts it.
func openat(dir int, name string, flags int) (fd int, err error) {
	for {
		fd, err = unix.Openat(dir, name, flags|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}
