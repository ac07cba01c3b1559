// Package compare compares what this device plugin would advertise on a node with what
// the plugin that serves the node advertises, so that a migration can be decided on
// evidence.
//
// It learns about the other plugin only from the kubelet, by reading the PodResources
// API (kubelet.go). It does not connect to the plugin itself, since a second
// ListAndWatch would do harm: NVIDIA's server has one channel of health changes,
// from which every open stream receives (github.com/NVIDIA/k8s-device-plugin,
// internal/plugin/server.go, v0.17: ListAndWatch). A change that a second stream receives would
// never reach the kubelet.
//
// The comparison (compare.go, placement.go) is pure; run.go repeats it.
package compare

import (
	"strings"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
)

// Ours holds what this plugin would advertise now.
type Ours struct {
	Plan     plan.Plan
	Snapshot gpu.Snapshot
}

// Theirs holds what the kubelet knows of the other plugin's devices. It is never changed.
type Theirs struct {
	// Devices are the healthy devices of each resource, allocated or not. An unhealthy one
	// cannot be distinguished from one that was never listed.
	Devices     map[string][]Device
	Allocations []Allocation
	// Checkpoint means that Devices come from the kubelet's checkpoint, which does not have
	// their NUMA nodes.
	Checkpoint bool
}

// Device is one device as the kubelet counts them.
type Device struct {
	ID   string
	NUMA []int64 // NUMA nodes, sorted; empty: not known
}

// Allocation lists the devices of one resource that a container has.
type Allocation struct {
	Namespace, Pod, Container, Resource string
	IDs                                 []string // sorted
}

func (h Allocation) String() string { return h.Namespace + "/" + h.Pod + "/" + h.Container }

// Kind is the kind of a Difference.
type Kind string

// The kinds of Difference.
const (
	KindResource  Kind = "resource"  // only one of the two has the resource
	KindDevice    Kind = "device"    // only one of the two lists the device
	KindName      Kind = "name"      // they list it as different resources
	KindReplicas  Kind = "replicas"  // they have different IDs, or different numbers of them
	KindHealth    Kind = "health"    // only one of the two reports it healthy
	KindNUMA      Kind = "numa"      // on different NUMA nodes
	KindPlacement Kind = "placement" // a container's GPUs are farther from each other than necessary
)

// Kinds returns all kinds.
func Kinds() []Kind {
	return []Kind{KindResource, KindDevice, KindName, KindReplicas, KindHealth, KindNUMA, KindPlacement}
}

// Difference is one difference between the two plugins.
type Difference struct {
	Kind     Kind       `json:"kind"`
	Resource string     `json:"resource"`
	Device   gpu.UUID   `json:"device,omitempty"` // the GPU or MIG device, the same for all its replicas
	Pod      string     `json:"pod,omitempty"`    // namespace/name/container, with KindPlacement
	Ours     string     `json:"ours"`             // what this plugin would advertise
	Theirs   string     `json:"theirs"`
	Reason   gpu.Reason `json:"reason,omitempty"` // ours, of KindHealth and KindDevice
	Message  string     `json:"message,omitempty"`
	Since    time.Time  `json:"since"` // of the fault if there is one, else of the difference
}

// key returns the part of a difference that identifies it.
func (d Difference) key() Difference {
	d.Since, d.Message = time.Time{}, ""
	return d
}

// deviceOf returns the UUID of the device with an ID, which may be that of a replica.
func deviceOf(id string) gpu.UUID {
	before, _, _ := strings.Cut(id, "::")
	return gpu.UUID(before)
}

// isGPU reports whether an ID is that of a GPU or MIG device, as the driver spells it.
func isGPU(id string) bool {
	return strings.HasPrefix(id, "GPU-") || strings.HasPrefix(id, "MIG-")
}
