// Package namespace runs the machines of a cluster, each in namespaces and control groups of its own.
// A machine is the control plane or a node. Its first process is the cluster's own tool, run again. It
// mounts the machine's file systems, then starts, restarts and stops its programs at the request of
// the process outside.
//
// Machine is the view from outside: it creates the namespaces, starts their first process, exchanges
// requests and events with it, and enters the namespaces. RunInside is the part that runs inside. The
// two processes use a socket pair. The process outside sends one Request a line and receives one
// Event a line. When the socket closes, the machine ends with all its processes.
//
// MakeGroups and the functions beside it create, join and remove control groups, with cgroup v1, v2
// or both.
package namespace

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Internal subcommands of the tool.
const (
	CommandMachine = "inside-machine" // SPEC: the first process of a machine
	commandBooted  = "inside-booted"  // SPEC: the same, in its control groups
	CommandHook    = "inside-hook"    // an OCI hook: gives a container its node's boot ID and PCI bus
	CommandEnter   = "inside-enter"   // PID PROGRAM [ARG...]: runs a program in a machine
)

// File descriptors that the first process of a machine inherits.
const (
	ControlFD  = 3 // the socket pair's end
	ListenerFD = 4 // control plane: connections for the API server, accepted from the machine outside
)

// Paths on a node that belong to the cluster rather than to the node.
const (
	Opt    = "/opt/cluster"
	Bin    = Opt + "/bin"         // containerd, kubelet and what they need
	Tool   = Bin + "/" + ToolName // this program
	state  = "/run/cluster"       // boot ID, system controls
	bootID = state + "/boot_id"
)

// ToolName is the name of this program among a node's.
const ToolName = "cluster"

// Spec describes a machine.
type Spec struct {
	Hostname string    `json:"hostname"`
	Node     *NodeSpec `json:"node,omitempty"`   // nil: the control plane, on the file system of the machine outside
	Target   string    `json:"target,omitempty"` // where connections of ListenerFD go
	Programs []Program `json:"programs"`
}

// NodeSpec describes the parts of a machine that only a node has.
type NodeSpec struct {
	Dir         string            `json:"dir"` // its disk: root/, and the upper layers of overlays
	BootID      string            `json:"bootID"`
	Binds       map[string]string `json:"binds"` // folder on the node: folder outside that it shows, read-only
	Hierarchies []Hierarchy       `json:"hierarchies"`
	Groups      []string          `json:"groups"`         // directories of the node's control groups
	NUMA        []string          `json:"numa,omitempty"` // CPUs of each made-up NUMA node; none: as the machine is
	GPUs        bool              `json:"gpus,omitempty"` // it has the machine's own GPUs, and their driver
}

// Program is a program of a machine. A request starts it. With Restart it is started again when
// it ends: at once if a request ended it, otherwise after RestartAfter, as systemd does.
type Program struct {
	Name    string   `json:"name"`
	Path    string   `json:"path"`
	Args    []string `json:"args"`
	Env     []string `json:"env,omitempty"`
	Log     string   `json:"log"` // file outside that its output is added to
	Restart bool     `json:"restart"`

	RestartAfter time.Duration `json:"restartAfter,omitempty"`
}

// Request asks a machine to start a program (Signal 0) or to send it another signal.
type Request struct {
	Program string `json:"program"`
	Signal  int    `json:"signal"`
}

// Event reports what happened to a program, or to the machine (no Program).
type Event struct {
	Program string `json:"program,omitempty"`
	Kind    Kind   `json:"kind"`
	Message string `json:"message,omitempty"`
}

// Kind is a kind of event.
type Kind string

// Kinds of event.
const (
	Booted  Kind = "booted"  // the machine: its mounts are made
	Started Kind = "started" // a program was started
	Ready   Kind = "ready"   // it reported itself ready with sd_notify(3)
	Exited  Kind = "exited"  // Message holds the exit status
	Failed  Kind = "failed"  // Message holds the error
)

// RunInside runs one of the subcommands if args name one, and returns its exit code.
func RunInside(args []string) (exit int, ran bool) {
	if len(args) == 0 {
		return 0, false
	}
	var err error
	switch command, rest := args[0], args[1:]; {
	case command == CommandMachine && len(rest) == 1:
		err = machine(rest[0])
	case command == commandBooted && len(rest) == 1:
		err = booted(rest[0])
	case command == CommandHook:
		err = hook(os.Stdin)
	case command == CommandEnter && len(rest) >= 2:
		exit, err = enter(rest[0], rest[1:])
	default:
		return 0, false
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		return 1, true
	}
	return exit, true
}

// machine joins the control groups of a node and runs the tool again. A control group namespace
// begins at the group of its creator. It also applies to one thread only, until the process
// has a single thread.
func machine(file string) error {
	spec, err := readSpec(file)
	if err != nil {
		return err
	}
	if spec.Node != nil {
		runtime.LockOSThread()
		if err := JoinGroups(spec.Node.Groups); err != nil {
			return err
		}
		if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
			return fmt.Errorf("make a namespace of control groups: %w", err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(self, []string{self, commandBooted, file}, os.Environ())
}

// booted is the first process of a machine until it ends.
func booted(file string) error {
	control := os.NewFile(ControlFD, "control")
	unix.CloseOnExec(ControlFD)
	unix.CloseOnExec(ListenerFD)
	s, err := newSupervisor(file, control)
	if err == nil {
		err = s.run(control)
	}
	if err != nil {
		_ = json.NewEncoder(control).Encode(Event{Kind: Failed, Message: err.Error()})
	}
	return err
}

func readSpec(file string) (Spec, error) {
	var spec Spec
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &spec)
	}
	if err != nil {
		return spec, fmt.Errorf("read what the machine is to be: %w", err)
	}
	return spec, nil
}

// Write writes the spec to a file.
func (s Spec) Write(file string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o600)
}
