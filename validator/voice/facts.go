package voice

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/step/driver"
)

// ConditionType is that of the Node's condition.
const ConditionType corev1.NodeConditionType = "GPUReady"

// Reasons of the condition and of Events that are not a layer's or a device's.
const (
	ReasonReady     = "Ready"          // condition: all is proven and every GPU is healthy
	ReasonDegraded  = "Degraded"       // condition: all is proven, and something is held back
	ReasonProving   = "Proving"        // condition: nothing is known yet in this boot
	ReasonRecovered = "Recovered"      // Event: a device is healthy again
	ReasonProven    = "Proven"         // Event: a layer is proven that was not
	ReasonAccepted  = "ConfigAccepted" // Event: the device plugin has put a configuration into force that is none of those it refused
)

// reasonRefused is the device plugin's word for a configuration that it does not put
// into force.
const reasonRefused gpu.Reason = "ConfigRefused"

// Facts is what is known of the node at one moment. It is not changed after it
// was handed over.
type Facts struct {
	Outcomes []check.Outcome                         // of the layers in their order; none: not checked yet in this boot
	States   map[nodestate.Component]nodestate.State // of those that said something in this boot
	Names    map[gpu.UUID]string                     // how GPUs and MIG devices are called in front of people
	Faults   map[gpu.UUID]gpu.Fault                  // what the driver itself finds wrong with GPUs
	// Witness is what came of the pod that shows people that the driver works; nil: not
	// known. It tells Events, and makes no condition another.
	Witness *check.Outcome
}

// Condition is what the Node's condition is to be.
type Condition struct {
	Status  corev1.ConditionStatus
	Reason  string
	Message string
}

const maxMessage = 1024 // an Event's; a condition could be longer, and nobody would read it

// condition sums the facts up. It is True as long as GPUs can be used: one that
// is broken is held back by the device plugin and is no reason to drain the
// others' pods; it is named, and the reason is another.
func (f Facts) condition() Condition {
	c := f.sum()
	c.Message = record.Clean(c.Message, maxMessage)
	return c
}

func (f Facts) sum() Condition {
	if len(f.Outcomes) == 0 {
		return Condition{corev1.ConditionUnknown, ReasonProving, "nothing has been proven yet since the node was started"}
	}
	for _, o := range f.Outcomes {
		switch o.Kind {
		case check.Passed:
			continue
		case check.Absent:
			return Condition{corev1.ConditionFalse, string(o.Refusal.Reason), o.Refusal.Message}
		case check.Pending:
			return Condition{corev1.ConditionUnknown, ReasonProving, fmt.Sprintf("%s: %s", o.Layer, o.Refusal.Message)}
		}
		if why, is := f.noDriver(o); is {
			return why
		}
		return Condition{corev1.ConditionFalse, string(o.Refusal.Reason), f.refusal(o)}
	}
	devices := f.devices()
	var bad []string
	for _, d := range devices {
		if !d.healthy {
			bad = append(bad, d.text())
		}
	}
	reason := ReasonReady
	message := fmt.Sprintf("%d of %d %s ready%s", len(devices)-len(bad), len(devices), kinds(devices), f.driver())
	if len(bad) > 0 {
		reason = ReasonDegraded
		message += "; " + several(bad)
	}
	if s, ok := f.States[nodestate.Toolkit]; ok && s.Phase == nodestate.Degraded {
		reason = ReasonDegraded
		message += "; toolkit: " + s.Message
	}
	// Of devices is spoken above.
	if s, ok := f.States[nodestate.DevicePlugin]; ok && s.Phase == nodestate.Degraded && (s.Reason == reasonRefused || len(bad) == 0) {
		reason = ReasonDegraded
		message += "; device plugin: " + s.Message
	}
	return Condition{corev1.ConditionTrue, reason, message}
}

// refusal is a layer's, with what the component behind it says of itself.
func (f Facts) refusal(o check.Outcome) string {
	text := fmt.Sprintf("%s: %s; %s", o.Layer, o.Refusal.Message, o.Refusal.Action)
	if s, ok := f.States[nodestate.Driver]; ok && o.Layer == readiness.Driver && s.Phase != nodestate.Ready && s.Message != "" {
		text += "; the driver says " + string(s.Phase)
		if s.Reason != "" {
			text += ": " + string(s.Reason)
		}
		text += ": " + s.Message
	}
	return text
}

// noDriver is what the driver's container says where there is nothing of a driver: that it
// is not there is no news then.
func (f Facts) noDriver(o check.Outcome) (Condition, bool) {
	s, said := f.States[nodestate.Driver]
	if !said || o.Layer != readiness.Driver || !driver.Nothing(o.Refusal.Reason, s) {
		return Condition{}, false
	}
	reason, message, ok := readiness.DriverSays(s, nil)
	return Condition{corev1.ConditionFalse, string(reason), fmt.Sprintf("%s: %s", o.Layer, message)}, ok
}

func (f Facts) driver() string {
	p := f.Outcomes[0].Proof
	if p == nil || p.Driver == nil {
		return ""
	}
	if p.Driver.Simulated {
		return " (SIMULATED), driver " + p.Driver.Version
	}
	return ", driver " + p.Driver.Version
}

// several is the first few of many.
func several(all []string) string {
	const shown = 3
	if len(all) <= shown {
		return strings.Join(all, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(all[:shown], "; "), len(all)-shown)
}

// usable says that pods may come: all layers are proven, or there is no GPU to
// wait for.
func (f Facts) usable() bool {
	for _, o := range f.Outcomes {
		if o.Kind != check.Passed && o.Kind != check.Absent {
			return false
		}
	}
	return len(f.Outcomes) > 0
}

// A device is a GPU or MIG device as the device plugin speaks of it.
type device struct {
	id      gpu.UUID
	name    string
	healthy bool
	reason  string
	message string
	since   time.Time
}

func (d device) why() string {
	if d.message == "" {
		return d.reason
	}
	return d.message
}

func (d device) text() string { return d.name + ": " + d.why() }

// devices returns each once, also where it is offered several times, in the
// plugin's order.
func (f Facts) devices() []device {
	s, ok := f.States[nodestate.DevicePlugin]
	if !ok || s.DevicePlugin == nil {
		return nil
	}
	var out []device
	for _, r := range s.DevicePlugin.Resources {
		for _, d := range r.Devices {
			i := slices.IndexFunc(out, func(o device) bool { return o.id == d.GPU })
			if i < 0 {
				name := f.Names[d.GPU]
				if name == "" {
					name = string(d.GPU)
				}
				i = len(out)
				out = append(out, device{id: d.GPU, name: name, healthy: true})
			}
			if d.Health == nodestate.Unhealthy && out[i].healthy {
				reason := string(d.Reason)
				if reason == "" {
					reason = "Unhealthy"
				}
				out[i] = device{id: d.GPU, name: out[i].name, reason: reason, message: d.Message, since: d.Since}
			}
		}
	}
	return out
}
