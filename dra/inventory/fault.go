package inventory

import (
	"reflect"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// TaintKey is the key of the taint of an unhealthy device. Its value is the reason.
const TaintKey = "gpuready.io/unhealthy"

// Reasons why the inventory cannot be relied on, or offers nothing.
const (
	ReasonUnknown        gpu.Reason = "InventoryUnknown"   // the device plugin has not written its state in this boot
	ReasonInvalid        gpu.Reason = "InventoryInvalid"   // its state cannot be read
	ReasonSilent         gpu.Reason = "DevicePluginSilent" // nobody watches the health of the GPUs
	ReasonServedByPlugin gpu.Reason = "ServedByDevicePlugin"
)

// Problem is a reason why the inventory cannot be relied on. The zero Problem is none.
type Problem struct {
	Reason  gpu.Reason
	Message string
	Action  string    // what a person should do
	Since   time.Time // when it began
}

// String returns the problem in one sentence, "": none.
func (p Problem) String() string {
	if p.Reason == "" {
		return ""
	}
	text := string(p.Reason) + ": " + p.Message
	if p.Action != "" {
		text += "; next: " + p.Action
	}
	return text
}

// taints returns the taint of an unhealthy device. A pod that runs keeps it: the effect is
// NoSchedule, as the device plugin takes no GPU from a pod either. WithEvictions changes that.
func taints(c nodestate.Condition) []resourceapi.DeviceTaint {
	if c.Health != nodestate.Unhealthy {
		return nil
	}
	t := resourceapi.DeviceTaint{Key: TaintKey, Value: string(c.Reason), Effect: resourceapi.DeviceTaintEffectNoSchedule}
	if !c.Since.IsZero() {
		added := metav1.NewTime(c.Since.Truncate(time.Second)) // the API's precision
		t.TimeAdded = &added
	}
	return []resourceapi.DeviceTaint{t}
}

// WithTaintsOf returns the inventory with the faults that another has of the same devices, and reports whether
// that changed it. A device that is healthy in the other one keeps its fault. Why all devices have a taint comes
// with them.
func (i Inventory) WithTaintsOf(other Inventory) (Inventory, bool) {
	changed := false
	devices := slices.Clone(i.Devices)
	for n, d := range devices {
		now, found := other.FindAny(d.Name)
		if !found || now.Fault.Health == nodestate.Healthy || now.UUID != d.UUID || now.Parent != d.Parent {
			continue
		}
		if now.Fault != d.Fault || !reflect.DeepEqual(now.API.Taints, d.API.Taints) {
			devices[n].Fault, devices[n].API.Taints, changed = now.Fault, now.API.Taints, true
		}
	}
	if i.Devices = devices; changed && other.Why.Reason != ReasonServedByPlugin && other.Why.Reason != "" {
		i.Why = other.Why
	}
	return i, changed
}
