// Package shadow holds what this device plugin would advertise on a node against
// what another one does, which serves it, so that somebody can change over on
// evidence.
//
// Of the other plugin it sees what the kubelet made of it, and only by reading:
// the PodResources API (kubelet.go). It is not connected to itself. A second
// ListAndWatch would be harmful: the reference's server has one channel of health
// changes, from which every open stream takes (github.com/NVIDIA/k8s-device-plugin,
// internal/plugin/server.go, v0.17: ListAndWatch), so a change that it told us
// would never reach the kubelet.
//
// The comparison (compare.go, placement.go) is pure; run.go repeats it.
package shadow

import (
	"strings"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
)

// Ours is what this plugin would advertise now.
type Ours struct {
	Plan     plan.Plan
	Snapshot gpu.Snapshot
}

// Theirs is what the kubelet has of other plugins. It is never changed.
type Theirs struct {
	// Devices are the healthy ones of each resource, given away or not. An
	// unhealthy one cannot be told from one that was never listed.
	Devices  map[string][]Device
	Holdings []Holding
	// Checkpoint says that Devices are from the kubelet's checkpoint, which does
	// not tell their NUMA nodes.
	Checkpoint bool
}

// Device is one device as the kubelet counts them.
type Device struct {
	ID   string
	NUMA []int64
}

// Holding is what one container has of one resource.
type Holding struct {
	Namespace, Pod, Container, Resource string
	IDs                                 []string // sorted
}

func (h Holding) String() string { return h.Namespace + "/" + h.Pod + "/" + h.Container }

// Kind is what a difference is about.
type Kind string

// The kinds of Difference.
const (
	KindResource  Kind = "resource"  // only one of the two has the resource
	KindDevice    Kind = "device"    // only one of the two lists the device
	KindName      Kind = "name"      // each lists it as another resource
	KindReplicas  Kind = "replicas"  // its IDs are others, or not as many
	KindHealth    Kind = "health"    // only one of the two gives it away
	KindNUMA      Kind = "numa"      // on other NUMA nodes
	KindPlacement Kind = "placement" // a container has GPUs that are farther from each other than they need be
)

// Kinds are all of them.
func Kinds() []Kind {
	return []Kind{KindResource, KindDevice, KindName, KindReplicas, KindHealth, KindNUMA, KindPlacement}
}

// Difference is one thing that would not be as it is.
type Difference struct {
	Kind     Kind       `json:"kind"`
	Resource string     `json:"resource"`
	Device   gpu.UUID   `json:"device,omitempty"` // the GPU or MIG device; replicas are one
	Pod      string     `json:"pod,omitempty"`    // namespace/name/container, with KindPlacement
	Ours     string     `json:"ours"`
	Theirs   string     `json:"theirs"`
	Reason   gpu.Reason `json:"reason,omitempty"` // ours, of KindHealth and KindDevice
	Message  string     `json:"message,omitempty"`
	Since    time.Time  `json:"since"` // of the fault where there is one, else since when it is seen
}

// key is what makes two differences the same one.
func (d Difference) key() Difference {
	d.Since, d.Message = time.Time{}, ""
	return d
}

// base is the UUID of the device of which an ID is that of a replica.
func base(id string) gpu.UUID {
	before, _, _ := strings.Cut(id, "::")
	return gpu.UUID(before)
}

// ofGPU says that an ID is that of a GPU or MIG device, as the driver spells it.
func ofGPU(id string) bool {
	return strings.HasPrefix(id, "GPU-") || strings.HasPrefix(id, "MIG-")
}
