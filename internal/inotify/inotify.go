// Package inotify tells what happens in directories, with one inotify instance
// for the whole process: Linux gives a user 128 of them by default, to be shared by
// everything that runs as root on a node, and a process that watched each of its
// subjects with an instance of its own would take a good part of them.
//
// Where the kernel gives no instance, no watch or no file descriptor, since others have
// them all, a Watcher goes on by the clock: every few seconds it tells that changes may
// have been Missed, and tries again. Its owner needs to know nothing of that.
package inotify

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// What happened.
type What int

// The kinds of Event.
const (
	Changed What = iota + 1 // an entry of the directory was made, written to, renamed or removed
	Gone                    // the directory itself was removed, renamed or unmounted: it is watched no more
	Missed                  // there was too much to tell: anything may have changed
)

// Event is one thing that happened in a directory.
type Event struct {
	What What
	Dir  string // as given to Add; "" with Missed
	Name string // of the entry; "" unless Changed
}

// ErrClosed is returned by Next after Close.
var ErrClosed = errors.New("inotify: closed")

// events are those that are asked of the kernel.
const events = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF

// ofWhole are asked for besides by who wants files to be whole. IN_ATTRIB: one that was
// not to be read may be now, since its mode was changed.
const ofWhole = unix.IN_CLOSE_WRITE | unix.IN_ATTRIB

// most is how many events wait for one Watcher. What comes then is Missed.
const most = 4096

// Watcher watches directories. Its methods may be called concurrently.
type Watcher struct {
	shared *instance
	whole  bool

	mu      sync.Mutex
	dirs    map[string]int32 // watch descriptors by directory, or unwatched; guarded by shared.mu
	waiting []Event
	missed  bool
	failed  error
	some    chan struct{}
}

// New makes a Watcher that watches nothing yet.
func New() (*Watcher, error) { return newWatcher(false) }

// Whole makes a Watcher for files that are written in place: of one that is being
// written it tells when its writer closes it, and not before.
func Whole() (*Watcher, error) { return newWatcher(true) }

func newWatcher(whole bool) (*Watcher, error) {
	w := &Watcher{whole: whole, dirs: map[string]int32{}, some: make(chan struct{}, 1)}
	var err error
	w.shared, err = join(w)
	return w, err
}

// Add watches a directory; one that is watched already stays so. A directory
// that is reached by several paths may be added by each of them. The error
// wraps fs.ErrNotExist where there is none.
func (w *Watcher) Add(dir string) error {
	s := w.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.users[w] {
		return ErrClosed
	}
	wd, err := w.watch(dir)
	if Exhausted(err) {
		// Whether the directory is there is still to be found out.
		if err := isDir(dir); err != nil {
			return err
		}
		s.lack(err)
		wd, err = unwatched, nil
	}
	if err != nil {
		return err
	}
	if was, there := w.dirs[dir]; there && was != wd {
		s.drop(w, dir, was) // another directory has that name now
	}
	s.note(w, dir, wd)
	return nil
}

// watch asks the kernel for a watch on a directory. shared.mu is held.
func (w *Watcher) watch(dir string) (int32, error) {
	if w.shared.file == nil {
		return 0, w.shared.why
	}
	// The kernel answers with the descriptor that it has for this directory.
	// IN_MASK_ADD, since it otherwise clears the mask of one that is watched already before it
	// sets it again, and what happens in between is lost for all who watch it.
	mask := uint32(events | unix.IN_ONLYDIR | unix.IN_MASK_ADD)
	if w.whole {
		mask |= ofWhole
	}
	n, err := unix.InotifyAddWatch(w.shared.fd, dir, mask)
	if err != nil {
		return 0, explain(&fs.PathError{Op: "watch", Path: dir, Err: err})
	}
	return int32(n), nil
}

// isDir returns an error as Add does where dir is no directory.
func isDir(dir string) error {
	var st unix.Stat_t
	err := unix.Stat(dir, &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		err = unix.ENOTDIR
	}
	if err != nil {
		return &fs.PathError{Op: "watch", Path: dir, Err: err}
	}
	return nil
}

// Has says whether a directory is watched: it was added, and is not Gone.
func (w *Watcher) Has(dir string) bool {
	w.shared.mu.Lock()
	defer w.shared.mu.Unlock()
	_, there := w.dirs[dir]
	return there
}

// Remove watches a directory no more. Events of it may still be waiting.
func (w *Watcher) Remove(dir string) {
	s := w.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	if wd, there := w.dirs[dir]; there {
		s.drop(w, dir, wd)
	}
}

// Next waits for an event, until ctx ends or the Watcher is closed.
func (w *Watcher) Next(ctx context.Context) (Event, error) {
	for {
		if err := ctx.Err(); err != nil {
			return Event{}, err
		}
		w.mu.Lock()
		switch {
		case w.missed: // before what came before it: whoever looks anew sees that too
			w.missed, w.waiting = false, nil
			w.mu.Unlock()
			return Event{What: Missed}, nil
		case len(w.waiting) > 0:
			e := w.waiting[0]
			w.waiting = w.waiting[1:]
			w.mu.Unlock()
			return e, nil
		case w.failed != nil:
			err := w.failed
			w.mu.Unlock()
			return Event{}, err
		}
		w.mu.Unlock()
		select {
		case <-w.some:
		case <-ctx.Done():
		}
	}
}

// Close ends the Watcher. Calling it twice is fine.
func (w *Watcher) Close() error {
	w.fail(ErrClosed)
	return leave(w)
}

// wants says whether an event of the kernel's is one for this Watcher.
func (w *Watcher) wants(mask uint32, dir, name string) bool {
	switch {
	case !w.whole:
		return mask&ofWhole == 0 // what was written was told already
	case name == "":
		return false // the mode of the directory
	case mask&unix.IN_MODIFY != 0:
		return false
	case mask&unix.IN_CREATE != 0:
		return !beingMade(filepath.Join(dir, name))
	}
	return true
}

// beingMade says that somebody who writes the file will close it yet: one that was
// whole before it got this name (by link(2), as a name for what had none before) is
// told now or never.
func beingMade(path string) bool {
	var st unix.Stat_t
	// Only a file is opened: somebody may wait at a FIFO for a reader.
	if err := unix.Lstat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return false
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false // whoever looks will see
	}
	defer func() { _ = unix.Close(fd) }()
	writing, known := Writing(uintptr(fd))
	if !known {
		return st.Size == 0
	}
	return writing
}

// Writing says whether somebody has the file that is open for reading as fd open for
// writing. Until fd is closed nobody else can then begin to. It is not known where
// the file system gives no leases (fcntl(2), F_SETLEASE), nor of a file of another
// user's without CAP_LEASE.
func Writing(fd uintptr) (writing, known bool) {
	_, err := unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_RDLCK)
	return errors.Is(err, unix.EAGAIN), err == nil || errors.Is(err, unix.EAGAIN)
}

func (w *Watcher) put(e Event) {
	w.mu.Lock()
	if e.What == Missed || len(w.waiting) == most {
		w.missed = true
	} else {
		w.waiting = append(w.waiting, e)
	}
	w.mu.Unlock()
	w.wake()
}

func (w *Watcher) fail(err error) {
	w.mu.Lock()
	if w.failed == nil {
		w.failed = err
	}
	w.mu.Unlock()
	w.wake()
}

func (w *Watcher) wake() {
	select {
	case w.some <- struct{}{}:
	default: // it is awake
	}
}

// Exhausted reports whether err means that somebody has used up something that everybody
// needs: file descriptors, inotify instances or watches, room on a disk, or memory. It
// may be there again at any time.
func Exhausted(err error) bool {
	for _, errno := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOSPC, unix.EDQUOT, unix.ENOMEM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// explain says what to do about limits of the kernel.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EMFILE):
		return fmt.Errorf("inotify: %w; raise fs.inotify.max_user_instances, or see what holds so many files open", err)
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("inotify: %w; raise fs.inotify.max_user_watches", err)
	}
	return err
}
