package inventory

import (
	"testing"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

func TestPodsAreEvictedForTheChosenFaultsOnly(t *testing.T) {
	xid, lost := h100(1), h100(2)
	xid.Condition, lost.Condition = broken(gpu.ReasonXID), broken(gpu.ReasonLost)
	part := mig(h100(3), nodestate.MIGDevice{UUID: "MIG-1", Profile: "1g.10gb", GPUInstance: 7, Condition: broken(gpu.ReasonXID)})
	inv := New(served(h100(0), xid, lost, part), Problem{}, root)
	faults := []nodestate.Fault{{GPU: "GPU-1", Reason: gpu.ReasonXID, XID: 79}, {GPU: "GPU-3", Reason: gpu.ReasonXID, XID: 94}, {GPU: "GPU-0", Reason: gpu.ReasonXID, XID: 79}}
	for list, want := range map[string]map[string]bool{
		"":        {},
		"79":      {"gpu-1": true},
		"94":      {"gpu-3-mig-1g10gb-7-0": true},
		"GPULost": {"gpu-2": true},
		"XID":     {"gpu-1": true, "gpu-3-mig-1g10gb-7-0": true},
		"13":      {},
	} {
		var words []string
		if list != "" {
			words = []string{list}
		}
		e, err := ParseEvictions(words)
		require.NoError(t, err)
		evicted := map[string]bool{}
		for _, d := range inv.WithEvictions(e, faults).Devices {
			for _, taint := range d.API.Taints {
				if taint.Effect == resourceapi.DeviceTaintEffectNoExecute {
					evicted[d.Name] = true
				}
			}
		}
		require.Equal(t, want, evicted, list)
	}
	for _, d := range inv.Devices {
		for _, taint := range d.API.Taints {
			require.Equal(t, resourceapi.DeviceTaintEffectNoSchedule, taint.Effect, "the inventory itself is unchanged")
		}
	}
}

func TestEvictionsAreStrict(t *testing.T) {
	for _, word := range []string{"", "all", "xid", "-1", "DevicePluginSilent", "79 "} {
		_, err := ParseEvictions([]string{word})
		require.ErrorContains(t, err, "is neither the number of an XID nor one of ECC, ", word)
	}
}
