// Package supervisor keeps daemons running: foreground daemons, and daemons that fork and write
// a PID file.
//
// Each daemon has a goroutine that starts it, waits until it is ready, waits until it ends, and
// restarts it after an exponential back-off. The failure of a daemon does not affect others.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

const (
	firstPause = time.Second // before the first restart of a daemon
	lastPause  = time.Minute
	steady     = 10 * time.Minute // the time of readiness after which the back-off is reset
	maxReason  = 1000             // bytes of the error of Ready
)

// Clock provides the time. Tests set it.
type Clock interface {
	Now() time.Time
	// NewTimer returns a channel that receives the time after d, and a function that stops the
	// timer.
	NewTimer(d time.Duration) (<-chan time.Time, func())
}

type realClock struct{}

func (realClock) Now() time.Time { return time.Now() }
func (realClock) NewTimer(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

// Daemon is a program to be kept running.
//
// A forking daemon is ready when the started program has exited with 0 and PIDFile names the
// process that it left. Any daemon is ready only when Ready, if set, exists.
type Daemon struct {
	Name         string
	Why          string // its purpose on this machine
	Required     bool   // whether GPUs are unusable without it
	Path         string
	Args         []string
	RestartArgs  []string // additional arguments for a restart
	Env          []string // in addition to the supervisor's
	Dirs         []string // created first
	Files        []File   // written first
	Forks        bool
	PIDFile      string // written by the daemon; "": none
	Ready        string // path of a socket; "": none
	LogFile      string // written by the daemon besides its output; "": none
	StartTimeout time.Duration
	After        []string // names of daemons that must have become ready
}

// File is written before a daemon is started.
type File struct {
	Path string
	Data []byte
}

// withRoot returns the daemon with its paths relative to this process's root. /run is the same in
// each root.
func (d Daemon) withRoot(root string) Daemon {
	if root == "" {
		return d
	}
	at := func(path string) string {
		if path == "" {
			return ""
		}
		path = filepath.Clean(path)
		if strings.HasPrefix(path, "/var/run/") {
			path = path[len("/var"):]
		}
		if strings.HasPrefix(path, "/run/") {
			return path
		}
		return filepath.Join(root, path)
	}
	d.PIDFile, d.Ready, d.LogFile = at(d.PIDFile), at(d.Ready), at(d.LogFile)
	d.Dirs, d.Files = slices.Clone(d.Dirs), slices.Clone(d.Files)
	for i := range d.Dirs {
		d.Dirs[i] = at(d.Dirs[i])
	}
	for i := range d.Files {
		d.Files[i].Path = at(d.Files[i].Path)
	}
	return d
}

// Config configures a Supervisor.
type Config struct {
	Daemons     []Daemon // in the order in which they are started
	Root        string   // root of the daemons, with the node's /run in it; "": this process's
	Env         []string // of every daemon
	Syslog      string   // socket that receives the daemons' logs, "/dev/log"; "": none
	StatusFile  string   // file that gets "Ready" or "NotReady"; "": none
	Report      func([]Status)
	Log         *slog.Logger
	StopTimeout time.Duration // from SIGTERM to SIGKILL, and after that; 0: 10 s
	Clock       Clock         // nil: the real one
}

// Status is the status of one daemon.
type Status struct {
	Name      string
	Required  bool
	Running   bool
	Ready     bool
	PID       int // while it runs
	Restarts  int
	LastExit  string   // "exit status 1", "signal: killed", or why it could not be started; "": it has not ended
	LastLines []string // of its output or its log, the newest last
}

// Supervisor keeps daemons running. Its methods may be called concurrently.
type Supervisor struct {
	Config
	keepers []*keeper
	changed sync.Mutex // held while a change is reported, so that changes are reported in order
	written string     // in StatusFile; guarded by changed
	syslog  *syslog    // set while Run runs

	mu       sync.Mutex
	stopping bool
}

// New returns a Supervisor that has started no daemon.
func New(c Config) *Supervisor {
	if c.Clock == nil {
		c.Clock = realClock{}
	}
	if c.StopTimeout == 0 {
		c.StopTimeout = 10 * time.Second
	}
	if c.Report == nil {
		c.Report = func([]Status) {}
	}
	s := &Supervisor{Config: c}
	for _, d := range c.Daemons {
		s.keepers = append(s.keepers, newKeeper(s, d.withRoot(c.Root)))
	}
	return s
}

// Run starts the daemons in order, each when the one before it is ready or has failed for
// the first time, and keeps them running until ctx ends. It then ends them in reverse
// order, and returns an error that names those that did not end.
//
// Run calls Report with all states whenever one has changed, never concurrently. Report must
// not wait for Run.
func (s *Supervisor) Run(ctx context.Context) error {
	s.updateStates(func() {})
	if s.Syslog != "" && len(s.keepers) > 0 {
		var err error
		if s.syslog, err = listenSyslog(s.Syslog, s.recordLine); err != nil { // the daemons run without it
			s.Log.Warn("the logs of the driver's daemons are not received", "message", err.Error())
		}
	}
	life := context.WithoutCancel(ctx)
	stops := make([]context.CancelFunc, len(s.keepers))
	ended := make([]chan error, len(s.keepers))
	before := make(chan struct{})
	close(before)
	for i, k := range s.keepers {
		one, stop := context.WithCancel(life)
		defer stop()
		stops[i], ended[i] = stop, make(chan error, 1)
		after := before
		go func() { ended[i] <- k.keepRunning(one, after) }()
		before = k.decided
	}
	<-ctx.Done()
	s.updateStates(func() { s.stopping = true })
	var errs []error
	for i := range slices.Backward(s.keepers) {
		stops[i]()
		errs = append(errs, <-ended[i])
	}
	return errors.Join(append(errs, s.syslog.close())...)
}

// recordLine records a line that a program has logged by syslog(3). It adds a daemon's line to
// the daemon's last lines, and logs any other.
func (s *Supervisor) recordLine(ident, line string) {
	for _, k := range s.keepers {
		if k.Name == ident {
			k.tail.addLine(line)
			return
		}
	}
	s.Log.Info("a program logs", "name", ident, "line", record.Clean(line, maxLine))
}

// Status returns the states of all daemons, in the order of the plan.
func (s *Supervisor) Status() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Status
	for _, k := range s.keepers {
		status := k.status
		status.LastLines = k.tail.lastLines()
		all = append(all, status)
	}
	return all
}

// Ready returns nil when all daemons have been started and the required ones are ready, else
// an error of at most 1 kB with the reason.
func (s *Supervisor) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return errors.New("the driver's daemons are being stopped")
	}
	var why []string
	for _, k := range s.keepers {
		switch st := k.status; {
		case st.Ready || !st.Required && isClosed(k.decided):
		case st.LastExit == "":
			why = append(why, st.Name+" is starting")
		default:
			text := fmt.Sprintf("%s is not ready: %s, started again %d times", st.Name, st.LastExit, st.Restarts)
			if lines := k.tail.lastLines(); len(lines) > 0 {
				text += "; it said: " + strings.Join(lines[max(len(lines)-3, 0):], " / ")
			}
			why = append(why, text)
		}
	}
	if why == nil {
		return nil
	}
	each := maxReason/len(why) - len("; ")
	for i := range why {
		why[i] = record.Clean(why[i], each)
	}
	return errors.New(strings.Join(why, "; "))
}

// updateStates applies a change to the states, and reports it.
func (s *Supervisor) updateStates(change func()) {
	s.changed.Lock()
	defer s.changed.Unlock()
	s.mu.Lock()
	change()
	s.mu.Unlock()
	s.writeStatus()
	s.Report(s.Status())
}

func (s *Supervisor) writeStatus() {
	text := "Ready\n"
	if s.Ready() != nil {
		text = "NotReady\n"
	}
	if s.StatusFile == "" || text == s.written {
		return
	}
	s.written = text
	// An outdated status must not remain.
	if err := record.Replace(s.StatusFile, []byte(text)); err != nil {
		s.written = ""
		s.Log.Error("the readiness of the driver's daemons cannot be written", "message", err.Error())
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
