package inside

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

// tooSoon is how long a program must live to be started again at once.
const tooSoon = time.Second

// supervisor starts a machine's programs and buries its dead. It is PID 1.
type supervisor struct {
	spec   Spec
	events *json.Encoder // guarded by mu

	mu       sync.Mutex // held while a process is started, so that its end is not seen before its beginning
	programs map[string]*program
}

type program struct {
	Program
	log     *os.File
	pid     int  // 0: does not run
	asked   bool // somebody asked for a signal to it
	started time.Time
}

func newSupervisor(file string, control io.Writer) (*supervisor, error) {
	spec, err := readSpec(file)
	if err != nil {
		return nil, err
	}
	s := &supervisor{spec: spec, events: json.NewEncoder(control), programs: map[string]*program{}}
	for _, p := range spec.Programs {
		// The files are outside; a node will not see them by their paths.
		log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, err
		}
		s.programs[p.Name] = &program{Program: p, log: log}
	}
	return s, nil
}

// run makes the machine and serves requests until nobody can make one.
func (s *supervisor) run(control io.Reader) error {
	// A listener outlives mounts and pivots: it is of the network namespace outside.
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
	// What nohup, or a shell in the background, has this process ignore its programs would
	// ignore, too, as containerd the hangup that ends it. Of what is handled here they start
	// with the default.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT)
	dead := make(chan os.Signal, 1)
	signal.Notify(dead, unix.SIGCHLD)
	go func() {
		for range dead {
			s.reap()
		}
	}()
	s.say(Event{Kind: Booted})
	requests := json.NewDecoder(control)
	for {
		var r Request
		if err := requests.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read a request: %w", err)
		}
		if err := s.serve(r); err != nil {
			s.say(Event{Program: r.Program, Kind: Failed, Message: err.Error()})
		}
	}
}

func (s *supervisor) mount() error {
	if s.spec.Node != nil {
		return mountNode(*s.spec.Node, s.spec.Hostname)
	}
	return mountPlane(s.spec.Hostname)
}

func (s *supervisor) say(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sayLocked(e)
}

func (s *supervisor) sayLocked(e Event) {
	_ = s.events.Encode(e) // if nobody listens, the next read ends the machine
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
	p.asked = true
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
	p.pid, p.asked, p.started = started.Pid, false, time.Now()
	s.sayLocked(Event{Program: p.Name, Kind: Started})
	return started.Release() // reap waits for it, and for everyone else's orphans
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
	s.sayLocked(Event{Program: p.Name, Kind: Exited, Message: how})
	if !p.Restart {
		return
	}
	again := func() {
		if err := s.start(p); err != nil {
			s.sayLocked(Event{Program: p.Name, Kind: Failed, Message: err.Error()})
		}
	}
	wait := tooSoon - time.Since(p.started)
	if !p.asked {
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

// notifySocket is the address at which a program may say that it is ready; it
// exists in the machine's network namespace only.
func notifySocket(name string) string { return "@cluster/" + name }

// listen passes on that a program is ready.
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
					s.say(Event{Program: name, Kind: Ready})
				}
			}
		}
	}()
	return nil
}

// forward passes on connections to the target.
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
