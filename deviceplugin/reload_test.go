package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/built"
)

const shared = "nvidia.com/gpu.shared"

// refused waits until the state has the reason why a configuration is not in force.
func (m *machine) refused() string {
	m.Helper()
	return m.state(func(s nodestate.State) bool { return s.Phase == nodestate.Degraded && s.Reason == "ConfigRefused" }).Message
}

func (m *machine) ready() nodestate.State {
	m.Helper()
	return m.state(func(s nodestate.State) bool { return s.Phase == nodestate.Ready })
}

func TestNewConfigurationNeedsNoRestart(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet()
	path := filepath.Join(m.host, "c.yaml")
	writeFile(t, path, "version: v1\n")
	m.start("--config-file", path)
	before := m.wait(8)

	writeFile(t, path, "version: v1\nflags: {migStrategy: mixed}\n") // which changes no list here
	m.waitForOutput(`flags.migStrategy: \"none\" → \"mixed\" (`)
	writeFile(t, path, "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 4, devices: [0]}]}}\n")
	m.waitForDevices(resource, 7+4)
	writeFile(t, path+".new", "version: v1\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 2}]}}\n")
	require.NoError(t, os.Rename(path+".new", path)) // as editors do
	m.waitForDevices(shared, 16)
	require.Empty(t, m.waitForDevices(resource, 0).Devices)
	writeFile(t, path, "version: v1\n")
	after := m.wait(8)
	require.Equal(t, ids(before), ids(after))
	require.Equal(t, 1, after.Registered, "it stays registered through all of it")
	m.waitForDevices(shared, 0)
	m.ready()
	m.stop()
}

// Ignored keys are reported in the log, in a metric and in the state.
func TestIgnoredKeysAreReportedEverywhere(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet()
	path := filepath.Join(m.host, "c.yaml")
	writeFile(t, path, "version: v1\nflags: {migStrategi: none}\n")
	m.start("--config-file", path, "--unknown-keys=warn")
	m.wait(8)
	m.waitForOutput("key=flags.migStrategi ")
	keys := func(want ...string) {
		m.Helper()
		m.state(func(s nodestate.State) bool {
			return s.Phase == nodestate.Ready && slices.Equal(s.DevicePlugin.IgnoredKeys, want)
		})
	}
	keys("flags.migStrategi")

	many := "version: v1\n"
	for i := range 5000 {
		many += fmt.Sprintf("k%04d: 1\n", i)
	}
	writeFile(t, path, many)
	m.state(func(s nodestate.State) bool {
		all := s.DevicePlugin.IgnoredKeys
		return s.Phase == nodestate.Ready && len(all) == nodestate.MaxIgnoredKeys && all[63] == "and 4937 more"
	})
	writeFile(t, path, "version: v1\n")
	keys()
	m.stop()
}

func TestUnchangedResourcesAreNotDisturbed(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet()
	m.sim("mig", "--gpu", "0", "--layout", "1g.10gb,3g.40gb")
	path := filepath.Join(m.host, "c.yaml")
	writeFile(t, path, "flags: {migStrategy: mixed}\n")
	m.start("--config-file", path)
	m.waitForDevices("nvidia.com/mig-1g.10gb", 1)
	large := m.waitForDevices("nvidia.com/mig-3g.40gb", 1)
	whole := m.wait(7)
	writeFile(t, path, "flags: {migStrategy: mixed}\nsharing: {timeSlicing: {resources: [{name: nvidia.com/mig-1g.10gb, replicas: 5}]}}\n")
	m.waitForDevices("nvidia.com/mig-1g.10gb", 5)
	for name, was := range map[string]kubelettest.Resource{"nvidia.com/mig-3g.40gb": large, resource: whole} {
		now, _ := m.kubelet.Resource(name)
		require.Equal(t, 1, now.Registered, name)
		require.Equal(t, was.Lists, now.Lists, "%s: the same list is not sent again", name)
	}
}

func TestInvalidConfigurationLeavesTheOldOneInForce(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet()
	path := filepath.Join(m.host, "c.yaml")
	writeFile(t, path, sliced(2))
	m.start("--config-file", path)
	m.wait(16)
	writeFile(t, path, "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 0}]}}\n")
	require.Contains(t, m.refused(), "sharing.timeSlicing.resources[0].replicas: ")
	m.waitForOutput("the configuration is refused")
	writeFile(t, path, "sharing: {mig\n")
	m.state(func(s nodestate.State) bool { return s.Reason == "ConfigRefused" && s.Message != "" })
	require.Equal(t, 1, m.wait(16).Registered)
	writeFile(t, path, sliced(2))
	m.ready()
	require.Equal(t, 1, m.wait(16).Registered)
}

func TestMountedConfigMapIsFollowed(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet()
	dir := filepath.Join(m.host, "config")
	require.NoError(t, kubelettest.MountConfigMap(dir, map[string]string{"c.yaml": sliced(2)}))
	m.start("--config-file", filepath.Join(dir, "c.yaml"))
	m.wait(16)
	require.NoError(t, kubelettest.MountConfigMap(dir, map[string]string{"c.yaml": sliced(3)}))
	m.wait(24)
	require.NoError(t, kubelettest.MountConfigMap(dir, map[string]string{"c.yaml": sliced(4)}))
	require.Equal(t, 1, m.wait(32).Registered)
	require.NoError(t, m.process.Signal(syscall.SIGHUP))
	m.waitForOutput("SIGHUP: reading the configuration again")
}

func TestManyEditsEndWithTheLast(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet()
	path := filepath.Join(m.host, "c.yaml")
	writeFile(t, path, sliced(2))
	m.start("--config-file", path)
	m.wait(16)
	for i := range 100 {
		writeFile(t, path, sliced(2+i%7))
		if i%10 == 3 {
			writeFile(t, path, "none: such\n")
		}
	}
	const last = 2 + 99%7
	require.Equal(t, 1, m.wait(8*last).Registered)
	m.state(func(s nodestate.State) bool {
		return s.Phase == nodestate.Ready && s.DevicePlugin.Resources[0].Devices[0].Replicas == last
	})
}

func TestNewXIDPolicyAppliesToFutureEvents(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet()
	path := filepath.Join(m.host, "c.yaml")
	writeFile(t, path, "version: v1\n")
	m.start("--config-file", path)
	m.wait(8)
	m.sim("xid", "--gpu", "3", "--xid", "13") // an application's own error
	m.waitForOutput("XID that is not held against the GPU")
	writeFile(t, path, "health: {xids: [{xid: 13, action: unhealthy}]}\n")
	m.waitForOutput("a new configuration is in force")
	m.sim("xid", "--gpu", "2", "--xid", "13")
	require.Equal(t, []int{2}, unhealthy(m.wait(7)))
}

func TestNewDriverRootKeepsTheSockets(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet()
	path := filepath.Join(m.host, "c.yaml")
	writeFile(t, path, "flags: {nvidiaDriverRoot: /driver}\n")
	args := []string{"--host-root", m.host, "--kubelet-socket", "/dp/kubelet.sock", "--state-dir", "/state", "--listen=", "--config-file", path}
	m.process = built.Start(m, "gpu-device-plugin", args)
	m.wait(8)
	require.NoError(t, os.Mkdir(m.path("/other"), 0o755))
	require.NoError(t, os.Rename(m.path("/driver"), m.path("/other/driver")))
	t.Cleanup(func() { _ = os.Rename(m.path("/other/driver"), m.path("/driver")) })
	writeFile(t, path, "flags: {nvidiaDriverRoot: /other/driver}\n")
	m.waitForOutput("executing this program again with the same sockets")
	m.state(func(s nodestate.State) bool {
		return s.Driver != nil && s.Driver.Root == "/other/driver" && s.Phase == nodestate.Ready
	})
	m.wait(8)
}

func TestNothingIsServedBeforeAChoice(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet()
	dir := filepath.Join(m.host, "configs")
	require.NoError(t, kubelettest.MountConfigMap(dir, map[string]string{"default": "version: v1\n", "sliced": sliced(2)}))
	boot, err := nodestate.BootIDAt(m.host)
	require.NoError(t, err)
	m.start("--config-dir", dir)
	m.state(func(s nodestate.State) bool { return s.Phase == nodestate.Waiting && s.Reason == "ConfigNotChosen" })
	_, known := m.kubelet.Resource(resource)
	require.False(t, known)
	choose(t, m.host, boot, map[string]string{nodestate.ConfigLabel: "sliced"})
	m.wait(16)

	choose(t, m.host, boot, map[string]string{nodestate.ConfigLabel: "slicked"})
	require.Contains(t, m.refused(), `no configuration is called "slicked"`)
	m.wait(16)
	choose(t, m.host, boot, map[string]string{})
	m.wait(8) // default
	require.NoError(t, kubelettest.MountConfigMap(dir, map[string]string{"default": sliced(3), "sliced": sliced(2)}))
	require.Equal(t, 1, m.wait(24).Registered)
	m.stop()

	m.start("--config-dir", dir) // the validator's state of this boot is still valid
	m.wait(24)
	require.NotContains(t, m.process.Output(), "ConfigNotChosen")
}

func TestInvalidFirstChoiceIsReported(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet()
	dir := filepath.Join(m.host, "configs")
	writeFile(t, filepath.Join(dir, "a"), "version: v1\n")
	boot, err := nodestate.BootIDAt(m.host)
	require.NoError(t, err)
	choose(t, m.host, boot, map[string]string{nodestate.ConfigLabel: "b"})
	m.start("--config-dir", dir)
	s := m.state(func(s nodestate.State) bool { return s.Phase == nodestate.Failed })
	require.Equal(t, gpu.Reason("ConfigRefused"), s.Reason)
	writeFile(t, filepath.Join(dir, "b"), sliced(2))
	m.wait(16)
}

// upgraded replaces the driver under the plugin, which then executes itself again.
func (m *machine) upgraded(version string) nodestate.State {
	m.Helper()
	m.up("--driver-version", version)
	return m.state(func(s nodestate.State) bool {
		return s.Driver != nil && s.Driver.Version == version && s.DevicePlugin.Registered && s.Reason != "Starting"
	})
}

func TestInvalidFileDoesNotEndThePluginDuringADriverUpgrade(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet()
	path := filepath.Join(m.host, "c.yaml")
	writeFile(t, path, sliced(2))
	m.start("--config-file", path)
	m.wait(16)
	writeFile(t, path, "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 0}]}}\n")
	m.refused()
	m.upgraded("590.10.01")
	require.Contains(t, m.refused(), "sharing.timeSlicing.resources[0].replicas: ")
	m.wait(16)

	require.NoError(t, os.Remove(path))
	m.state(func(s nodestate.State) bool { return strings.Contains(s.Message, "there is no such file") })
	m.upgraded("590.10.02") // what was handed over is handed over again
	require.Contains(t, m.refused(), "there is no such file")
	m.wait(16)
	writeFile(t, path, sliced(3))
	m.wait(24)
	m.ready()
	m.upgraded("590.10.03")
	m.wait(24)
	m.ready()
	m.stop()
}

func TestChoiceOutlivesADriverUpgrade(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet()
	dir := filepath.Join(m.host, "configs")
	require.NoError(t, kubelettest.MountConfigMap(dir, map[string]string{"sliced": sliced(2)}))
	boot, err := nodestate.BootIDAt(m.host)
	require.NoError(t, err)
	choose(t, m.host, boot, map[string]string{nodestate.ConfigLabel: "sliced"})
	m.start("--config-dir", dir)
	m.wait(16)
	choose(t, m.host, boot, map[string]string{nodestate.ConfigLabel: "slicked"})
	m.refused()
	require.NoError(t, os.RemoveAll(m.path("/state/validator")))
	m.upgraded("590.10.01")
	require.Contains(t, m.refused(), `no configuration is called "slicked"`)
	m.wait(16)
	require.NoError(t, kubelettest.MountConfigMap(dir, map[string]string{"sliced": sliced(2), "slicked": sliced(3)}))
	m.wait(24)
	m.ready()
	require.NotContains(t, m.process.Output(), "ConfigNotChosen")
}

func TestHangupNeverEndsThePlugin(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet()
	path := filepath.Join(m.host, "c.yaml")
	writeFile(t, path, sliced(2))
	m.start("--config-file", path)
	m.waitForOutput("starting")
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // as fast as possible, also while it is being replaced and while it ends
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = m.process.Signal(syscall.SIGHUP)
			}
		}
	}()
	m.wait(16)
	for _, version := range []string{"590.10.01", "590.10.02", "590.10.03"} {
		m.upgraded(version)
		m.wait(16)
	}
	m.stop()
	close(stop)
	<-stopped
}

func TestRefusedConfigurationIsReportedIfNothingIsServed(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet()
	path := filepath.Join(m.host, "c.yaml")
	writeFile(t, path, "devices: {include: [GPU-00000000-0000-0000-0000-000000000000]}\n")
	m.start("--config-file", path)
	m.state(func(s nodestate.State) bool { return s.Phase == nodestate.Ready && s.Reason == "NothingAdvertised" })
	writeFile(t, path, "devices: {includes: []}\n")
	require.Contains(t, m.refused(), "devices.includes")
}

func sliced(replicas int) string {
	return fmt.Sprintf("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: %d}]}}\n", replicas)
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

// choose writes the validator's state with the node's labels.
func choose(t testing.TB, host, boot string, labels map[string]string) {
	t.Helper()
	require.NoError(t, nodestate.Write(filepath.Join(host, "state", "validator"), nodestate.State{
		Component: nodestate.Validator, BootID: boot, Phase: nodestate.Ready, Validator: &nodestate.ValidatorInfo{NodeLabels: labels},
	}))
}
