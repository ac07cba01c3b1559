package nodestatus

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// HealthType is the type of the Node's condition about the GPUs themselves. ConditionType
// shows whether pods can use GPUs here, HealthType whether one of them is broken: a node
// with one bad GPU of eight is GPUReady and not GPUHealthy.
const HealthType corev1.NodeConditionType = "GPUHealthy"

// Reasons of that condition, beside those of devices.
const (
	ReasonHealthy   = "Healthy"
	ReasonUnwatched = "HealthNotWatched" // no component on the node watches the GPUs' health
)

// health sums up the GPUs' problems reported by driver and device plugin. Without either
// of them it is Unknown.
func (f Facts) health() Condition {
	c := f.summarizeHealth()
	c.Message = readiness.Shorten(c.Message, maxMessage)
	return c
}

func (f Facts) summarizeHealth() Condition {
	bad := f.badDevices()
	switch {
	case len(f.Outcomes) > 0 && f.Outcomes[0].Kind == check.Absent:
		return Condition{corev1.ConditionTrue, string(check.ReasonNoGPU), "there is no GPU, so none is broken"}
	case len(f.Faults) == 0 && f.isUnwatched():
		return Condition{corev1.ConditionUnknown, ReasonUnwatched, "nobody watches the GPUs: " + describeDevices(bad)}
	case len(bad) > 0:
		return Condition{corev1.ConditionFalse, bad[0].reason, describeDevices(bad)}
	case len(f.Outcomes) == 0:
		return Condition{corev1.ConditionUnknown, ReasonProving, "the driver has not been asked yet since the node was started"}
	case f.Outcomes[0].Kind != check.Passed:
		return Condition{corev1.ConditionUnknown, string(f.Outcomes[0].NotReady.Reason), f.refusalText(f.Outcomes[0])}
	}
	devices := f.devices()
	if len(devices) == 0 {
		return Condition{corev1.ConditionUnknown, ReasonUnwatched,
			"the driver finds nothing wrong; the device plugin, which watches for more, offers nothing"}
	}
	if s := f.States[nodestate.DevicePlugin]; s.Phase == nodestate.Failed {
		return Condition{corev1.ConditionUnknown, ReasonUnwatched, "the device plugin, which watches the GPUs, has failed: " + s.Message}
	}
	if s := f.States[nodestate.DevicePlugin]; s.Reason == reasonStopped {
		return Condition{corev1.ConditionUnknown, ReasonUnwatched, s.Message}
	}
	return Condition{corev1.ConditionTrue, ReasonHealthy, fmt.Sprintf("nothing is wrong with %d %s%s", len(devices), collectiveName(devices), f.driverText())}
}

// isUnwatched reports whether the device plugin watches none of the devices, as while the driver is
// replaced. Nothing is known to be wrong with them then.
func (f Facts) isUnwatched() bool {
	devices := f.devices()
	return len(devices) > 0 && !slices.ContainsFunc(devices, func(d device) bool { return d.healthy || d.reason != string(gpu.ReasonUnwatched) })
}

// badDevices returns all devices with a problem. Those that the device plugin withholds come first.
func (f Facts) badDevices() (bad []device) {
	named := map[gpu.UUID]bool{}
	for _, d := range f.devices() {
		if !d.healthy {
			named[d.id] = true
			bad = append(bad, d)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(f.Faults)) {
		if named[id] {
			continue
		}
		fault := f.Faults[id]
		bad = append(bad, device{id: id, name: cmp.Or(f.Names[id], string(id)), reason: string(fault.Reason), message: fault.String(), action: fault.NextAction(id)})
	}
	return bad
}

// collectiveName returns the collective name of the devices.
func collectiveName(devices []device) string {
	if slices.ContainsFunc(devices, func(d device) bool { return strings.HasPrefix(string(d.id), "MIG-") }) {
		return "GPUs and MIG devices"
	}
	return "GPUs"
}
