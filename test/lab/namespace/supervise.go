package namespace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tooSoon is the minimum life of a program that is restarted at once.
const tooSoon = time.Second

// supervisor starts a machine's programs and reaps all its processes. It is PID 1.
type supervisor struct {
	spec   Spec
	events *json.Encoder // guarded by mu

	mu       sync.Mutex // held while a process is started, so that its end is not handled before its start
	programs map[string]*program
}

type program struct {
	Program
	log       *os.File
	pid       int  // 0: not running
	signalled bool // a request sent it a signal
	started   time.Time
}

func newSupervisor(file string, control io.Writer) (*supervisor, error) {
	spec, err := readSpec(file)
	if err != nil {
		return nil, err
	}
	s := &supervisor{spec: spec, events: json.NewEncoder(control), programs: map[string]*program{}}
	for _, p := range spec.Programs {
		// The log files are outside; the node cannot open their paths.
		log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, err
		}
		s.programs[p.Name] = &program{Program: p, log: log}
	}
	return s, nil
}

// run mounts the machine's file systems and serves requests until the socket closes.
func (s *supervisor) run(control io.Reader) error {
	// A listener survives mounts and pivots: it belongs to the network namespace outside.
	if s.spec.Target != "" {
		l, err := net.FileListener(os.NewFile(ListenerFD, "listener"))
		if err != nil {
			return fmt.Errorf("listener for the API server: %w", err)
		}
		go forward(l, s.spec.Target)
	}
	if err := s.mount(); err != nil {
		return err
	}
	for name := range s.programs {
		if err := s.listen(name); err != nil {
			return err
		}
	}
	// nohup, or a shell for a background job, makes this process ignore signals, and its programs
	// would inherit that. containerd would then ignore the SIGHUP that ends it. Programs start with
	// the default for signals that are handled here.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT)
	dead := make(chan os.Signal, 1)
	signal.Notify(dead, unix.SIGCHLD)
	go func() {
		for range dead {
			s.reap()
		}
	}()
	s.send(Event{Kind: Booted})
	requests := json.NewDecoder(control)
	for {
		var r Request
		if err := requests.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read a request: %w", err)
		}
		if err := s.serve(r); err != nil {
			s.send(Event{Program: r.Program, Kind: Failed, Message: err.Error()})
		}
	}
}

func (s *supervisor) mount() error {
	if s.spec.Node != nil {
		return mountNode(*s.spec.Node, s.spec.Hostname)
	}
	return mountPlane(s.spec.Hostname)
}

func (s *supervisor) send(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sendLocked(e)
}

func (s *supervisor) sendLocked(e Event) {
	_ = s.events.Encode(e) // if the socket is closed, the next read ends the machine
}

func (s *supervisor) serve(r Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.programs[r.Program]
	switch {
	case p == nil:
		return fmt.Errorf("there is no program %s on %s", r.Program, s.spec.Hostname)
	case r.Signal == 0 && p.pid == 0:
		return s.start(p)
	case r.Signal == 0:
		return nil
	case p.pid == 0:
		return fmt.Errorf("%s does not run on %s", r.Program, s.spec.Hostname)
	}
	p.signalled = true
	return unix.Kill(p.pid, syscall.Signal(r.Signal))
}

// start starts a program; mu is held.
func (s *supervisor) start(p *program) error {
	env := append([]string{"PATH=" + Path, "HOME=/root", "NOTIFY_SOCKET=" + notifySocket(p.Name)}, p.Env...)
	started, err := os.StartProcess(p.Path, append([]string{p.Path}, p.Args...), &os.ProcAttr{
		Dir: "/", Env: env, Files: []*os.File{nil, p.log, p.log},
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	p.pid, p.signalled, p.started = started.Pid, false, time.Now()
	s.sendLocked(Event{Program: p.Name, Kind: Started})
	return started.Release() // reap waits for it, and for orphans
}

// reap collects every process that has ended.
func (s *supervisor) reap() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		for _, p := range s.programs {
			if p.pid == pid {
				s.ended(p, status)
			}
		}
	}
}

func (s *supervisor) ended(p *program, status unix.WaitStatus) {
	p.pid = 0
	how := fmt.Sprintf("exit status %d", status.ExitStatus())
	if status.Signaled() {
		how = "signal: " + status.Signal().String()
	}
	s.sendLocked(Event{Program: p.Name, Kind: Exited, Message: how})
	if !p.Restart {
		return
	}
	again := func() {
		if err := s.start(p); err != nil {
			s.sendLocked(Event{Program: p.Name, Kind: Failed, Message: err.Error()})
		}
	}
	wait := tooSoon - time.Since(p.started)
	if !p.signalled {
		wait = max(wait, p.RestartAfter)
	}
	if wait > 0 {
		time.AfterFunc(wait, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if p.pid == 0 {
				again()
			}
		})
		return
	}
	again()
}

// notifySocket returns the address at which a program reports that it is ready. It exists in
// the machine's network namespace only.
func notifySocket(name string) string { return "@cluster/" + name }

// listen forwards the report that a program is ready.
func (s *supervisor) listen(name string) error {
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notifySocket(name), Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("listen for %s: %w", name, err)
	}
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := c.Read(b)
			if err != nil {
				return
			}
			for line := range strings.SplitSeq(string(b[:n]), "\n") {
				if line == "READY=1" {
					s.send(Event{Program: name, Kind: Ready})
				}
			}
		}
	}()
	return nil
}

// forward forwards connections to the target.
func forward(l net.Listener, target string) {
	for {
		from, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer from.Close()
			to, err := net.Dial("tcp", target)
			if err != nil {
				return // the caller sees its connection closed, as from a server that is not up
			}
			defer to.Close()
			var both sync.WaitGroup
			for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
				both.Go(func() {
					_, _ = io.Copy(way[0], way[1])
					if c, ok := way[0].(*net.TCPConn); ok {
						_ = c.CloseWrite()
					}
				})
			}
			both.Wait()
		}()
	}
}
