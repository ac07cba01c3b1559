package output

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// ReasonBuildFailed is the reason of the errors that Refuse returns.
const ReasonBuildFailed gpu.Reason = "BuildFailed" // modules could not be compiled, linked or signed

// maxMessage bounds an error's text, in bytes.
const maxMessage = 1024

// afterKill bounds the wait for output after a program and its children were killed.
const afterKill = 10 * time.Second

// BuildError returns err as a *kernel.Error with ReasonBuildFailed, with a hint if there is one.
// It returns a *kernel.Error unchanged.
func BuildError(doing string, err error) error {
	if _, already := errors.AsType[*kernel.Error](err); already {
		return err
	}
	text := fmt.Sprintf("%s: %v", doing, err)
	if _, isFailure := errors.AsType[*Failure](err); !isFailure {
		if h := findHint("", err.Error()); h != "" {
			text += "; " + h
		}
	}
	return &kernel.Error{Reason: ReasonBuildFailed, Message: record.Clean(text, maxMessage), Err: err}
}

// Environment returns the whole environment for compilers and their tools. Messages are in
// English, in ASCII.
func Environment(temp string) []string {
	path := os.Getenv("PATH")
	if path == "" {
		path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	return []string{"PATH=" + path, "HOME=" + temp, "TMPDIR=" + temp, "LC_ALL=C", "TERM=dumb"}
}

// Run runs a program and parses its output. It kills the whole process group when ctx ends.
// The error is o.Failure if the output has one.
func (o *Output) Run(ctx context.Context, env []string, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = afterKill
	cmd.Stdout, cmd.Stderr = o, o
	err := cmd.Run()
	if err != nil && cmd.Process != nil {
		waitForGroup(cmd.Process.Pid)
	}
	o.Finish()
	switch {
	case err == nil:
		return nil
	case o.Failure != nil:
		return o.Failure
	}
	return fmt.Errorf("%s: %w; its last line: %s", filepath.Base(program), err, o.Last)
}

// waitForGroup kills the rest of a process group and waits for its end: a killed compiler may
// write files for a moment longer. If this process is the first one of a container, it also
// reaps the orphaned descendants.
func waitForGroup(group int) {
	for begun := time.Now(); time.Since(begun) < afterKill; time.Sleep(time.Millisecond) {
		_ = syscall.Kill(-group, syscall.SIGKILL)
		for {
			if pid, err := syscall.Wait4(-group, nil, syscall.WNOHANG, nil); err != nil || pid <= 0 {
				break
			}
		}
		if errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) {
			return
		}
	}
}
