package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/test/lab/vm"
)

// outputLimit limits the stored output of one stream of a process; the rest is only counted.
const outputLimit = 1 << 20

// processes runs programs. It also reaps their orphans, as a first process must.
type processes struct {
	mu    sync.Mutex
	byPid map[int]*process
	all   map[int]*process // by handle
	last  int
	ended chan os.Signal // SIGCHLD
}

type process struct {
	pid            int
	began          time.Time
	stdout, stderr *stream
	exited         chan struct{} // closed once status and wall are set
	status         unix.WaitStatus
	wall           time.Duration
}

func newProcesses() *processes {
	p := &processes{byPid: map[int]*process{}, all: map[int]*process{}, ended: make(chan os.Signal, 1)}
	signal.Notify(p.ended, unix.SIGCHLD)
	return p
}

// start starts a program in a process group of its own.
func (p *processes) start(c vm.Command) (handle, pid int, err error) {
	if len(c.Args) == 0 {
		return 0, 0, errors.New("a command needs a program")
	}
	program := c.Args[0]
	if c.Root == "" {
		if program, err = exec.LookPath(program); err != nil {
			return 0, 0, err
		}
	}
	dir := c.Dir
	if dir == "" {
		dir = "/"
	}
	stdin, feed, err := input(c.Stdin)
	if err != nil {
		return 0, 0, err
	}
	defer stdin.Close()
	stdout, out, err := newStream()
	if err != nil {
		return 0, 0, err
	}
	defer out.Close()
	stderr, errs, err := newStream()
	if err != nil {
		return 0, 0, err
	}
	defer errs.Close()

	// reap looks a process up under the same lock, so that it finds each one.
	p.mu.Lock()
	defer p.mu.Unlock()
	pid, err = syscall.ForkExec(program, c.Args, &syscall.ProcAttr{
		Dir:   dir,
		Env:   append(os.Environ(), c.Env...),
		Files: []uintptr{stdin.Fd(), out.Fd(), errs.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, Chroot: c.Root},
	})
	if err != nil {
		return 0, 0, &os.PathError{Op: "run", Path: program, Err: err}
	}
	go feed()
	go stdout.fill()
	go stderr.fill()
	p.last++
	p.all[p.last] = &process{pid: pid, began: time.Now(), stdout: stdout, stderr: stderr, exited: make(chan struct{})}
	p.byPid[pid] = p.all[p.last]
	return p.last, pid, nil
}

// reap collects the exit status of each child, of orphans too.
func (p *processes) reap() {
	for range p.ended {
		for {
			var status unix.WaitStatus
			pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || pid <= 0 {
				break
			}
			p.mu.Lock()
			if e, ok := p.byPid[pid]; ok {
				delete(p.byPid, pid)
				e.status, e.wall = status, time.Since(e.began)
				close(e.exited)
			}
			p.mu.Unlock()
		}
	}
}

func (p *processes) find(handle int) (*process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, ok := p.all[handle]
	if !ok {
		return nil, fmt.Errorf("no process has the handle %d", handle)
	}
	return e, nil
}

// wait waits until a process has exited or the time is up, and returns its output so far.
func (p *processes) wait(handle int, timeout time.Duration) (vm.Response, error) {
	e, err := p.find(handle)
	if err != nil {
		return vm.Response{}, err
	}
	select {
	case <-e.exited:
	case <-time.After(timeout):
	}
	select {
	case <-e.exited:
		e.stdout.settle()
		e.stderr.settle()
		return vm.Response{
			Exited: true, Code: e.status.ExitStatus(), Signal: signalOf(e.status), Wall: e.wall,
			Stdout: e.stdout.bytes(), Stderr: e.stderr.bytes(),
		}, nil
	default:
		return vm.Response{Wall: time.Since(e.began), Stdout: e.stdout.bytes(), Stderr: e.stderr.bytes()}, nil
	}
}

func signalOf(s unix.WaitStatus) int {
	if s.Signaled() {
		return int(s.Signal())
	}
	return 0
}

// signal sends a signal to a process that has not exited, or to its process group.
func (p *processes) signal(handle int, sig unix.Signal, group bool) error {
	e, err := p.find(handle)
	if err != nil {
		return err
	}
	pid := e.pid
	if group {
		pid = -pid
	}
	p.mu.Lock() // an exited process has been removed from byPid before its pid is used again
	defer p.mu.Unlock()
	if _, ok := p.byPid[e.pid]; !ok && !group {
		return fmt.Errorf("signal process %d, which has exited: %w", pid, unix.ESRCH)
	}
	if err := unix.Kill(pid, sig); err != nil {
		return fmt.Errorf("signal process %d: %w", pid, err)
	}
	return nil
}

// input returns a file with the given bytes to read; feed writes them.
func input(data string) (r *os.File, feed func(), err error) {
	if len(data) == 0 {
		r, err = os.Open(os.DevNull)
		return r, func() {}, err
	}
	r, w, err := os.Pipe()
	return r, func() {
		_, _ = w.WriteString(data) // a program need not read its input
		_ = w.Close()
	}, err
}

// stream keeps what a process writes to one of its descriptors.
type stream struct {
	from *os.File
	done chan struct{} // closed once no process can write to it any more

	mu      sync.Mutex
	kept    []byte
	dropped int
}

func newStream() (s *stream, w *os.File, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	return &stream{from: r, done: make(chan struct{})}, w, nil
}

func (s *stream) fill() {
	defer close(s.done)
	_, _ = io.Copy(s, s.from)
	_ = s.from.Close()
}

// Write keeps bytes up to the limit and counts those beyond it.
func (s *stream) Write(data []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := min(len(data), outputLimit-len(s.kept))
	s.kept = append(s.kept, data[:keep]...)
	s.dropped += len(data) - keep
	return len(data), nil
}

// settle waits until all has been read that an exited process wrote. A child of it
// that still runs may keep the stream open, so it does not wait for the end for long.
func (s *stream) settle() {
	select {
	case <-s.done:
	case <-time.After(200 * time.Millisecond):
	}
}

func (s *stream) bytes() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dropped > 0 {
		return fmt.Appendf(slices.Clip(s.kept), "\n[%d more bytes]\n", s.dropped)
	}
	return append([]byte(nil), s.kept...)
}
