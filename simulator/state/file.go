package state

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrInvalid means that a file is not the state of a simulated driver, or has an
// unknown version.
var ErrInvalid = errors.New("not the state of a simulated driver")

// Size is the size of the file, in bytes.
const Size = int(unsafe.Sizeof(file{}))

// File is the state of a running simulated driver. Its methods may be called
// concurrently, and other processes may have the same file open.
type File struct {
	path   string
	mu     sync.Mutex // what flock is between processes, between goroutines
	f      *os.File
	memory []byte
	file   *file
}

// Create atomically writes a state file that holds s. It replaces an existing file; processes
// that have the old file open go on with it.
func Create(path string, s *State) error {
	if err := s.Validate(); err != nil {
		return fmt.Errorf("state for %s: %w", path, err)
	}
	whole := file{Magic: magic, Layout: Layout, Size: uint32(Size)}
	whole.Slot[0] = *s
	// No program searches for this name: they search for libcuda.so.* and the like,
	// and the state is named like a library.
	temp := filepath.Join(filepath.Dir(path), ".new-"+filepath.Base(path))
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	data := unsafe.Slice((*byte)(unsafe.Pointer(&whole)), Size)
	if err := os.WriteFile(temp, data, 0o644); err != nil {
		return err
	}
	// Containers must be able to read it, whatever the writer's umask.
	if err := errors.Join(os.Chmod(temp, 0o644), os.Rename(temp, path)); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return nil
}

// Open maps a state file so that it can be changed.
func Open(path string) (*File, error) { return open(path, os.O_RDWR, unix.PROT_READ|unix.PROT_WRITE) }

// OpenRead maps a state file; Update and Emit fail on it.
func OpenRead(path string) (*File, error) { return open(path, os.O_RDONLY, unix.PROT_READ) }

func open(path string, flag, protection int) (*File, error) {
	f, err := os.OpenFile(path, flag, 0)
	if err != nil {
		return nil, err
	}
	mapped, err := mapFile(f, protection)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", filepath.Clean(path), err)
	}
	mapped.path = path
	return mapped, nil
}

// mapFile refuses a file of any other size before it touches it: reading a
// mapping beyond the end of its file kills the process.
func mapFile(f *os.File, protection int) (*File, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: not a regular file", ErrInvalid)
	}
	if info.Size() != int64(Size) {
		return nil, fmt.Errorf("%w: it has %d bytes, not %d (truncated, or of another version); run gpusim up again", ErrInvalid, info.Size(), Size)
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, Size, protection, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map: %w", err)
	}
	m := &File{f: f, memory: memory, file: (*file)(unsafe.Pointer(&memory[0]))}
	if err := m.check(); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w; run gpusim up again", ErrInvalid, err), unix.Munmap(memory))
	}
	return m, nil
}

func (f *File) check() error {
	switch {
	case f.file.Magic != magic:
		return errors.New("wrong magic number")
	case f.file.Layout != Layout:
		return fmt.Errorf("layout %d, this program knows %d", f.file.Layout, Layout)
	case f.file.Size != uint32(Size):
		return fmt.Errorf("it says that it has %d bytes, not %d", f.file.Size, Size)
	}
	var s State
	f.Read(&s)
	return s.Validate()
}

// Bytes returns s as encoded in the file. The slice is s itself, not a copy.
func (s *State) Bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(s)), unsafe.Sizeof(*s))
}

// Path returns the name under which the file was opened.
func (f *File) Path() string { return f.path }

// Close closes the file. No other method may be called after it.
func (f *File) Close() error {
	return errors.Join(unix.Munmap(f.memory), f.f.Close())
}

// Read copies the state, at one moment, to s.
func (f *File) Read(s *State) {
	for {
		seq := atomic.LoadUint64(&f.file.Seq)
		load(s, &f.file.Slot[seq&1])
		if atomic.LoadUint64(&f.file.Seq) == seq {
			return
		}
	}
}

// Update changes the state atomically. change modifies a copy, which replaces the state
// unless change returns an error. emit, which is optional, is called after change and
// returns the events that follow from it.
func (f *File) Update(change func(*State) error, emit ...func() []Event) error {
	return f.locked(func() error {
		// Only writers change seq, and this is the only one now.
		seq := atomic.LoadUint64(&f.file.Seq)
		var next State
		load(&next, &f.file.Slot[seq&1])
		if err := change(&next); err != nil {
			return err
		}
		if err := next.Validate(); err != nil {
			return fmt.Errorf("%s: refused: %w", f.path, err)
		}
		store(&f.file.Slot[(seq+1)&1], &next)
		atomic.StoreUint64(&f.file.Seq, seq+1)
		for _, events := range emit {
			f.emit(events())
		}
		return nil
	})
}

// Emit appends events. Number and, if it is 0, Ns are filled in.
func (f *File) Emit(events ...Event) error {
	return f.locked(func() error { f.emit(events); return nil })
}

// emit is called by the only writer. An entry that is being overwritten has a number
// that no reader expects, so that a slow reader can detect it.
func (f *File) emit(events []Event) {
	for _, e := range events {
		e.Number = atomic.LoadUint64(&f.file.Head)
		if e.Ns == 0 {
			e.Ns = uint64(time.Now().UnixNano())
		}
		entry := &f.file.Event[e.Number%MaxEvents]
		atomic.StoreUint64(&entry.Number, math.MaxUint64)
		unnumbered := e
		unnumbered.Number = math.MaxUint64
		store(entry, &unnumbered)
		atomic.StoreUint64(&entry.Number, e.Number)
		atomic.StoreUint64(&f.file.Head, e.Number+1)
	}
}

// EventCount returns the number of events so far.
func (f *File) EventCount() uint64 { return atomic.LoadUint64(&f.file.Head) }

// Events returns the events from number on that the ring still holds, oldest first.
func (f *File) Events(number uint64) []Event {
	head := atomic.LoadUint64(&f.file.Head)
	if head > MaxEvents {
		number = max(number, head-MaxEvents)
	}
	var events []Event
	for ; number < head; number++ {
		entry := &f.file.Event[number%MaxEvents]
		var e Event
		before := atomic.LoadUint64(&entry.Number)
		load(&e, entry)
		// Another number: a writer has come round the ring meanwhile.
		if before == number && e.Number == number && atomic.LoadUint64(&entry.Number) == number {
			events = append(events, e)
		}
	}
	return events
}

// locked runs do as the only writer of the file, then wakes all waiters.
func (f *File) locked(do func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		err := unix.Flock(int(f.f.Fd()), unix.LOCK_EX)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock %s: %w", f.path, err)
		}
	}
	// It cannot fail on an open file, and closing it would unlock it, too.
	defer unix.Flock(int(f.f.Fd()), unix.LOCK_UN) //nolint:errcheck // see above
	if err := f.checkWritable(); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	atomic.AddUint32(&f.file.Wake, 1)
	return f.wakeWaiters()
}

// checkWritable returns an error for a read-only mapping: a write to it would kill the
// process.
func (f *File) checkWritable() error {
	flags, err := unix.FcntlInt(f.f.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	if flags&unix.O_ACCMODE != unix.O_RDWR {
		return fmt.Errorf("change %s: it was opened for reading", f.path)
	}
	return nil
}

// wakeWaiters wakes every process that waits on the futex. FUTEX_PRIVATE_FLAG is not
// set: the waiters are other processes.
func (f *File) wakeWaiters() error {
	const futexWake = 1
	_, _, errno := unix.Syscall(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&f.file.Wake)), futexWake, math.MaxInt32)
	if errno != 0 {
		return fmt.Errorf("wake those who wait for %s: %w", f.path, errno)
	}
	return nil
}

// load and store copy between the mapping and memory of this process, one word
// at a time: other processes write and read the same words. All structs of the
// layout are whole multiples of eight bytes, aligned to eight.
func load[T any](into, from *T) {
	target := words(into)
	for i, source := 0, words(from); i < len(source); i++ {
		target[i] = atomic.LoadUint64(&source[i])
	}
}

func store[T any](into, from *T) {
	source := words(from)
	for i, target := 0, words(into); i < len(source); i++ {
		// Skip a word that already has its value, so that an update does not make
		// every page of the file dirty in every cache.
		if atomic.LoadUint64(&target[i]) != source[i] {
			atomic.StoreUint64(&target[i], source[i])
		}
	}
}

func words[T any](of *T) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(of)), unsafe.Sizeof(*of)/8)
}
