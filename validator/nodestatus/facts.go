package nodestatus

import (
	"cmp"
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
	"github.com/gpuready/gpuready/validator/step"
)

// ConditionType is the type of the Node's condition about its readiness.
const ConditionType corev1.NodeConditionType = "GPUReady"

// Reasons of the condition and of Events, beside those of layers and devices.
const (
	ReasonReady     = "Ready"          // condition: all is proven and every GPU is healthy
	ReasonDegraded  = "Degraded"       // condition: all is proven, and something is degraded
	ReasonProving   = "Proving"        // condition: nothing is known yet in this boot
	ReasonRecovered = "Recovered"      // Event: a device is healthy again
	ReasonProven    = "Proven"         // Event: a layer is proven that was not
	ReasonAccepted  = "ConfigAccepted" // Event: the device plugin applied a configuration, after it had refused one
)

// reasonRefused is the device plugin's reason for a configuration that it does not apply.
const reasonRefused gpu.Reason = "ConfigRefused"

// Facts holds the known facts about the node at one moment. It is not changed once it was
// passed to Publish.
type Facts struct {
	Outcomes []check.Outcome                         // of the layers in their order; none: not checked yet in this boot
	States   map[nodestate.Component]nodestate.State // of the components that wrote one in this boot
	Names    map[gpu.UUID]string                     // the names of GPUs and MIG devices for people
	Faults   map[gpu.UUID]gpu.Fault                  // the GPUs' faults reported by the driver
	// DriverPod is the result of the pod that shows people that the driver works; nil: not
	// known. It leads to Events, and affects no condition.
	DriverPod *check.Outcome
	Note      string // what the proofs lack by configuration; "": nothing
}

// Condition is the wanted condition of the Node.
type Condition struct {
	Status  corev1.ConditionStatus
	Reason  string
	Message string
}

const maxMessage = 1024 // the limit of an Event; a longer condition would not be read

// condition sums the facts up. It is True as long as GPUs can be used. The device plugin
// withholds a broken GPU, which is no reason to drain the pods on the others; the condition
// names it, with reason Degraded.
func (f Facts) condition() Condition {
	c := f.summarize()
	c.Message = record.Clean(c.Message, maxMessage)
	return c
}

func (f Facts) summarize() Condition {
	if len(f.Outcomes) == 0 {
		return Condition{corev1.ConditionUnknown, ReasonProving, "nothing has been proven yet since the node was started"}
	}
	for _, o := range f.Outcomes {
		switch o.Kind {
		case check.Passed:
			continue
		case check.Absent:
			return Condition{corev1.ConditionFalse, string(o.NotReady.Reason), o.NotReady.Message}
		case check.Pending:
			return Condition{corev1.ConditionUnknown, ReasonProving, fmt.Sprintf("%s: %s", o.Layer, o.NotReady.Message)}
		}
		if why, found := f.noDriver(o); found {
			return why
		}
		return Condition{corev1.ConditionFalse, string(o.NotReady.Reason), f.refusalText(o)}
	}
	devices := f.devices()
	var bad []string
	for _, d := range devices {
		if !d.healthy {
			bad = append(bad, d.text())
		}
	}
	reason := ReasonReady
	message := fmt.Sprintf("%d of %d %s ready%s", len(devices)-len(bad), len(devices), collectiveName(devices), f.driverText())
	if f.Note != "" {
		message += "; " + f.Note
	}
	if len(bad) > 0 {
		reason = ReasonDegraded
		message += "; " + firstFew(bad)
	}
	if s, ok := f.States[nodestate.Toolkit]; ok && s.Phase == nodestate.Degraded {
		reason = ReasonDegraded
		message += "; toolkit: " + s.Message
	}
	// Unhealthy devices are reported above.
	if s, ok := f.States[nodestate.DevicePlugin]; ok && s.Phase == nodestate.Degraded && (s.Reason == reasonRefused || len(bad) == 0) {
		reason = ReasonDegraded
		message += "; device plugin: " + s.Message
	}
	return Condition{corev1.ConditionTrue, reason, message}
}

// refusalText returns the refusal of a layer, with the state of the component behind it.
func (f Facts) refusalText(o check.Outcome) string {
	text := fmt.Sprintf("%s: %s; %s", o.Layer, o.NotReady.Message, o.NotReady.Action)
	if s, ok := f.States[nodestate.Driver]; ok && o.Layer == readiness.Driver && s.Phase != nodestate.Ready && s.Message != "" {
		text += "; the driver says " + string(s.Phase)
		if s.Reason != "" {
			text += ": " + string(s.Reason)
		}
		text += ": " + s.Message
	}
	return text
}

// noDriver returns the condition from the state of the driver's container, where there is
// no trace of a driver. The refusal of layer driver would only say that it is missing.
func (f Facts) noDriver(o check.Outcome) (Condition, bool) {
	s, reported := f.States[nodestate.Driver]
	if !reported || o.Layer != readiness.Driver || !step.NoDriver(o.NotReady.Reason, s) {
		return Condition{}, false
	}
	reason, message, ok := readiness.DriverSays(s, nil)
	return Condition{corev1.ConditionFalse, string(reason), fmt.Sprintf("%s: %s", o.Layer, message)}, ok
}

func (f Facts) driverText() string {
	p := f.Outcomes[0].Proof
	if p == nil || p.Driver == nil {
		return ""
	}
	if p.Driver.Simulated {
		return " (SIMULATED), driver " + p.Driver.Version
	}
	return ", driver " + p.Driver.Version
}

// firstFew joins the first few of many texts.
func firstFew(all []string) string {
	const shown = 3
	if len(all) <= shown {
		return strings.Join(all, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(all[:shown], "; "), len(all)-shown)
}

// usable reports whether pods may be scheduled: all layers are proven, or there is no GPU
// to wait for.
func (f Facts) usable() bool {
	for _, o := range f.Outcomes {
		if o.Kind != check.Passed && o.Kind != check.Absent {
			return false
		}
	}
	return len(f.Outcomes) > 0
}

// A device is a GPU or MIG device as reported by the device plugin.
type device struct {
	id      gpu.UUID
	name    string
	healthy bool
	reason  string
	message string
	since   time.Time
}

func (d device) text() string { return d.name + ": " + cmp.Or(d.message, d.reason) }

// devices returns each device once, even if it is offered several times, in the plugin's
// order.
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
				i = len(out)
				out = append(out, device{id: d.GPU, name: cmp.Or(f.Names[d.GPU], string(d.GPU)), healthy: true})
			}
			if d.Health == nodestate.Unhealthy && out[i].healthy {
				out[i] = device{id: d.GPU, name: out[i].name, reason: cmp.Or(string(d.Reason), "Unhealthy"), message: d.Message, since: d.Since}
			}
		}
	}
	return out
}
