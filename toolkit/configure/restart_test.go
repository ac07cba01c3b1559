package configure

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/test/lab/leak"
	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/distro"
	"github.com/gpuready/gpuready/toolkit/runtime/runtimetest"
)

func TestMain(m *testing.M) { leak.Main(m) }

// rooted opens an empty directory as a host's root.
func rooted(t *testing.T) *host.Root {
	t.Helper()
	root, err := host.Open(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	return root
}

// start starts a systemd on a host of its own.
func start(t *testing.T, units map[string]string, act runtimetest.Act) (*runtimetest.Systemd, *host.Root) {
	t.Helper()
	root := rooted(t)
	s, err := runtimetest.StartSystemd(root.Dir(), units, act)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s, root
}

func well(string, string) error { return nil }

func restart(units ...string) distro.Restart {
	return distro.Restart{Method: distro.Systemd, Units: units}
}

func TestFirstActiveUnitIsRestarted(t *testing.T) {
	s, root := start(t, map[string]string{"k3s.service": "inactive", "k3s-agent.service": "active", "x.service": "active"}, well)
	p, err := Restart(t.Context(), root, runtime.Containerd, restart("gone.service", "k3s.service", "k3s-agent.service", "x.service"), true)
	require.NoError(t, err)
	require.Equal(t, "k3s-agent.service", p.Unit)
	require.Equal(t, verbRestart, p.Verb)
	require.Positive(t, p.Took)
	require.Contains(t, p.String(), "k3s-agent.service: restart done in ")
	require.Equal(t, []string{"restart k3s-agent.service"}, s.Calls())
}

func TestDockerIsReloadedIfSufficient(t *testing.T) {
	s, root := start(t, map[string]string{"docker.service": "active"}, well)
	for _, d := range []distro.RestartMethod{distro.Systemd, distro.Reload} {
		p, err := Restart(t.Context(), root, runtime.Docker, distro.Restart{Method: d, Units: []string{"docker.service"}}, true)
		require.NoError(t, err)
		require.Equal(t, Restarted{Verb: verbReload, Unit: "docker.service", Took: p.Took}, p)
	}
	_, err := Restart(t.Context(), root, runtime.Docker, restart("docker.service"), false)
	require.NoError(t, err)
	require.Equal(t, []string{"reload docker.service", "reload docker.service", "restart docker.service"}, s.Calls())
}

func TestSystemdsOwnSocketIsUsedWithoutABus(t *testing.T) {
	root := rooted(t)
	s, err := runtimetest.StartPrivateSystemd(root.Dir(), map[string]string{"k3s.service": "inactive", "k3s-agent.service": "active"}, func(unit, verb string) error {
		if verb == "reload" {
			return errors.New("it cannot be read")
		}
		return nil
	})
	require.NoError(t, err)
	p, err := Restart(t.Context(), root, runtime.Containerd, restart("gone.service", "k3s.service", "k3s-agent.service"), false)
	require.NoError(t, err)
	require.Equal(t, Restarted{Verb: verbRestart, Unit: "k3s-agent.service", Took: p.Took}, p)
	_, err = Restart(t.Context(), root, runtime.Docker, restart("k3s-agent.service"), true)
	require.ErrorContains(t, err, "the job failed (ActiveState=failed, SubState=failed, Result=exit-code, ExecMainStatus=1, StatusText=it cannot be read)")
	require.NoError(t, s.Close())
	_, err = Restart(t.Context(), root, runtime.Docker, restart("k3s-agent.service"), true)
	require.ErrorContains(t, err, "systemd of the host is not available")
}

func TestOnlyDockerIsReloaded(t *testing.T) {
	s, root := start(t, map[string]string{"containerd.service": "active", "docker.service": "active"}, well)
	_, err := Restart(t.Context(), root, runtime.Containerd, distro.Restart{Method: distro.Reload, Units: []string{"containerd.service"}}, true)
	require.ErrorContains(t, err, `containerd cannot reload its configuration (SIGHUP ends containerd); set its restart mode to "systemd"`)
	_, err = Restart(t.Context(), root, runtime.Docker, distro.Restart{Method: distro.Reload, Units: []string{"docker.service"}}, false)
	var closed *notAllowedError
	require.ErrorAs(t, err, &closed)
	require.ErrorContains(t, err, "the change requires a restart, but the restart mode is a reload; restart Docker: systemctl restart docker.service")
	_, err = Restart(t.Context(), root, runtime.Docker, distro.Restart{Method: "window"}, false)
	require.ErrorContains(t, err, `unknown restart mode "window"; use "systemd", "reload" or "none"`)
	require.Empty(t, s.Calls())
}

func TestForbiddenRestartReturnsTheManualSteps(t *testing.T) {
	_, err := Restart(t.Context(), rooted(t), runtime.CRIO, distro.Restart{Method: distro.Manual, Message: "reboot the node with talosctl"}, false)
	var closed *notAllowedError
	require.ErrorAs(t, err, &closed)
	require.Equal(t, "reboot the node with talosctl", closed.Message)
	require.ErrorContains(t, err, "restarted by hand: reboot the node with talosctl")
}

func TestFailedJobReturnsTheReason(t *testing.T) {
	for _, c := range []struct {
		how  error
		want string
	}{
		{errors.New("cannot parse config.toml"), `restart of containerd.service: systemd reports that the job failed (ActiveState=failed, SubState=failed, Result=exit-code, ExecMainStatus=1, StatusText=cannot parse config.toml); see journalctl -u containerd.service -n 50`},
		{runtimetest.Result("timeout"), "the job took too long (ActiveState=failed, SubState=failed, Result=timeout, ExecMainStatus=1); systemd killed it then; see "},
		{runtimetest.Result("canceled"), "the job was canceled (ActiveState=failed, SubState=failed, Result=canceled, ExecMainStatus=1); another job replaced it: try again; see "},
		{runtimetest.Result("dependency"), "the job failed because a dependency failed ("},
	} {
		_, root := start(t, map[string]string{"containerd.service": "active"}, func(string, string) error { return c.how })
		_, err := Restart(t.Context(), root, runtime.Containerd, restart("containerd.service"), false)
		require.ErrorContains(t, err, c.want)
	}
}

func TestFailedUnitIsRestarted(t *testing.T) {
	var fixed atomic.Bool
	s, root := start(t, map[string]string{"containerd.service": "active"}, func(string, string) error {
		if fixed.Load() {
			return nil
		}
		return errors.New("bad configuration")
	})
	_, err := Restart(t.Context(), root, runtime.Containerd, restart("containerd.service"), false)
	require.ErrorContains(t, err, "bad configuration")
	fixed.Store(true) // the configuration was restored
	_, err = Restart(t.Context(), root, runtime.Containerd, restart("containerd.service"), false)
	require.NoError(t, err)
	require.Equal(t, []string{"restart containerd.service", "reset-failed containerd.service", "restart containerd.service"}, s.Calls())
}

func TestStoppedUnitsAreNotStarted(t *testing.T) {
	s, root := start(t, map[string]string{"k3s.service": "inactive", "deactivating.service": "deactivating"}, well)
	_, err := Restart(t.Context(), root, runtime.Containerd, restart("k3s.service", "k3s-agent.service", "deactivating.service"), false)
	require.EqualError(t, err, "restart: a running unit is not available (k3s.service is inactive, k3s-agent.service is not loaded, deactivating.service is deactivating); start the runtime, or configure its unit")
	require.Empty(t, s.Calls())
}

func TestWaitForAJobEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	_, root := start(t, map[string]string{"containerd.service": "active"}, func(string, string) error {
		cancel()
		<-release
		return nil
	})
	_, err := Restart(ctx, root, runtime.Containerd, restart("containerd.service"), false)
	close(release)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "restart of containerd.service: ")
	require.ErrorContains(t, err, "journalctl -u containerd.service")
}

func TestLostBusOrSystemdIsReported(t *testing.T) {
	started := make(chan *runtimetest.Systemd, 1)
	s, root := start(t, map[string]string{"docker.service": "active"}, func(string, string) error { return (<-started).Die() })
	started <- s
	_, err := Restart(t.Context(), root, runtime.Docker, restart("docker.service"), false)
	require.ErrorContains(t, err, "the connection ", "before the answer to the call or after")
	require.ErrorContains(t, err, " ended")

	s, root = start(t, map[string]string{"docker.service": "active"}, func(string, string) error { return (<-started).Disconnect() })
	started <- s
	_, err = Restart(t.Context(), root, runtime.Docker, restart("docker.service"), false)
	require.Regexp(t, "systemd left the bus before it (was done|responded)[;:] see systemctl status, the job may continue", err.Error())

	_, err = Restart(t.Context(), root, runtime.Docker, restart("docker.service"), false)
	require.ErrorContains(t, err, "systemd is not on this bus: check that it is the host's")
}

func TestRefusalsOfSystemdAreReported(t *testing.T) {
	s, root := start(t, map[string]string{"docker.service": "active"}, well)
	s.Refuse("org.freedesktop.DBus.Error.AccessDenied", "Permission denied")
	_, err := Restart(t.Context(), root, runtime.Docker, restart("docker.service"), false)
	require.ErrorContains(t, err, "restart of docker.service: /run/dbus/system_bus_socket: systemd refuses Manager.RestartUnit: Permission denied (org.freedesktop.DBus.Error.AccessDenied); run as root of the host, and let polkit, SELinux and AppArmor allow it")
	s.Refuse("org.freedesktop.systemd1.JobTypeNotApplicable", "Job type reload is not applicable for unit docker.service.")
	_, err = Restart(t.Context(), root, runtime.Docker, restart("docker.service"), true)
	require.ErrorContains(t, err, "the unit has no ExecReload: restart it")
	require.Empty(t, s.Calls())
}

func TestSilentBusTimesOut(t *testing.T) {
	root := rooted(t)
	dir := filepath.Join(root.Dir(), "run/dbus")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	listener, err := net.Listen("unix", filepath.Join(dir, "system_bus_socket"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, _ := listener.Accept()
		_, _ = conn.Read(make([]byte, 1)) // a client connects
		cancel()
		accepted <- conn
	}()
	_, err = Restart(ctx, root, runtime.Docker, distro.Restart{Method: distro.Reload, Units: []string{"docker.service"}}, true)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "/run/dbus/system_bus_socket: the connection was not accepted: no response in time: context canceled; check systemctl")
	require.NoError(t, (<-accepted).Close())
	require.NoError(t, listener.Close())
}

func TestErrorsTellWhetherTheRuntimeWasTouched(t *testing.T) {
	s, root := start(t, map[string]string{"containerd.service": "active", "k3s.service": "active", "broken.service": "failed", "stopped.service": "inactive"}, func(string, string) error { return errors.New("bad configuration") })
	untouched := func(root *host.Root, unit string) bool {
		_, err := Restart(t.Context(), root, runtime.Containerd, restart(unit), false)
		require.Error(t, err)
		return isNotBegun(err)
	}
	require.False(t, untouched(root, "containerd.service"), "its job failed")
	require.True(t, untouched(root, "stopped.service"))
	require.NoError(t, checkUnits(t.Context(), root, restart("containerd.service")))
	require.True(t, isNotBegun(checkUnits(t.Context(), root, restart("stopped.service"))))
	s.Refuse("org.freedesktop.DBus.Error.AccessDenied", "Permission denied")
	require.True(t, untouched(root, "k3s.service"))
	require.True(t, untouched(root, "broken.service"), "its failure cannot be reset")
	s.Refuse("org.freedesktop.DBus.Error.NoReply", "Remote peer disconnected")
	require.False(t, untouched(root, "k3s.service"), "perhaps systemd has got the request")
	require.True(t, untouched(rooted(t), "containerd.service"))
	require.True(t, isNotBegun(checkUnits(t.Context(), rooted(t), restart("containerd.service"))))
	require.NoError(t, checkUnits(t.Context(), rooted(t), distro.Restart{Method: distro.Reload}), "there are signals, too")
	require.True(t, isNotBegun(&notAllowedError{}))
}

func TestNoBusAtAll(t *testing.T) {
	root := rooted(t)
	_, err := Restart(t.Context(), root, runtime.Containerd, restart("k3s.service", "k3s-agent.service"), false)
	require.ErrorContains(t, err, "restart of k3s.service or k3s-agent.service: systemd of the host is not available: /run/dbus/system_bus_socket: ")
	require.ErrorContains(t, err, "; /run/systemd/private: ")
	require.ErrorContains(t, err, "no such file or directory: mount the host's /run/dbus")
	_, err = Restart(t.Context(), root, runtime.Docker, distro.Restart{Method: distro.Reload, Units: []string{"docker.service"}}, true)
	require.ErrorContains(t, err, "mount the host's /run/dbus; and by a signal: open /run/docker.pid: no such file or directory")
}
