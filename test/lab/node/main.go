package node

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/test/lab/namespace"
)

// reaperVariable makes a process the reaper of another one.
const reaperVariable = "GPUREADY_RUNTIMES_REAP"

// Main is the body of a TestMain. It fetches the programs of all runtimes, which takes minutes the
// first time, starts the process that cleans up after this one, and runs the tests. It returns the
// exit code. Without wanted it only runs the tests, which must then skip themselves.
func Main(m *testing.M, wanted bool) int {
	switch {
	case os.Getenv(reaperVariable) != "":
		return reportError(reap())
	case Inside() || !wanted:
		return m.Run()
	}
	program.OutliveReaders()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	p, err := ensure(ctx, os.Stderr)
	stop()
	if err == nil {
		err = p.export()
	}
	if err != nil {
		return reportError(err)
	}
	done, err := startReaper()
	if err != nil {
		return reportError(err)
	}
	code := m.Run()
	return max(code, reportError(done()))
}

// reportError prints an error and returns its exit code.
func reportError(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "runtimes:", err)
	return 1
}

// startReaper starts a process that outlives this one; done lets it clean up and waits for it.
func startReaper() (done func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cmd := exec.Command(self) //nolint:noctx // it must outlive everything here
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=gpuready-%d-", reaperVariable, os.Getpid()))
	cmd.Stdin, cmd.Stderr = theirs, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C in a terminal must not reach it
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the process that cleans up: %w", err)
	}
	return func() error {
		_ = ours.Close()
		return cmd.Wait()
	}, nil
}

// reap waits until its parent and the processes of its nodes have ended, and removes the nodes'
// control groups.
func reap() error {
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	hierarchies, err := namespace.HostHierarchies()
	if err != nil {
		return err
	}
	for _, name := range namespace.FindGroups(hierarchies, os.Getenv(reaperVariable)) {
		if err := namespace.RemoveGroups(hierarchies, name); err != nil {
			return err
		}
	}
	return nil
}
