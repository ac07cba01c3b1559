package inotify

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// instance is one of the kernel's, with those who share it.
type instance struct {
	fd   int
	file *os.File // the same
	done chan struct{}

	mu     sync.Mutex
	closed bool // or failed: it takes no more directories
	users  map[*Watcher]bool
	who    map[int32]map[*Watcher]map[string]bool // and under which names, by watch descriptor
}

// process is the one of this process, nil while nobody watches anything.
var process struct {
	sync.Mutex
	*instance
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

func open() (*instance, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, explain(err)
	}
	s := &instance{
		fd: fd, file: os.NewFile(uintptr(fd), "inotify"), done: make(chan struct{}),
		users: map[*Watcher]bool{}, who: map[int32]map[*Watcher]map[string]bool{},
	}
	go s.read()
	return s, nil
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
	s.mu.Unlock()
	if !last {
		return nil
	}
	if process.instance == s {
		process.instance = nil
	}
	err := s.file.Close()
	<-s.done
	return err
}

// drop ends what a Watcher wants of a directory. s.mu is held.
func (s *instance) drop(w *Watcher, dir string, wd int32) {
	delete(w.dirs, dir)
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
	defer close(s.done)
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
