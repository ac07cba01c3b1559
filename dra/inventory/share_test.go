package inventory

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/scheduler"
)

// request returns a claim for one device, with capacities in pairs of name and amount.
func request(name string, capacity ...string) *resourceapi.ResourceClaim {
	exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
	for i := 0; i+1 < len(capacity); i += 2 {
		if exactly.Capacity == nil {
			exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
		}
		exactly.Capacity.Requests[resourceapi.QualifiedName(capacity[i])] = resource.MustParse(capacity[i+1])
	}
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: exactly}}
	return c
}

// shared returns the scheduler of a node with a shared GPU and a whole one.
func shared(change func(*nodestate.GPU)) *scheduler.Scheduler {
	g := h100(0)
	g.Sharing = &nodestate.Sharing{Shares: 4}
	change(&g)
	classes := []*resourceapi.DeviceClass{{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}}
	return scheduler.New(classes, scheduler.Slices(Driver, New(served(g), Problem{}, root).Slices())...)
}

func requireAllocated(t *testing.T, s *scheduler.Scheduler, want bool, c *resourceapi.ResourceClaim) {
	t.Helper()
	result, err := s.Allocate(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, want, result != nil, c.Name)
	if result != nil {
		require.NotNil(t, result.Devices.Results[0].ShareID)
	}
}

func TestTheSchedulerCountsShares(t *testing.T) {
	s := shared(func(*nodestate.GPU) {})
	for i := range 4 {
		requireAllocated(t, s, true, request(fmt.Sprint(i)))
	}
	requireAllocated(t, s, false, request("fifth"))
	s.Clear()
	requireAllocated(t, s, true, request("one share"))
	requireAllocated(t, s, false, request("whole", "shares", "4"))
	requireAllocated(t, s, true, request("the others", "shares", "3"))
	s.Clear()
	requireAllocated(t, s, true, request("whole", "shares", "4"))
	requireAllocated(t, s, false, request("one share"))
	s.Clear()
	requireAllocated(t, s, false, request("more than there are", "shares", "5"))
	requireAllocated(t, s, true, request("half of the memory", "memory", "40Gi"))
	requireAllocated(t, s, true, request("less than a part", "memory", "1Gi"))
	requireAllocated(t, s, true, request("a part"))
	requireAllocated(t, s, false, request("without memory"))
}

func TestATaintConcernsAllShares(t *testing.T) {
	s := shared(func(g *nodestate.GPU) { g.Condition = broken(gpu.ReasonXID) })
	requireAllocated(t, s, false, request("share"))
}

func TestMIGDevicesAreSharedLikeGPUs(t *testing.T) {
	s := shared(func(g *nodestate.GPU) {
		*g = mig(*g, nodestate.MIGDevice{UUID: "MIG-1", Profile: "1g.10gb", MemoryBytes: 10 << 30, Multiprocessors: 16, Sharing: &nodestate.Sharing{Shares: 2}, Condition: healthy})
	})
	requireAllocated(t, s, true, request("first"))
	requireAllocated(t, s, true, request("second", "multiprocessors", "16"))
	requireAllocated(t, s, false, request("third"))
}

// Two of one request are always different; of two requests only with a constraint.
func TestAClaimForSeveralSharesCanAskForDifferentGPUs(t *testing.T) {
	a, b := h100(0), h100(1)
	a.Sharing, b.Sharing = &nodestate.Sharing{Shares: 4}, &nodestate.Sharing{Shares: 4}
	s := scheduler.New([]*resourceapi.DeviceClass{{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}}, scheduler.Slices(Driver, New(served(a, b), Problem{}, root).Slices())...)
	devices := func(c *resourceapi.ResourceClaim) (all []string) {
		result, err := s.Allocate(t.Context(), c)
		require.NoError(t, err)
		require.NotNil(t, result)
		for _, r := range result.Devices.Results {
			all = append(all, r.Device)
		}
		return all
	}
	c := request("two")
	c.Spec.Devices.Requests[0].Exactly.Count = 2
	require.Equal(t, []string{"gpu-0", "gpu-1"}, devices(c))
	c.Spec.Devices.Requests[0].Exactly.Count = 1
	again := *c.Spec.Devices.Requests[0].DeepCopy()
	again.Name = "again"
	c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, again)
	require.Equal(t, []string{"gpu-0", "gpu-0"}, devices(c))
	c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{DistinctAttribute: new(resourceapi.FullyQualifiedName("gpu.nvidia.com/uuid"))}}
	require.Equal(t, []string{"gpu-0", "gpu-1"}, devices(c))
}
