package vm

// The messages between a test and the agent inside a machine are JSON objects, one a line: requests
// in one direction and responses in the other.

import (
	"fmt"
	"syscall"
	"time"
)

// Op is the operation of a request.
type Op string

// The operations. Each comment lists the fields that it uses: of Request → of Response.
const (
	OpStart        Op = "start"  // Command → Handle, Pid
	OpWait         Op = "wait"   // Handle, Timeout → Exited, Code, Signal, Stdout, Stderr, Wall
	OpSignal       Op = "signal" // Handle, Signal, Group
	OpOpenFile     Op = "open"   // Path, Flags → Handle
	OpCloseFile    Op = "close"  // Handle
	OpReadFile     Op = "read"   // Path → Data
	OpWriteFile    Op = "write"  // Path, Data, Mode
	OpLoadModule   Op = "load"   // Path, Params
	OpUnloadModule Op = "unload" // Path: the module's name
	OpReboot       Op = "reboot"
	OpPowerOff     Op = "off"
)

// Request is one line from the test to the agent.
type Request struct {
	ID      int
	Op      Op
	Command *Command      `json:",omitempty"`
	Handle  int           `json:",omitempty"` // of a process or an open file
	Timeout time.Duration `json:",omitempty"`
	Signal  int           `json:",omitempty"`
	Group   bool          `json:",omitempty"` // signals the process group
	Path    string        `json:",omitempty"`
	Flags   int           `json:",omitempty"` // of open(2)
	Mode    uint32        `json:",omitempty"` // permissions of a written file
	Data    []byte        `json:",omitempty"`
	Params  string        `json:",omitempty"` // module parameters: "a=1 b=2"
}

// Command is a program to run inside a machine.
type Command struct {
	Args    []string      // the program, looked up in PATH, and its arguments
	Env     []string      `json:",omitempty"` // added to the agent's environment: "NAME=value"
	Dir     string        `json:",omitempty"` // working directory; "" is /
	Root    string        `json:",omitempty"` // a folder to change the root to; Args[0] is then a path below it
	Stdin   string        `json:",omitempty"`
	Timeout time.Duration `json:"-"` // after which RunCommand kills it, with its children; 0 is a minute
}

// Response is one line from the agent to the test. The first one has ID 0 and says that the agent
// is ready for requests.
type Response struct {
	ID     int
	Error  string        `json:",omitempty"` // without the text of Errno, which Err appends
	Errno  syscall.Errno `json:",omitempty"` // with Error, where the kernel gave one
	Handle int           `json:",omitempty"`
	Pid    int           `json:",omitempty"`
	Exited bool          `json:",omitempty"`
	Code   int           `json:",omitempty"` // exit status
	Signal int           `json:",omitempty"` // that ended the process
	Stdout []byte        `json:",omitempty"`
	Stderr []byte        `json:",omitempty"`
	Wall   time.Duration `json:",omitempty"` // from start to exit, or until now
	Data   []byte        `json:",omitempty"`
}

// Err returns the error of a response with the text of Errno appended, or nil. errors.Is finds
// the Errno.
func (r Response) Err() error {
	switch {
	case r.Errno != 0:
		return fmt.Errorf("%s: %w", r.Error, r.Errno)
	case r.Error != "":
		return fmt.Errorf("%s", r.Error)
	}
	return nil
}
