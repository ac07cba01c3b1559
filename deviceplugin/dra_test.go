package main

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"

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
	out, err = exec.CommandContext(t.Context(), built.Path(t, "gpu-dra-driver"), "devices", "-o", "json", "--node-name=node-1", "--host-root="+m.host, "--state-dir=/state").Output()
	require.NoError(t, err)
	var list struct {
		Devices []resourceapi.Device `json:"devices"`
	}
	require.NoError(t, json.Unmarshal(out, &list))
	require.Len(t, list.Devices, 8)
	for _, d := range list.Devices {
		require.True(t, *d.Attributes["simulated"].BoolValue)
		require.NotEmpty(t, *d.Attributes["architecture"].StringValue)
		require.Equal(t, d.Name == "gpu-3", len(d.Taints) == 1, d.Name)
	}
}
