package daemon

import (
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/configure"
	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/distro"
	"github.com/gpuready/gpuready/toolkit/runtime/runtimetest"
)

const (
	configFile = "/etc/containerd/config.toml"
	byHand     = "version = 2\n# do not touch\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"pause\"\n"
)

// containerd is a runtime with a configuration that systemd can restart.
type containerd struct {
	m       *machine
	systemd *runtimetest.Systemd
	takes   bool // CDI is on if the configuration turns it on

	mu      sync.Mutex
	runtime *runtimetest.CRI
}

func (m *machine) containerd(takes bool) *containerd {
	m.t.Helper()
	m.conf.Configure, m.conf.CDI = true, true
	m.conf.Runtime = distro.Settings{Runtime: "containerd", RestartMode: "systemd"}
	require.NoError(m.t, os.MkdirAll(m.dir+"/etc/containerd", 0o755))
	require.NoError(m.t, os.WriteFile(m.dir+configFile, []byte(byHand), 0o644))
	c := &containerd{m: m, takes: takes}
	var err error
	c.systemd, err = runtimetest.StartSystemd(m.dir, map[string]string{"containerd.service": "active"}, func(string, string) error { return c.start() })
	require.NoError(m.t, err)
	m.t.Cleanup(func() { require.NoError(m.t, c.systemd.Close()) })
	m.t.Cleanup(func() { require.NoError(m.t, c.runtime.Stop()) })
	require.NoError(m.t, c.start())
	return c
}

// start restarts the runtime with its current file.
func (c *containerd) start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runtime != nil {
		if err := c.runtime.Stop(); err != nil {
			return err
		}
	}
	data, err := os.ReadFile(c.m.dir + configFile)
	if err != nil {
		return err
	}
	on := c.takes && strings.Contains(string(data), "enable_cdi = true")
	c.runtime, err = runtimetest.StartCRI(c.m.dir+"/run/containerd/containerd.sock", runtimetest.CRIConfig{
		Name: "containerd", Version: "1.7.24", CDI: &on, Dirs: []string{"/etc/cdi", "/var/run/cdi"}, Handlers: []string{"runc"},
	})
	return err
}

func (c *containerd) file() string {
	c.m.t.Helper()
	data, err := os.ReadFile(c.m.dir + configFile)
	require.NoError(c.m.t, err)
	return string(data)
}

func TestCDIIsTurnedOnIfAllowed(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	m.install("", 1)
	c := m.containerd(true)
	stop, log := m.run()
	on := func(s nodestate.State) bool {
		return s.Phase == nodestate.Ready && s.Toolkit.Runtime != nil && s.Toolkit.Runtime.CDI != nil && *s.Toolkit.Runtime.CDI
	}
	m.await("CDI on", on)
	require.Contains(t, c.file(), "# do not touch")
	require.Equal(t, []string{"restart containerd.service"}, c.systemd.Calls())
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "container runtime is configured") }, patience, time.Millisecond)

	// Another program removes the setting.
	require.NoError(t, os.WriteFile(m.dir+configFile, []byte(byHand), 0o644))
	require.NoError(t, c.start())
	require.Eventually(t, func() bool { return len(c.systemd.Calls()) == 2 }, patience, time.Millisecond)
	m.await("on again", on)
	written := c.file()
	require.NoError(t, stop())
	require.Equal(t, written, c.file(), "the end changes nothing")
}

func TestRejectedConfigurationIsUndoneAndReported(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	m.install("", 1)
	c := m.containerd(false)
	_, _ = m.run()
	s := m.await("refused", func(s nodestate.State) bool { return s.Reason == configure.ReasonRefused })
	require.Contains(t, s.Message, "enable_cdi = true")
	require.Contains(t, s.Message, "its old configuration is back")
	require.Equal(t, byHand, c.file())
	require.Len(t, s.Toolkit.Specs, 3, "specifications are written all the same")
	require.Len(t, c.systemd.Calls(), 2)
}

func TestReasonIsSystemdsIfItCannotBeAsked(t *testing.T) {
	for name, c := range map[string]struct {
		breaks func(*containerd)
		said   string
	}{
		"no bus": {func(c *containerd) {
			require.NoError(c.m.t, os.Rename(c.m.dir+"/run/dbus", c.m.dir+"/run/elsewhere"))
		}, "mount the host's /run/dbus"},
		"not permitted": {func(c *containerd) {
			c.systemd.Refuse("org.freedesktop.DBus.Error.AccessDenied", "Permission denied")
		}, "let polkit, SELinux and AppArmor allow it"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, gputest.Node("t4", 1))
			m.install("", 1)
			runtime := m.containerd(true)
			c.breaks(runtime)
			_, _ = m.run()
			s := m.await("not restarted", func(s nodestate.State) bool { return s.Reason == configure.ReasonUnavailable })
			require.Contains(t, s.Message, "enable_cdi = true")
			require.Contains(t, s.Message, c.said)
			require.NotContains(t, s.Message, "did not take")
			require.Equal(t, byHand, runtime.file())
			require.Empty(t, runtime.systemd.Calls())
		})
	}
}

func TestRepairsOfAnotherWritersChangesAreLimited(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	m.install("", 1)
	c := m.containerd(true)
	_, log := m.run()
	for i := range maxRepairs {
		require.Eventually(t, func() bool { return strings.Count(log.String(), "container runtime is configured") == i+1 }, patience, time.Millisecond, "it is proven, too")
		require.NoError(t, os.WriteFile(m.dir+configFile, []byte(byHand), 0o644))
		require.NoError(t, c.start())
	}
	s := m.await("given up", func(s nodestate.State) bool { return s.Reason == configure.ReasonConfig })
	require.Contains(t, s.Message, "somebody else writes")
	require.Equal(t, byHand, c.file())
	require.Len(t, c.systemd.Calls(), maxRepairs)
}

func TestRuntimeIsNotConfiguredUnlessAllowed(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	m.install("", 1)
	c := m.containerd(true)
	m.conf.Configure = false
	_, _ = m.run()
	s := m.await("degraded", func(s nodestate.State) bool { return s.Reason == runtime.ReasonDisabled })
	require.Contains(t, s.Message, "set enable_cdi = true")
	require.Equal(t, byHand, c.file())
	require.Empty(t, c.systemd.Calls())
}
