package configure

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host"
)

// pidFile is dockerd's default PID file (daemon/config, Pidfile).
const pidFile = "/run/docker.pid"

// hangUp sends SIGHUP to dockerd and returns its process ID. The signal goes to the process
// that was checked, by its directory in the host's /proc. The kernel refuses it for a
// process outside of our process namespace.
func hangUp(root *host.Root) (int, error) {
	data, err := root.ReadFile(pidFile, 64)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || pid < 1 {
		return 0, fmt.Errorf("%s holds %q and not a process ID", pidFile, data)
	}
	process, err := os.Open(root.Path(path.Join("/proc", strconv.Itoa(pid))))
	if err != nil {
		return 0, fmt.Errorf("%s names process %d, which cannot be found: %w; check that the host's /proc is mounted", pidFile, pid, err)
	}
	defer process.Close()
	fd := int(process.Fd())
	name, err := processName(fd)
	if err != nil {
		return 0, fmt.Errorf("process %d of %s: %w", pid, pidFile, err)
	}
	if name != "dockerd" {
		return 0, fmt.Errorf("process %d of %s is %q and not dockerd; no signal is sent", pid, pidFile, name)
	}
	switch err := unix.PidfdSendSignal(fd, unix.SIGHUP, nil, 0); {
	case err == nil:
		return pid, nil
	case errors.Is(err, unix.EINVAL):
		return 0, fmt.Errorf("dockerd (process %d) is not in our process namespace: mount the host's /run/dbus, or set hostPID", pid)
	case errors.Is(err, unix.EPERM):
		return 0, fmt.Errorf("no permission to signal dockerd (process %d): run as root with CAP_KILL, or mount the host's /run/dbus", pid)
	default:
		return 0, fmt.Errorf("dockerd (process %d) cannot be signalled: %w", pid, err)
	}
}

// processName returns the name of the process whose directory is open.
func processName(process int) (string, error) {
	fd, err := unix.Openat(process, "comm", unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", fmt.Errorf("its name cannot be read: %w", err)
	}
	f := os.NewFile(uintptr(fd), "comm")
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 64)) // TASK_COMM_LEN is 16
	return strings.TrimSuffix(string(data), "\n"), err
}
