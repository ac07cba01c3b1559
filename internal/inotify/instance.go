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

// instance is one of the kernel's, with those who share it.
type instance struct {
	running sync.WaitGroup // read and lookByClock
	end     chan struct{}  // closed with the instance

	mu     sync.Mutex
	fd     int
	file   *os.File // the same; nil: the kernel has given none yet
	why    error    // why it goes by the clock; nil: it does not
	closed bool     // or failed: it takes no more directories
	users  map[*Watcher]bool
	who    map[int32]map[*Watcher]map[string]bool // and under which names, by watch descriptor
}

// unwatched stands for the watch descriptor of a directory that the kernel does not
// watch yet.
const unwatched = -1

// lookEvery is how often a Watcher that goes by the clock tells that changes may have
// been missed.
var lookEvery = 5 * time.Second

// process is the one of this process, nil while nobody watches anything.
var process struct {
	sync.Mutex
	*instance
}

// trouble holds why the process's instance cannot watch by events. It outlives the instance.
var trouble struct {
	sync.Mutex
	log *slog.Logger // nil: nobody is told
	why error
}

// LogTo names the log that is told when the process goes by the clock, and when it goes
// by events again.
func LogTo(log *slog.Logger) {
	trouble.Lock()
	defer trouble.Unlock()
	trouble.log = log
}

// Trouble returns why the process goes by the clock; nil: it goes by events.
func Trouble() error {
	trouble.Lock()
	defer trouble.Unlock()
	return trouble.why
}

// setTrouble tells the log of a change, once.
func setTrouble(why error) {
	trouble.Lock()
	defer trouble.Unlock()
	was := trouble.why
	trouble.why = why
	switch {
	case trouble.log == nil || (was == nil) == (why == nil):
	case why != nil:
		trouble.log.Warn("changes on this node are looked for every few seconds, as the kernel does not tell of them", "interval", lookEvery, "message", why.Error())
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

// open makes an instance, without the kernel's where that cannot be had now.
func open() (*instance, error) {
	s := &instance{end: make(chan struct{}), users: map[*Watcher]bool{}, who: map[int32]map[*Watcher]map[string]bool{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.init()
	if Exhausted(err) {
		s.lack(err)
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

// lack takes note of what the kernel does not give, and begins to go by the clock.
// s.mu is held.
func (s *instance) lack(why error) {
	if s.why == nil {
		setTrouble(why)
		s.running.Go(s.lookByClock)
	}
	s.why = why
}

// lookByClock tells every few seconds that changes may have been missed, and tries to
// watch what is not watched, until nothing is lacking or the instance ends.
func (s *instance) lookByClock() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.end:
			return
		case <-tick.C:
		}
		if s.recover() {
			return
		}
	}
}

// recover tries again what could not be had, and reports whether nothing is lacking.
func (s *instance) recover() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return true
	}
	var lacking error
	if s.file == nil {
		lacking = s.init()
	}
	for w := range s.users {
		missed := lacking != nil
		for dir, wd := range w.dirs {
			if wd != unwatched {
				continue
			}
			missed = true
			wd, err := w.watch(dir)
			switch {
			case err == nil:
				s.note(w, dir, wd)
			case Exhausted(err):
				lacking = err
			default: // it is gone, which Has says and Missed tells of
				delete(w.dirs, dir)
			}
		}
		if missed {
			// After the watches are there: what happened before is seen by who looks now.
			w.put(Event{What: Missed})
		}
	}
	if lacking != nil {
		s.why = lacking
		return false
	}
	s.why = nil
	setTrouble(nil)
	return true
}

// note keeps in mind what a Watcher watches a directory by. s.mu is held.
func (s *instance) note(w *Watcher, dir string, wd int32) {
	w.dirs[dir] = wd
	if wd == unwatched {
		return
	}
	if s.who[wd] == nil {
		s.who[wd] = map[*Watcher]map[string]bool{}
	}
	if s.who[wd][w] == nil {
		s.who[wd][w] = map[string]bool{}
	}
	s.who[wd][w][dir] = true
}

// leave ends a Watcher's use, and the instance with its last user.
func leave(w *Watcher) error {
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
	file, lacked := s.file, s.why != nil
	s.mu.Unlock()
	if !last {
		return nil
	}
	if process.instance == s {
		process.instance = nil
	}
	close(s.end)
	var err error
	if file != nil {
		err = file.Close()
	}
	s.running.Wait()
	if lacked {
		setTrouble(nil) // nobody misses it
	}
	return err
}

// drop ends what a Watcher wants of a directory. s.mu is held.
func (s *instance) drop(w *Watcher, dir string, wd int32) {
	delete(w.dirs, dir)
	if wd == unwatched {
		return
	}
	delete(s.who[wd][w], dir)
	if len(s.who[wd][w]) == 0 {
		delete(s.who[wd], w)
	}
	if len(s.who[wd]) == 0 {
		delete(s.who, wd)
		// It fails where the directory is gone, and the watch with it.
		_, _ = unix.InotifyRmWatch(s.fd, uint32(wd))
	}
}

// read hands out what the kernel tells until the instance is closed.
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
		s.tell(buffer[:n])
	}
}

func (s *instance) failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// fail ends all that use the instance; whoever comes later begins with another.
func (s *instance) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.users {
		w.fail(err)
	}
	s.closed = true
}

// tell hands out events as the kernel writes them, see inotify(7).
func (s *instance) tell(data []byte) {
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
				w.put(Event{What: Missed})
			}
			continue
		}
		gone := mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT|unix.IN_IGNORED) != 0
		for w, names := range s.who[wd] {
			for dir := range names {
				if !gone {
					if !w.wants(mask, dir, string(name)) {
						continue
					}
					w.put(Event{What: Changed, Dir: dir, Name: string(name)})
					continue
				}
				w.put(Event{What: Gone, Dir: dir})
				s.drop(w, dir, wd)
			}
		}
	}
}
