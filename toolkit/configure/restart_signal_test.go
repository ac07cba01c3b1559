package configure

import (
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/test/lab/built"
	lab "github.com/gpuready/gpuready/test/lab/node"
	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/distro"
)

var reload = distro.Restart{Method: distro.Reload, Units: []string{"docker.service"}}

// process starts a process with the name, on a host whose /proc is mounted and whose PID
// file names it. The process ends by the first signal.
func process(t *testing.T, name string) (*host.Root, *exec.Cmd) {
	t.Helper()
	dir := "/run/root"
	require.NoError(t, os.MkdirAll(dir+"/proc", 0o755))
	require.NoError(t, os.MkdirAll(dir+"/run", 0o755))
	require.NoError(t, unix.Mount("proc", dir+"/proc", "proc", 0, ""))
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	program, err := os.ReadFile(sleep)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), name)
	require.NoError(t, built.WriteProgram(file, program, 0o755))
	// A child inherits a signal that nohup ignores, but not one that is caught.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP)
	defer signal.Stop(caught)
	cmd := exec.Command(file, "1000")
	require.NoError(t, cmd.Start())
	require.NoError(t, os.WriteFile(dir+pidFile, []byte(strconv.Itoa(cmd.Process.Pid)+"\n"), 0o644))
	root, err := host.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	return root, cmd
}

// endedBy returns the signal by which a process ended.
func endedBy(t *testing.T, cmd *exec.Cmd) syscall.Signal {
	t.Helper()
	_ = cmd.Wait()
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, ok)
	return status.Signal()
}

func TestDockerdIsSignalledWithoutABus(t *testing.T) {
	if !lab.Enter(t) {
		return
	}
	root, dockerd := process(t, "dockerd")
	p, err := Restart(t.Context(), root, runtime.Docker, reload, true)
	require.NoError(t, err)
	require.Equal(t, Restarted{Verb: verbReload, PID: dockerd.Process.Pid}, p)
	require.Contains(t, p.String(), "was told to reload its configuration")
	require.Equal(t, syscall.SIGHUP, endedBy(t, dockerd))
	_, err = Restart(t.Context(), root, runtime.Docker, reload, true)
	require.ErrorContains(t, err, "which cannot be found: ")
	_, err = Restart(t.Context(), root, runtime.Docker, distro.Restart{Method: distro.Systemd, Units: []string{"docker.service"}}, true)
	require.NotContains(t, err.Error(), "process", "systemd was asked for")
}

func TestOnlyDockerdIsSignalled(t *testing.T) {
	if !lab.Enter(t) {
		return
	}
	root, other := process(t, "containerd")
	_, err := Restart(t.Context(), root, runtime.Docker, reload, true)
	require.ErrorContains(t, err, `of /run/docker.pid is "containerd" and not dockerd; no signal is sent`)
	require.NoError(t, other.Process.Signal(syscall.SIGTERM))
	require.Equal(t, syscall.SIGTERM, endedBy(t, other), "and not SIGHUP, which would have come before")
	for _, text := range []string{"", "-1", "0", "x"} {
		require.NoError(t, os.WriteFile(root.Path(pidFile), []byte(text), 0o644))
		_, err = Restart(t.Context(), root, runtime.Docker, reload, true)
		require.ErrorContains(t, err, "and not a process ID", text)
	}
}

// In another process namespace the host's process IDs belong to other processes.
func TestProcessOfAnotherNamespaceIsNotSignalled(t *testing.T) {
	if dir := os.Getenv("GPUREADY_DOOR_ROOT"); dir != "" { // inside the other namespace
		root, err := host.Open(dir)
		require.NoError(t, err)
		defer root.Close()
		_, err = hangUp(root)
		require.ErrorContains(t, err, "is not in our process namespace: mount the host's /run/dbus, or set hostPID")
		return
	}
	if !lab.Enter(t) {
		return
	}
	root, dockerd := process(t, "dockerd")
	inner := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
	inner.Env = append(os.Environ(), "GPUREADY_DOOR_ROOT="+root.Dir())
	inner.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	out, err := inner.CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, dockerd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, syscall.SIGTERM, endedBy(t, dockerd))
}
