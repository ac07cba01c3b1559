package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpuready/gpuready/deviceplugin/allocate"
	"github.com/gpuready/gpuready/deviceplugin/mps"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/built"
)

// The DRA driver offers the GPUs that this plugin finds, and knows by its state how they are.
func TestServeDRAKeepsTheInventoryAndRegistersNothing(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet().start("--serve=dra")
	s := m.state(func(s nodestate.State) bool { return s.Phase == nodestate.Ready && len(s.DevicePlugin.Inventory) == 8 })
	require.Equal(t, nodestate.ServeDRA, s.DevicePlugin.Serve)
	require.Empty(t, s.DevicePlugin.Resources)
	sockets, err := filepath.Glob(m.path("/dp/*.sock"))
	require.NoError(t, err)
	require.Equal(t, []string{m.path("/dp/kubelet.sock")}, sockets, "no resource has a socket")

	m.sim("xid", "--gpu", "3", "--xid", "79")
	m.state(func(s nodestate.State) bool {
		return slices.ContainsFunc(s.DevicePlugin.Inventory, func(g nodestate.GPU) bool { return g.Index == 3 && g.Reason == gpu.ReasonXID })
	})
	out, err := exec.CommandContext(t.Context(), built.Path(t, "gpu-device-plugin"), append([]string{"devices"}, m.args("--serve=dra")...)...).Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "With --serve=dra the kubelet gets none of these")
	devices := m.published()
	require.Len(t, devices, 8)
	for _, d := range devices {
		require.True(t, *d.Attributes["simulated"].BoolValue)
		require.NotEmpty(t, *d.Attributes["architecture"].StringValue)
		require.Equal(t, d.Name == "gpu-3", len(d.Taints) == 1, d.Name)
	}
}

// published returns the devices that gpu-dra-driver would publish now.
func (m *machine) published() []resourceapi.Device {
	m.Helper()
	out, err := exec.CommandContext(m.Context(), built.Path(m, "gpu-dra-driver"), "devices", "-o", "json", "--node-name=node-1", "--host-root="+m.host, "--state-dir=/state").Output()
	require.NoError(m, err)
	var list struct {
		Devices []resourceapi.Device `json:"devices"`
	}
	require.NoError(m, json.Unmarshal(out, &list))
	return list.Devices
}

// Claims share a GPU by the control daemon that the configuration starts, and by none if it does not run.
func TestServeDRASharesByTheMPSControlDaemon(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "2").withKubelet().configured(mpsShared, "--mps-root", "/mps", "--serve=dra")
	reason := func(want gpu.Reason) func(nodestate.State) bool {
		return func(s nodestate.State) bool {
			return len(s.DevicePlugin.Inventory) == 2 && s.DevicePlugin.Inventory[1].Reason == want && s.DevicePlugin.Inventory[1].Sharing != nil
		}
	}
	m.state(reason(allocate.ReasonMPS))
	for _, d := range m.published() {
		require.Equal(t, "MPSNotReady", d.Taints[0].Value)
	}
	daemon := m.mpsDaemon(mpsShared)
	m.mps(serving(1, 2))
	s := m.state(reason(""))
	require.Equal(t, &nodestate.Sharing{Shares: 4, MPS: "nvidia.com/gpu"}, s.DevicePlugin.Inventory[0].Sharing)
	for _, d := range m.published() {
		require.Empty(t, d.Taints)
		require.True(t, *d.AllowMultipleAllocations)
		shares := d.Capacity["shares"].Value
		require.EqualValues(t, 4, shares.Value())
		spec, err := os.ReadFile(m.path("/var/run/cdi/gpuready-mps.yaml"))
		require.NoError(t, err)
		require.Contains(t, string(spec), "name: "+*d.Attributes["uuid"].StringValue)
		require.Contains(t, string(spec), "hostPath: "+mps.PipeDir("/mps", "nvidia.com/gpu"))
	}
	require.NoError(t, daemon.Signal(syscall.SIGKILL))
	m.state(reason(allocate.ReasonMPS))
	out, err := exec.CommandContext(t.Context(), built.Path(t, "gpu-device-plugin"), "mps-uninstall", "--host-root", m.host, "--mps-root", "/mps").CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoFileExists(t, m.path("/var/run/cdi/gpuready-mps.yaml"))
}

// label writes the node's label as the validator does.
func (m *machine) label(value string) {
	m.Helper()
	boot, err := nodestate.BootIDAt(m.host)
	require.NoError(m, err)
	require.NoError(m, nodestate.Write(m.path("/state/validator"), nodestate.State{
		Component: nodestate.Validator, BootID: boot, Phase: nodestate.Ready, Validator: &nodestate.ValidatorInfo{NodeLabels: map[string]string{}, Serve: value}}))
}

// driverKeeps writes gpu-dra-driver's answer to the latest change of who offers the GPUs.
func (m *machine) driverKeeps(switchID string, kept ...nodestate.Withheld) {
	m.Helper()
	boot, err := nodestate.BootIDAt(m.host)
	require.NoError(m, err)
	require.NoError(m, nodestate.Write(m.path("/state/dra-driver"), nodestate.State{
		Component: nodestate.DRADriver, BootID: boot, Phase: nodestate.Ready, DRADriver: &nodestate.DRADriverInfo{Serve: nodestate.ServePlugin, SwitchID: switchID, Kept: kept}}))
}

// withheld waits until the state says who offers the GPUs, and that just so many are withheld.
func (m *machine) withheld(serve string, n int) *nodestate.DevicePluginInfo {
	m.Helper()
	return m.state(func(s nodestate.State) bool {
		return s.DevicePlugin.Serve == serve && len(s.DevicePlugin.Withheld) == n && s.Reason != "Starting"
	}).DevicePlugin
}

// The node's label chooses who offers the GPUs. Pods keep what they have, whoever is killed meanwhile.
func TestTheLabelSwitchesUnderRunningPods(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet().start()
	m.wait(8)
	admitted, err := m.kubelet.Admit(soon(t), pod("job", 2))
	require.NoError(t, err)
	require.NotEmpty(t, admitted.DeviceIDs[resource])
	m.label(nodestate.ServeDRA)
	require.Empty(t, m.wait(0).Devices)
	info := m.withheld(nodestate.ServeDRA, 2)
	require.NotEmpty(t, info.SwitchID)
	for _, w := range info.Withheld {
		require.Contains(t, admitted.DeviceIDs[resource], string(w.GPU))
		require.Equal(t, gpu.Reason("HeldByPod"), w.Reason)
		require.Equal(t, "held by pod default/job, by the resource nvidia.com/gpu", w.Message)
	}
	require.NoError(t, m.process.Signal(syscall.SIGKILL))
	_, err = m.process.Wait(soon(t))
	require.NoError(t, err)
	require.NoError(t, m.kubelet.Restart())
	m.start()
	require.Equal(t, info.SwitchID, m.withheld(nodestate.ServeDRA, 2).SwitchID, "nothing has changed")
	m.kubelet.Remove("default", "job")
	m.withheld(nodestate.ServeDRA, 0)

	m.label("")                          // the flag counts
	m.wait(8)                            // gpu-dra-driver has never run
	m.withheld(nodestate.ServePlugin, 0) // the state is written after the lists are sent
	m.label(nodestate.ServeDRA)
	info = m.withheld(nodestate.ServeDRA, 0)
	m.driverKeeps("of an earlier time")
	m.label("")
	back := m.withheld(nodestate.ServePlugin, 8)
	require.NotEqual(t, info.SwitchID, back.SwitchID)
	require.Equal(t, gpu.Reason("DRADriverSilent"), back.Withheld[0].Reason)
	held := nodestate.Withheld{GPU: back.Inventory[3].UUID, Reason: "HeldByClaim", Message: "held by claim team/a"}
	m.driverKeeps(info.SwitchID)
	m.driverKeeps(back.SwitchID, held)
	r := m.wait(7)
	require.Equal(t, []int{3}, unhealthy(r))
	m.withheld(nodestate.ServePlugin, 1) // the record of it is written
	require.NoError(t, m.process.Signal(syscall.SIGKILL))
	_, err = m.process.Wait(soon(t))
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(m.path("/state/dra-driver")))
	m.start()
	m.wait(7) // by its own record
	m.driverKeeps(back.SwitchID)
	m.wait(8)

	m.label("both")
	m.state(func(s nodestate.State) bool {
		return s.Reason == "ServeLabelRefused" && s.DevicePlugin.Serve == nodestate.ServePlugin
	})
	m.wait(8)
	m.stop()
}
