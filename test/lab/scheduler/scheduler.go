// Package scheduler allocates ResourceClaims with the code of the Kubernetes scheduler
// (k8s.io/dynamic-resource-allocation/structured), without a cluster: one node, its ResourceSlices, and
// DeviceClasses.
package scheduler

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Node is the name of the node, and of its pools.
const Node = "node-1"

// Features lists what the allocator of Kubernetes 1.37 does without a feature gate.
var Features = structured.Features{
	AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, DeviceBindingAndStatus: true, ConsumableCapacity: true}

// Scheduler knows what is allocated on the node.
type Scheduler struct {
	classes classes
	slices  []*resourceapi.ResourceSlice
	used    structured.AllocatedState
	cache   *cel.Cache
}

// New returns a Scheduler of a node on which nothing is allocated.
func New(classes []*resourceapi.DeviceClass, slices ...*resourceapi.ResourceSlice) *Scheduler {
	s := &Scheduler{classes: classes, slices: slices, cache: cel.NewCache(100, cel.Features{EnableConsumableCapacity: true})}
	s.Clear()
	return s
}

// Slices returns the ResourceSlices of a driver's pool on the node.
func Slices(driver string, pool []resourceslice.Slice) (all []*resourceapi.ResourceSlice) {
	for i, part := range pool {
		all = append(all, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", driver, i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: driver, NodeName: new(Node), Devices: part.Devices, SharedCounters: part.SharedCounters,
				Pool: resourceapi.ResourcePool{Name: Node, Generation: 1, ResourceSliceCount: int64(len(pool))},
			},
		})
	}
	return all
}

// Clear frees all devices.
func (s *Scheduler) Clear() {
	s.used = structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](), AggregatedCapacity: structured.NewConsumedCapacityCollection()}
}

// Occupy makes a device of a driver one that another claim has.
func (s *Scheduler) Occupy(driver, device string) {
	s.used.AllocatedDevices.Insert(structured.MakeDeviceID(driver, Node, device))
}

// Free ends that a claim has the whole of a driver's device.
func (s *Scheduler) Free(driver, device string) {
	s.used.AllocatedDevices.Delete(structured.MakeDeviceID(driver, Node, device))
}

// Allocate returns what a claim gets, and remembers it; nil: the claim has to wait.
func (s *Scheduler) Allocate(ctx context.Context, claim *resourceapi.ResourceClaim) (*resourceapi.AllocationResult, error) {
	result, err := s.Find(ctx, claim)
	if err != nil || result == nil {
		return nil, err
	}
	for _, r := range result.Devices.Results {
		id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
		switch {
		case r.AdminAccess != nil && *r.AdminAccess:
		case r.ShareID != nil:
			s.used.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
			s.used.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
		default:
			s.used.AllocatedDevices.Insert(id)
		}
	}
	return result, nil
}

// Find returns what a claim would get; nil: it would have to wait.
func (s *Scheduler) Find(ctx context.Context, claim *resourceapi.ResourceClaim) (*resourceapi.AllocationResult, error) {
	allocator, err := structured.NewAllocator(ctx, Features, s.used, s.classes, s.slices, s.cache)
	if err != nil {
		return nil, err
	}
	results, err := allocator.Allocate(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: Node}}, []*resourceapi.ResourceClaim{claim})
	if err != nil || len(results) == 0 {
		return nil, err
	}
	return &results[0], nil
}

// classes implements structured.DeviceClassLister.
type classes []*resourceapi.DeviceClass

// List returns all classes.
func (c classes) List() ([]*resourceapi.DeviceClass, error) { return c, nil }

// Get returns one class.
func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("there is no DeviceClass %s", name)
}
