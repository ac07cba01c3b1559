package namespace

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Path returns the path under which this process sees a path of the machine. Links to absolute
// paths lead out of the machine.
func (m *Machine) Path(path string) string {
	return filepath.Join("/proc", strconv.Itoa(m.PID()), "root", path)
}

// Exec runs a program of the machine in its namespaces and returns its output. An error includes
// the end of its standard error. stdin may be nil.
func (m *Machine) Exec(ctx context.Context, stdin io.Reader, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, m.tool, append([]string{CommandEnter, strconv.Itoa(m.PID()), name}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // which also ends the program
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = stdin, &stderr
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("%s on %s: %w\n%s", name, m.name, err, lastLines(stderr.String(), 10))
	}
	return out, nil
}
