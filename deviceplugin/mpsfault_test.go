package main

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// write replaces the configuration of the plugin (config.yaml) or of the MPS daemon
// (mps.yaml).
func (m *machine) write(name, text string) {
	m.Helper()
	require.NoError(m, os.WriteFile(m.path(name), []byte("version: v1\n"+text), 0o644))
}

// unserved waits until no device is served by MPS, for a reason with that text.
func (m *machine) unserved(text string) nodestate.State {
	m.Helper()
	return m.state(func(s nodestate.State) bool { return s.Reason == "MPSNotReady" && strings.Contains(s.Message, text) })
}

func TestTheWordOfAKilledMPSDaemonDoesNotStand(t *testing.T) {
	m := newMachine(t).up("--gpus", "2").withKubelet().configured(mpsShared, "--mps-root", "/mps")
	daemon := m.mpsDaemon(mpsShared)
	m.wait(8)
	control := child(t, daemon)
	require.NoError(t, daemon.Signal(syscall.SIGKILL))
	m.wait(0)
	s := m.unserved("mps-daemon was killed")
	require.Contains(t, s.Message, "nvidia-device-plugin-mps-control-daemon")
	require.True(t, m.mps(serving(1, 2)).MPS.Resources[0].Ready, "what it said stands there still")
	_, err := m.admit("job", resource, 1)
	require.Error(t, err)

	// Nor does it stand for a plugin that is started after that.
	m.stop()
	m.configured(mpsShared, "--mps-root", "/mps")
	m.unserved("was killed")

	next := m.mpsDaemon(mpsShared)
	m.wait(8)
	require.NotEqual(t, control, child(t, next))
	require.Equal(t, []string{"Exclusive_Process", "Exclusive_Process"}, m.modes())
}

func TestDevicesWaitUntilPluginAndMPSDaemonHaveOneConfiguration(t *testing.T) {
	m := newMachine(t).up("--gpus", "2").withKubelet().configured(mpsShared)
	m.write("mps.yaml", mpsShared)
	m.mpsDaemon(mpsShared)
	// Their pipes are elsewhere.
	m.unserved(`its flags.mpsRoot is "/mps", not "/run/nvidia/mps"`)
	m.wait(0)
	m.write("config.yaml", "flags: {mpsRoot: /mps}\n"+mpsShared)
	m.wait(8)

	more := strings.Replace(mpsShared, "4", "8", 1)
	m.write("config.yaml", "flags: {mpsRoot: /mps}\n"+more)
	m.unserved("limits are made for 4 replicas of this GPU, not 8")
	m.wait(0)
	m.write("mps.yaml", more)
	m.wait(16)
	require.Equal(t, "12.0", m.control(resource, "get_default_active_thread_percentage"))
}

func TestTroubleOfNVMLEndsNobodysMPS(t *testing.T) {
	m := newMachine(t).up("--gpus", "3").withKubelet().configured(mpsShared, "--mps-root", "/mps")
	daemon := m.mpsDaemon(mpsShared)
	m.wait(12)
	control := child(t, daemon)
	m.sim("lose", "--gpu", "2", "--how", "gone") // and is still one of its own afterwards
	m.wait(8)
	m.sim("fail", "--events", "unknown")
	require.NoError(t, daemon.WaitOutput(soon(t), "reason=DriverFailed"))
	s := m.mps(func(s nodestate.State) bool { return s.Reason == "DriverFailed" })
	require.Equal(t, nodestate.Degraded, s.Phase)
	require.True(t, s.MPS.Resources[0].Ready, "it serves who is there")
	require.Equal(t, control, child(t, daemon))
	m.sim("fail", "--events", "none")
	m.mps(func(s nodestate.State) bool { return s.Reason != "DriverFailed" })
	m.wait(8)
	require.Equal(t, control, child(t, daemon))
	require.NotContains(t, daemon.Output(), "reason=MPSDaemonEnded")
}

func TestMPSThatIsTurnedOffLeavesNothingBehind(t *testing.T) {
	m := newMachine(t).up("--gpus", "1")
	m.mpsDaemon(mpsShared)
	m.mps(serving(1, 1))
	m.write("mps.yaml", "")
	s := m.mps(func(s nodestate.State) bool { return s.Reason == "NothingShared" && len(s.MPS.Resources) == 0 })
	require.Equal(t, nodestate.Ready, s.Phase)
	require.Equal(t, []string{"Default"}, m.modes())
	m.write("mps.yaml", mpsShared)
	m.mps(serving(1, 1))

}
