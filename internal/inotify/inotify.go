//go:build linux

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

// events is the mask of events requested from the kernel.
const events = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF

// wholeEvents are requested in addition for whole files. IN_ATTRIB: a change of mode
// may have made a file readable.
const wholeEvents = unix.IN_CLOSE_WRITE | unix.IN_ATTRIB

// maxQueued is the length of a Watcher's queue. An event beyond it becomes Missed.
const maxQueued = 4096

// Watcher watches directories. Its methods may be called concurrently.
type Watcher struct {
	shared *instance
	whole  bool

	mu     sync.Mutex
	dirs   map[string]int32 // watch descriptors by directory, or unwatched; guarded by shared.mu
	queue  []Event
	missed bool
	failed error
	ready  chan struct{} // capacity 1: Next has something to return
}

// New makes a Watcher that watches nothing yet.
func New() (*Watcher, error) { return newWatcher(false) }

// NewWhole makes a Watcher for files that are written in place: it reports a file that is
// being written only when its writer closes it.
func NewWhole() (*Watcher, error) { return newWatcher(true) }

func newWatcher(whole bool) (*Watcher, error) {
	w := &Watcher{whole: whole, dirs: map[string]int32{}, ready: make(chan struct{}, 1)}
	var err error
	w.shared, err = join(w)
	return w, err
}

// Add watches a directory. Adding it again is fine, and a directory with several
// paths may be added by each of them. The error wraps fs.ErrNotExist if the
// directory does not exist.
func (w *Watcher) Add(dir string) error {
	s := w.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.users[w] {
		return ErrClosed
	}
	wd, err := w.watch(dir)
	if Exhausted(err) {
		// Whether the directory exists is still unknown.
		if err := checkDir(dir); err != nil {
			return err
		}
		s.startPolling(err)
		wd, err = unwatched, nil
	}
	if err != nil {
		return err
	}
	if was, there := w.dirs[dir]; there && was != wd {
		s.drop(w, dir, was) // another directory has that name now
	}
	s.register(w, dir, wd)
	return nil
}

// watch asks the kernel for a watch on a directory. shared.mu is held.
func (w *Watcher) watch(dir string) (int32, error) {
	if w.shared.file == nil {
		return 0, w.shared.why
	}
	// The kernel returns the descriptor that it already has for this directory, if any.
	// Without IN_MASK_ADD it would clear that watch's mask before setting it again, and
	// all Watchers of the directory would lose the events in between.
	mask := uint32(events | unix.IN_ONLYDIR | unix.IN_MASK_ADD)
	if w.whole {
		mask |= wholeEvents
	}
	n, err := unix.InotifyAddWatch(w.shared.fd, dir, mask)
	if err != nil {
		return 0, explain(&fs.PathError{Op: "watch", Path: dir, Err: err})
	}
	return int32(n), nil
}

// checkDir returns an error, in the form of Add's, if dir is not a directory.
func checkDir(dir string) error {
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

// Has reports whether a directory is watched: it was added, and is not Gone.
func (w *Watcher) Has(dir string) bool {
	w.shared.mu.Lock()
	defer w.shared.mu.Unlock()
	_, there := w.dirs[dir]
	return there
}

// Remove stops watching a directory. Its events may still be in the queue.
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
		case w.missed: // replaces the queue: a caller that reads everything again sees those changes too
			w.missed, w.queue = false, nil
			w.mu.Unlock()
			return Event{Kind: Missed}, nil
		case len(w.queue) > 0:
			e := w.queue[0]
			w.queue = w.queue[1:]
			w.mu.Unlock()
			return e, nil
		case w.failed != nil:
			err := w.failed
			w.mu.Unlock()
			return Event{}, err
		}
		w.mu.Unlock()
		select {
		case <-w.ready:
		case <-ctx.Done():
		}
	}
}

// Close ends the Watcher. Calling it twice is fine.
func (w *Watcher) Close() error {
	w.fail(ErrClosed)
	leave(w)
	return nil
}

// wants reports whether this Watcher reports an event of the kernel.
func (w *Watcher) wants(mask uint32, dir, name string) bool {
	switch {
	case !w.whole:
		return mask&wholeEvents == 0 // IN_MODIFY has already reported the write
	case name == "":
		return false // the mode of the directory
	case mask&unix.IN_MODIFY != 0:
		return false
	case mask&unix.IN_CREATE != 0:
		return !beingWritten(filepath.Join(dir, name))
	}
	return true
}

// beingWritten reports whether a writer has the new file open and will close it later.
// A file that was complete before it got this name, by link(2), gets no such event and
// must be reported now.
func beingWritten(path string) bool {
	var st unix.Stat_t
	// Open only regular files: somebody may wait at a FIFO for a reader.
	if err := unix.Lstat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return false
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false // report it: the reader will get the error
	}
	defer func() { _ = unix.Close(fd) }()
	writing, known := OpenForWriting(uintptr(fd))
	if !known {
		return st.Size == 0
	}
	return writing
}

// OpenForWriting reports whether somebody has the file fd, which is open for reading, open for
// writing. If not, nobody can open it for writing until fd is closed. known is false if
// the file system has no leases (fcntl(2), F_SETLEASE), or for another user's file
// without CAP_LEASE.
func OpenForWriting(fd uintptr) (writing, known bool) {
	_, err := unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_RDLCK)
	return errors.Is(err, unix.EAGAIN), err == nil || errors.Is(err, unix.EAGAIN)
}

func (w *Watcher) enqueue(e Event) {
	w.mu.Lock()
	if e.Kind == Missed || len(w.queue) == maxQueued {
		w.missed = true
	} else {
		w.queue = append(w.queue, e)
	}
	w.mu.Unlock()
	w.signal()
}

func (w *Watcher) fail(err error) {
	w.mu.Lock()
	if w.failed == nil {
		w.failed = err
	}
	w.mu.Unlock()
	w.signal()
}

// signal makes a waiting Next check its state.
func (w *Watcher) signal() {
	select {
	case w.ready <- struct{}{}:
	default: // already signaled
	}
}

// Exhausted reports whether err means that a shared resource is used up: file
// descriptors, inotify instances or watches, room on a disk, or memory. It may become
// available again at any time.
func Exhausted(err error) bool {
	for _, errno := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOSPC, unix.EDQUOT, unix.ENOMEM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// explain adds the remedy to errors from limits of the kernel.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EMFILE):
		return fmt.Errorf("inotify: %w; raise fs.inotify.max_user_instances, or see what holds so many files open", err)
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("inotify: %w; raise fs.inotify.max_user_watches", err)
	}
	return err
}
