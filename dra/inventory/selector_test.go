package inventory

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/scheduler"
)

// The scheduler gives up on a claim whose selector fails on any device that it looks at. The page has the
// selectors of this test.
func TestASelectorOnWhatADeviceLacksNeedsHas(t *testing.T) {
	page, err := os.ReadFile("../../docs/dra.md")
	require.NoError(t, err)
	part := nodestate.MIGDevice{UUID: "MIG-1", Profile: "1g.10gb", GPUInstance: 7, MemoryBytes: 10 << 30, Multiprocessors: 16, Condition: healthy}
	plain, coherent := h100(0), h100(1)
	plain.NVLinkDomain, coherent.AddressingMode = "", "ATS"
	node := scheduler.Slices(Driver, New(served(plain, coherent, mig(h100(2), part)), Problem{}, root).Slices())
	for name, c := range map[string]struct{ bare, guard, want string }{
		"a capacity": {
			bare:  "device.capacity['gpu.nvidia.com'].multiprocessors.compareTo(quantity('16')) >= 0",
			guard: "has(device.capacity['gpu.nvidia.com'].multiprocessors) && ", want: "gpu-2-mig-1g10gb-7-0",
		},
		"an attribute": {
			bare:  "device.attributes['gpu.nvidia.com'].addressingMode == 'ATS'",
			guard: "has(device.attributes['gpu.nvidia.com'].addressingMode) && ", want: "gpu-1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			find := func(selector string) (*resourceapi.AllocationResult, error) {
				claim := request("job")
				claim.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: selector}}}
				classes := []*resourceapi.DeviceClass{{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}}
				return scheduler.New(classes, node...).Find(t.Context(), claim)
			}
			_, err := find(c.bare)
			require.ErrorContains(t, err, "no such key")
			result, err := find(c.guard + c.bare)
			require.NoError(t, err)
			require.Equal(t, c.want, result.Devices.Results[0].Device)
			require.Contains(t, string(page), c.guard+c.bare)
		})
	}
}

// NVIDIA's driver has it for GPUs and MIG devices, and leaves it out where the platform has none.
func TestTheAddressingModeIsPublished(t *testing.T) {
	mode := func(i Inventory, name string) *string {
		d, found := i.Find(name)
		require.True(t, found, name)
		return d.API.Attributes["addressingMode"].StringValue
	}
	coherent, divided, partitioned := h100(1), mig(h100(2), nodestate.MIGDevice{UUID: "MIG-1", Profile: "1g.10gb", GPUInstance: 7, Condition: healthy}), partitionable(t)[1]
	partitioned.UUID, partitioned.Minor = "GPU-3", 3
	coherent.AddressingMode, divided.AddressingMode, partitioned.AddressingMode = "ATS", "HMM", "None"
	i := New(served(h100(0), coherent, divided), Problem{}, root)
	require.Nil(t, mode(i, "gpu-0"))
	require.Equal(t, "ATS", *mode(i, "gpu-1"))
	require.Equal(t, "HMM", *mode(i, "gpu-2-mig-1g10gb-7-0"))
	require.Equal(t, "None", *mode(New(dynamic(partitioned), Problem{}, root), "gpu-3-mig-1g10gb-19-0"))
}
