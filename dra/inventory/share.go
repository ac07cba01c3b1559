package inventory

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// CapacityShares is the capacity of a shared device that counts its shares. A claim consumes one, unless it
// asks for more. One that asks for all of them has the device for itself.
const CapacityShares resourceapi.QualifiedName = "shares"

const capacityMemory = "memory"

// share lets several claims have a device at once, and the scheduler count what they consume. Of its
// memory a claim consumes the part of one share, or what it asks for beyond that. Nothing holds a
// program to it, unless MPS serves the device. The other capacities are not divided: programs use them in
// turn.
func (d *Device) share(s *nodestate.Sharing) {
	if s == nil || s.Shares < 2 {
		return
	}
	d.Shares, d.MPS = s.Shares, s.MPS
	d.API.AllowMultipleAllocations = new(true)
	if d.API.Capacity == nil {
		d.API.Capacity = capacities{}
	}
	for name, c := range d.API.Capacity {
		least := resource.NewQuantity(0, c.Value.Format)
		if name == capacityMemory {
			least.Set(c.Value.Value() / int64(s.Shares))
		}
		c.RequestPolicy = policy(*least, c.Value)
		d.API.Capacity[name] = c
	}
	all := *resource.NewQuantity(int64(s.Shares), resource.DecimalSI)
	p := policy(*resource.NewQuantity(1, resource.DecimalSI), all)
	p.ValidRange.Step = resource.NewQuantity(1, resource.DecimalSI)
	d.API.Capacity[CapacityShares] = resourceapi.DeviceCapacity{Value: all, RequestPolicy: p}
}

// policy returns a policy by which a claim that asks for nothing consumes the least.
func policy(least, most resource.Quantity) *resourceapi.CapacityRequestPolicy {
	return &resourceapi.CapacityRequestPolicy{
		Default:    new(least.DeepCopy()),
		ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: new(least.DeepCopy()), Max: new(most.DeepCopy())},
	}
}
