package namespace

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Machine is a started machine. Its methods may be called concurrently.
type Machine struct {
	name  string
	spec  Spec
	tool  string // this program's path
	log   string // of the first process itself
	cmd   *exec.Cmd
	ended chan struct{}

	mu       sync.Mutex
	requests *json.Encoder
	programs map[string]history
	booted   bool
	failed   string        // the error that the machine reported
	changed  chan struct{} // closed and made anew with each event
}

// Files are the files outside of a machine.
type Files struct {
	Tool string // this program
	Spec string // the machine's spec, which Start writes
	Log  string // output of the first process itself
}

// StartMachine starts a machine with the given spec. The machine accepts connections on listener if it is
// not nil; the caller closes it. The machine ends with this process.
func StartMachine(f Files, spec Spec, listener *os.File) (*Machine, error) {
	m := &Machine{
		name: spec.Hostname, spec: spec, tool: f.Tool, log: f.Log,
		ended: make(chan struct{}), programs: map[string]history{}, changed: make(chan struct{}),
	}
	if err := spec.Write(f.Spec); err != nil {
		return nil, err
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	m.cmd = exec.Command(m.tool, CommandMachine, f.Spec)
	m.cmd.Stdout, m.cmd.Stderr = log, log
	m.cmd.ExtraFiles = []*os.File{theirs}
	if listener != nil {
		m.cmd.ExtraFiles = append(m.cmd.ExtraFiles, listener)
	}
	m.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET,
		Setsid:     true, // Ctrl-C in a terminal is for the process outside
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := m.cmd.Start(); err != nil {
		_ = ours.Close()
		return nil, fmt.Errorf("start the namespaces of %s: %w; the machine must allow root to make them", m.name, err)
	}
	m.requests = json.NewEncoder(ours)
	go m.watch(ours)
	return m, nil
}

func socketPair() (ours net.Conn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	theirs = os.NewFile(uintptr(fds[1]), "control")
	file := os.NewFile(uintptr(fds[0]), "control")
	defer file.Close()
	if ours, err = net.FileConn(file); err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}

// watch records events until the machine has ended.
func (m *Machine) watch(control net.Conn) {
	defer close(m.ended)
	events := json.NewDecoder(control)
	for {
		var e Event
		if err := events.Decode(&e); err != nil {
			break
		}
		m.record(e)
	}
	_ = m.cmd.Process.Kill() // it no longer responds, or has already ended
	_ = m.cmd.Wait()
	_ = control.Close()
}

// PID returns the first process's number outside.
func (m *Machine) PID() int { return m.cmd.Process.Pid }

// Ended is closed when the first process, and so everything in the machine, has ended.
func (m *Machine) Ended() <-chan struct{} { return m.ended }

// Kill ends the machine as End does, without waiting.
func (m *Machine) Kill() { _ = m.cmd.Process.Kill() }

// End ends the machine with everything in it. It may be called again.
func (m *Machine) End() {
	m.Kill()
	<-m.ended
}
