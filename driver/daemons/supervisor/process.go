package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// BecomeSubreaper makes orphaned descendants of this process its children, so that exit codes
// of daemons that fork are known and nothing stays a zombie. It applies to the whole process:
// orphans of other programs become children, too, and stay zombies unless the caller waits for
// them. A Supervisor also works without it.
func BecomeSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the subreaper of orphans: %w", err)
	}
	return nil
}

// pollInterval is the interval at which old kernels are polled for a process that is not a child.
const pollInterval = time.Second

// process is a program that runs or has run. A goroutine of its own waits for it.
type process struct {
	*os.Process
	group int           // its own process group; 0: none
	done  chan struct{} // closed when it has ended
	how   string        // how it ended; set once done
	ok    bool          // whether its exit code was 0; set once done
}

// startProcess starts a command in a new session, and in root unless that is "".
func startProcess(cmd *exec.Cmd, root string) (*process, error) {
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Chroot: root}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{Process: cmd.Process, group: cmd.Process.Pid, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		err := cmd.Wait()
		p.ok = err == nil
		if p.how = "exit status 0"; err != nil {
			p.how = err.Error()
		}
	}()
	return p, nil
}

// errNoProcess is returned if a PID file names no process of the daemon.
var errNoProcess = errors.New("no process of the daemon")

// findProcess returns the process that a PID file names, if it runs the program.
func findProcess(pidFile, program string) (*process, error) {
	data, err := record.Read(pidFile, 32)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoProcess, err)
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(data)))
	if err != nil || pid < 2 || pid == os.Getpid() {
		return nil, fmt.Errorf("%w: %s has %.20q", errNoProcess, pidFile, data)
	}
	return openProcess(pid, program)
}

// openProcess returns the process with a PID, if it runs the program.
func openProcess(pid int, program string) (*process, error) {
	found, err := os.FindProcess(pid)
	if err != nil {
		return nil, fmt.Errorf("%w: process %d: %w", errNoProcess, pid, err)
	}
	want, err := os.Stat(program)
	if err != nil {
		return nil, err
	}
	// PIDs are reused: check the program after the process was opened.
	runs, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil || !os.SameFile(want, runs) || found.Signal(unix.Signal(0)) != nil {
		_ = found.Release()
		return nil, fmt.Errorf("%w: process %d does not run %s", errNoProcess, pid, program)
	}
	p := &process{Process: found, done: make(chan struct{})}
	if group, err := unix.Getpgid(pid); err == nil && group == pid {
		p.group = group
	}
	go func() {
		defer close(p.done)
		p.waitForExit()
	}()
	return p, nil
}

// listForked returns the children of a process that run the same program.
func (p *process) listForked(program string) []*process {
	var all []*process
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.Pid))
	for _, file := range files {
		data, _ := os.ReadFile(file)
		for number := range strings.FieldsSeq(string(data)) {
			pid, err := strconv.Atoi(number)
			if err != nil {
				continue
			}
			if child, err := openProcess(pid, program); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}

// waitForExit waits for a process that may be no child of this one.
func (p *process) waitForExit() {
	state, err := p.Wait()
	if err == nil {
		p.how, p.ok = state.String(), state.Success()
		return
	}
	p.how = "its exit code is not known, as this process is not its parent"
	fd, err := unix.PidfdOpen(p.Pid, 0)
	if errors.Is(err, unix.ENOSYS) { // before Linux 5.3, such as RHEL 8: poll
		for p.Signal(unix.Signal(0)) == nil {
			time.Sleep(pollInterval)
		}
		return
	}
	if err != nil {
		if !errors.Is(err, unix.ESRCH) {
			p.how = fmt.Sprintf("it cannot be waited for: %v", err)
		}
		return
	}
	defer func() { _ = unix.Close(fd) }()
	if p.Signal(unix.Signal(0)) != nil {
		return
	}
	for {
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// killGroup kills a process and its group.
func (p *process) killGroup() {
	_ = p.Signal(unix.SIGKILL)
	if p.group != 0 {
		_ = unix.Kill(-p.group, unix.SIGKILL)
	}
}

// reapGroup kills the rest of the group of an ended process. The returned channel is closed
// when those that are children of this process have ended; nil: nothing was left.
func (p *process) reapGroup() <-chan struct{} {
	if p.group == 0 || unix.Kill(-p.group, unix.SIGKILL) != nil {
		return nil
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			if _, err := unix.Wait4(-p.group, nil, 0, nil); err != nil && !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}()
	return done
}

// output reads what a daemon prints.
type output struct {
	r    *os.File
	to   *tail
	done chan struct{}
}

// newOutput returns an output and the file to which the daemon writes.
func newOutput(to *tail) (*output, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	o := &output{r: r, to: to, done: make(chan struct{})}
	go func() {
		defer close(o.done)
		for buffer := make([]byte, 4096); ; {
			n, err := r.Read(buffer)
			to.write(buffer[:n])
			if err != nil {
				return
			}
		}
	}()
	return o, w, nil
}

// close stops reading at the end of the present data, even if another process has the pipe
// open.
func (o *output) close() {
	_ = o.r.SetReadDeadline(time.Unix(1, 0))
	<-o.done
	_ = o.r.SetReadDeadline(time.Time{})
	if raw, err := o.r.SyscallConn(); err == nil {
		_ = raw.Read(func(fd uintptr) bool {
			for buffer, room := make([]byte, 4096), 1<<20; room > 0; {
				n, err := unix.Read(int(fd), buffer)
				if n <= 0 && !errors.Is(err, unix.EINTR) {
					break
				}
				o.to.write(buffer[:max(n, 0)])
				room -= n
			}
			return true
		})
	}
	_ = o.r.Close()
	o.to.flushLine()
}
