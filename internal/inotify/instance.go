//go:build linux

package inotify

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// instance is an inotify instance of the kernel with the Watchers that share it.
type instance struct {
	running sync.WaitGroup // read and poll
	end     chan struct{}  // closed with the instance

	mu     sync.Mutex
	fd     int
	file   *os.File // wraps fd; nil: the kernel has given none yet
	why    error    // why it polls; nil: it does not
	closed bool     // closed or failed: accepts no more directories
	users  map[*Watcher]bool
	names  map[int32]map[*Watcher]map[string]bool // directory paths, by watch descriptor and Watcher
}

// unwatched stands for the watch descriptor of a directory that the kernel does not
// watch yet.
const unwatched = -1

// pollInterval is the interval at which a polling Watcher reports that changes may have
// been missed.
var pollInterval = 5 * time.Second

// process holds the instance of this process, nil while nobody watches anything.
var process struct {
	sync.Mutex
	*instance
	closing sync.WaitGroup // the instance before, which the kernel has not given up yet
}

// trouble holds why the process's instance cannot watch by events. It outlives the instance.
var trouble struct {
	sync.Mutex
	log *slog.Logger // nil: no logging
	why error
}

// SetLogger sets the log for when the process starts to poll, and when it returns to
// events.
func SetLogger(log *slog.Logger) {
	trouble.Lock()
	defer trouble.Unlock()
	trouble.log = log
}

// PollingReason returns why the process polls; nil: it watches by events.
func PollingReason() error {
	trouble.Lock()
	defer trouble.Unlock()
	return trouble.why
}

// setTrouble records why the process polls, and logs a change once.
func setTrouble(why error) {
	trouble.Lock()
	defer trouble.Unlock()
	was := trouble.why
	trouble.why = why
	switch {
	case trouble.log == nil || (was == nil) == (why == nil):
	case why != nil:
		trouble.log.Warn("changes on this node are looked for every few seconds, as the kernel does not tell of them", "interval", pollInterval, "message", why.Error())
	default:
		trouble.log.Info("the kernel tells of changes on this node again")
	}
}

// join makes a Watcher a user of the process's instance.
func join(w *Watcher) (*instance, error) {
	process.Lock()
	defer process.Unlock()
	s := process.instance
	if s == nil || s.failed() {
		process.closing.Wait() // a user has few instances (fs.inotify.max_user_instances)
		var err error
		if s, err = open(); err != nil {
			return nil, err
		}
		process.instance = s
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users[w] = true
	return s, nil
}

// open makes an instance. It polls if the kernel has none to give.
func open() (*instance, error) {
	s := &instance{end: make(chan struct{}), users: map[*Watcher]bool{}, names: map[int32]map[*Watcher]map[string]bool{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.init()
	if Exhausted(err) {
		s.startPolling(err)
		err = nil
	}
	return s, err
}

// init asks the kernel for an instance. s.mu is held.
func (s *instance) init() error {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return explain(err)
	}
	s.fd, s.file = fd, os.NewFile(uintptr(fd), "inotify")
	s.running.Go(s.read)
	return nil
}

// startPolling records which resource is exhausted, and starts to poll unless it does
// already. s.mu is held.
func (s *instance) startPolling(why error) {
	if s.why == nil {
		setTrouble(why)
		tick := time.NewTicker(pollInterval)
		s.running.Go(func() { s.poll(tick) })
	}
	s.why = why
}

// poll reports every few seconds that changes may have been missed, and tries to watch
// the unwatched directories, until all are watched or the instance ends.
func (s *instance) poll(tick *time.Ticker) {
	defer tick.Stop()
	for {
		select {
		case <-s.end:
			return
		case <-tick.C:
		}
		if s.retry() {
			return
		}
	}
}

// retry tries again to watch the unwatched directories, and reports whether all are
// watched.
func (s *instance) retry() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return true
	}
	var exhausted error
	if s.file == nil {
		exhausted = s.init()
	}
	for w := range s.users {
		missed := exhausted != nil
		for dir, wd := range w.dirs {
			if wd != unwatched {
				continue
			}
			missed = true
			wd, err := w.watch(dir)
			switch {
			case err == nil:
				s.register(w, dir, wd)
			case Exhausted(err):
				exhausted = err
			default: // it is gone: Has and Missed report that
				delete(w.dirs, dir)
			}
		}
		if missed {
			// Only after the watches stand: reading everything now catches earlier changes.
			w.enqueue(Event{Kind: Missed})
		}
	}
	if exhausted != nil {
		s.why = exhausted
		return false
	}
	s.why = nil
	setTrouble(nil)
	return true
}

// register records the watch descriptor of a Watcher's directory. s.mu is held.
func (s *instance) register(w *Watcher, dir string, wd int32) {
	w.dirs[dir] = wd
	if wd == unwatched {
		return
	}
	if s.names[wd] == nil {
		s.names[wd] = map[*Watcher]map[string]bool{}
	}
	if s.names[wd][w] == nil {
		s.names[wd][w] = map[string]bool{}
	}
	s.names[wd][w][dir] = true
}

// leave ends a Watcher's use, and the instance with its last user.
func leave(w *Watcher) {
	process.Lock()
	defer process.Unlock()
	s := w.shared
	s.mu.Lock()
	used := s.users[w]
	for dir, wd := range w.dirs {
		s.drop(w, dir, wd)
	}
	delete(s.users, w)
	last := used && len(s.users) == 0
	s.closed = s.closed || last
	file, polled := s.file, s.why != nil
	s.mu.Unlock()
	if !last {
		return
	}
	if process.instance == s {
		process.instance = nil
	}
	close(s.end)
	// The kernel closes an instance only after a grace period in which no other process
	// handles an event (fsnotify_destroy_group): 15 to 200 ms, for which nobody needs to wait.
	process.closing.Go(func() {
		if file != nil {
			_ = file.Close()
		}
		s.running.Wait()
	})
	if polled {
		setTrouble(nil) // nobody watches any more
	}
}

// drop ends a Watcher's use of a directory. s.mu is held.
func (s *instance) drop(w *Watcher, dir string, wd int32) {
	delete(w.dirs, dir)
	if wd == unwatched {
		return
	}
	delete(s.names[wd][w], dir)
	if len(s.names[wd][w]) == 0 {
		delete(s.names[wd], w)
	}
	if len(s.names[wd]) == 0 {
		delete(s.names, wd)
		// This fails if the directory is gone, and the watch with it.
		_, _ = unix.InotifyRmWatch(s.fd, uint32(wd))
	}
}

// read dispatches the kernel's events until the instance is closed.
func (s *instance) read() {
	buffer := make([]byte, 64<<10)
	for {
		n, err := s.file.Read(buffer)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			s.fail(fmt.Errorf("inotify: %w", err))
			return
		}
		s.dispatch(buffer[:n])
	}
}

func (s *instance) failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// fail ends all Watchers of the instance; later Watchers get a new one.
func (s *instance) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.users {
		w.fail(err)
	}
	s.closed = true
}

// dispatch queues events for the Watchers, as the kernel writes them; see inotify(7).
func (s *instance) dispatch(data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(data) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(data))
		mask := binary.NativeEndian.Uint32(data[4:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(data[12:]))
		if end > len(data) {
			break // the kernel writes whole events
		}
		name, _, _ := bytes.Cut(data[unix.SizeofInotifyEvent:end], []byte{0})
		data = data[end:]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			for w := range s.users {
				w.enqueue(Event{Kind: Missed})
			}
			continue
		}
		gone := mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT|unix.IN_IGNORED) != 0
		for w, dirs := range s.names[wd] {
			for dir := range dirs {
				if !gone {
					if !w.wants(mask, dir, string(name)) {
						continue
					}
					w.enqueue(Event{Kind: Changed, Dir: dir, Name: string(name)})
					continue
				}
				w.enqueue(Event{Kind: Gone, Dir: dir})
				s.drop(w, dir, wd)
			}
		}
	}
}
