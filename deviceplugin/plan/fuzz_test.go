package plan_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// FuzzMake passes an arbitrary configuration and state through to the list for the
// kubelet. Each ID must be listed once, no GPU of the node may be both advertised and
// left out, and no fault may be forgotten.
func FuzzMake(f *testing.F) {
	divided := gputest.Node("a100-mig", 2)
	parent := divided.Devices[0]
	part := parent.MIG[0]
	state := nodestate.State{
		Version: nodestate.Version, Component: nodestate.DevicePlugin, Phase: nodestate.Ready, Time: time.Unix(1, 0),
		BootID: "00000000-0000-4000-8000-000000000000",
		DevicePlugin: &nodestate.DevicePluginInfo{
			KubeletSocket: "/k.sock",
			Resources: []nodestate.Resource{{Name: "nvidia.com/mig-1g.10gb", Devices: []nodestate.Device{{
				ID: string(part.UUID), GPU: part.UUID, Health: nodestate.Healthy,
				MIG: &nodestate.MIG{Parent: "GPU-that-is-gone", Profile: part.Profile, GPUInstance: 1},
			}}}},
			Faults: []nodestate.Fault{{GPU: parent.UUID, Reason: gpu.ReasonXID, XID: 79, Since: time.Unix(1, 0), Needs: "reload"}},
		},
	}
	text, err := json.Marshal(state)
	require.NoError(f, err)
	for _, file := range []string{
		"version: v1\nflags: {migStrategy: mixed}\n", "version: v1\nflags: {migStrategy: single}\n",
		"version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 3}]}}\n",
		"version: v1\ndevices: {exclude: [\"1\"]}\nresources: {gpus: [{pattern: '*', name: a}]}\n",
	} {
		f.Add([]byte(file), text)
	}
	f.Fuzz(func(t *testing.T, file, text []byte) {
		c, _, err := config.Parse(file, "fuzz.yaml", config.Options{})
		if err != nil {
			return
		}
		read, err := nodestate.Parse(text)
		if err != nil {
			return
		}
		for _, node := range []gpu.Snapshot{divided, gputest.Node("h100-sxm", 2), {}} {
			h := health.Restore(read).ApplySnapshot(node, time.Unix(2, 0))
			p := plan.Compute(c, node, h)
			told := map[string]bool{}
			for _, r := range p.Resources {
				for _, d := range r.Devices {
					require.False(t, told[d.ID], "%s is advertised twice", d.ID)
					told[d.ID] = true
					fault, _ := h.Verdict(d.UUID())
					require.Equal(t, fault, d.Fault)
				}
			}
			for _, l := range p.LeftOut {
				if l.MIG.UUID == "" && l.GPU != "" {
					require.False(t, told[string(l.GPU)], "%s is advertised and left out", l.GPU)
				}
			}
		}
	})
}
