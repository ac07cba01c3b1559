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
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/step"
)

// ConditionType is the type of the Node's condition about its readiness.
const ConditionType corev1.NodeConditionType = "GPUReady"

// Reasons of the condition and of Events, beside those of layers and devices.
const (
	ReasonReady     = "Ready"                 // condition: all is proven and every GPU is healthy
	ReasonDegraded  = "Degraded"              // condition: all is proven, and something is degraded
	ReasonProving   = "Proving"               // condition: nothing is known yet in this boot
	ReasonStopped   = readiness.ReasonStopped // condition: the validator has ended
	ReasonRecovered = "Recovered"             // Event: a device is healthy again
	ReasonProven    = "Proven"                // Event: a layer is proven that was not
	ReasonWritten   = "StateWritten"          // Event: the validator's files are written again
	ReasonAccepted  = "ConfigAccepted"        // Event: the device plugin applied a configuration, after it had refused one
)

// reasonRefused is the device plugin's reason for a configuration that it does not apply.
const reasonRefused gpu.Reason = "ConfigRefused"

// reasonStopped is the reason of a device plugin that has ended.
const reasonStopped gpu.Reason = "DevicePluginStopped"

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
	// Unwritten is the error of writing the outcomes to the node's files; "": they are written.
	Unwritten string
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
	c.Message = readiness.Shorten(c.Message, maxMessage)
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
		if f.Unwritten != "" && (o.NotReady.Reason == step.ReasonAllocatableShort || o.NotReady.Reason == step.ReasonAllocatableDiffers) {
			// The device plugin's state may be old for the same reason.
			return Condition{corev1.ConditionFalse, string(nodestate.ReasonNotWritable), fmt.Sprintf("%s: %s; the states on the node may be out of date: %s", o.Layer, f.Unwritten, o.NotReady.Message)}
		}
		return Condition{corev1.ConditionFalse, string(o.NotReady.Reason), f.refusalText(o)}
	}
	devices := f.devices()
	bad := slices.DeleteFunc(slices.Clone(devices), func(d device) bool { return d.healthy })
	reason := ReasonReady
	message := fmt.Sprintf("%d of %d %s ready%s", len(devices)-len(bad), len(devices), collectiveName(devices), f.driverText())
	if f.Note != "" {
		message += "; " + f.Note
	}
	limits, away := f.limits()
	message += limits
	if away {
		reason = ReasonDegraded
	}
	if len(bad) > 0 {
		reason = ReasonDegraded
		message += "; " + describeDevices(bad)
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
	if f.Unwritten != "" {
		// Pods can use the GPUs, but those that wait for the files on the node learn nothing new.
		reason = string(nodestate.ReasonNotWritable)
		message += "; " + f.Unwritten
	}
	return Condition{corev1.ConditionTrue, reason, message}
}

// limits returns what the proofs lack for a while: GPUs that are not proven now, since others use them, and a
// component that is being replaced. away reports whether there is such a component.
func (f Facts) limits() (text string, away bool) {
	var b strings.Builder
	for _, o := range f.Outcomes {
		if o.Kind == check.Passed && (o.Away != check.Present || len(o.Unproven) > 0) {
			fmt.Fprintf(&b, "; %s: %s", o.Layer, strings.Join(o.Notes, "; "))
			away = away || o.Away != check.Present
		}
	}
	return b.String(), away
}

// refusalText returns the refusal of a layer, with the state of the component behind it.
func (f Facts) refusalText(o check.Outcome) string {
	text := fmt.Sprintf("%s: %s", o.Layer, readiness.WithAction(o.NotReady.Message, o.NotReady.Action))
	if s, ok := f.States[nodestate.Driver]; ok && o.Layer == readiness.Driver && s.Phase != nodestate.Ready && s.Message != "" {
		text += readiness.DriverPhase + string(s.Phase)
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
	reason, message, ok := readiness.DriverProblem(s, nil)
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

// shown is the number of devices, and of pods, that a message names.
const shown = 3

// firstFew joins the first few of many texts.
func firstFew(all []string, separator string) string {
	if len(all) <= shown {
		return strings.Join(all, separator)
	}
	return fmt.Sprintf("%s%sand %d more", strings.Join(all[:shown], separator), separator, len(all)-shown)
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
	action  string
	pods    []string // that hold it
	since   time.Time
}

func (d device) text() string {
	text := d.name + ": " + cmp.Or(d.message, d.reason)
	if len(d.pods) > 0 {
		text += ", held by " + firstFew(d.pods, ", ")
	}
	return text
}

// describeDevices returns the texts of the first few devices, and what to do about them.
func describeDevices(devices []device) string {
	var texts, actions []string
	for _, d := range devices {
		texts = append(texts, d.text())
		if d.action != "" && !slices.Contains(actions, d.action) {
			actions = append(actions, d.action)
		}
	}
	return readiness.WithAction(firstFew(texts, "; "), strings.Join(actions[:min(len(actions), shown)], "; "))
}

// holders returns the pods that hold each device, and when the kubelet was asked for them.
func (f Facts) holders() (pods map[gpu.UUID][]string, asked time.Time) {
	for _, o := range f.Outcomes {
		if o.HoldersTime.After(asked) {
			pods, asked = o.Holders, o.HoldersTime
		}
	}
	return pods, asked
}

// devices returns each device once, even if it is offered several times, in the plugin's
// order.
func (f Facts) devices() []device {
	s, ok := f.States[nodestate.DevicePlugin]
	if !ok || s.DevicePlugin == nil {
		return nil
	}
	holders, _ := f.holders()
	var out []device
	for _, d := range s.DevicePlugin.Devices() {
		i := slices.IndexFunc(out, func(o device) bool { return o.id == d.GPU })
		if i < 0 {
			i = len(out)
			out = append(out, device{id: d.GPU, name: cmp.Or(f.Names[d.GPU], string(d.GPU)), healthy: true})
		}
		if d.Health == nodestate.Unhealthy && out[i].healthy {
			out[i] = device{id: d.GPU, name: out[i].name, reason: cmp.Or(string(d.Reason), "Unhealthy"), message: d.Message, action: d.Action, pods: holders[d.GPU], since: d.Since}
		}
	}
	return out
}
