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
