// Package progress determines how far a node is on its way to usable GPUs, and what holds it
// up. It combines the states of the node's pods with the validator's results. It is pure.
//
// It claims nothing that is unknown. A pod that cannot start is reported before the
// validator's silence. The validator's result counts only while it is renewed and the node's
// kubelet reports.
package progress

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpuready/gpuready/internal/readiness"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
)

// Status summarizes the state of a node.
type Status string

// The statuses.
const (
	Waiting  Status = "waiting"  // in progress
	Failed   Status = "failed"   // somebody has to act
	Ready    Status = "ready"    // everything wanted is validated
	Excluded Status = "excluded" // a person excludes the node from the operands
	Unknown  Status = "unknown"  // there is no trustworthy report
)

// Reasons of a node's progress, besides those of its pods and of the validator.
const (
	ReasonNodeNotReady = "NodeNotReady"
	ReasonExcluded     = "OperandsKeptAway"
	ReasonHandedOver   = "NotHandedOver"
	ReasonNotSelected  = "NotSelected"
	ReasonNoPod        = "PodMissing"
	ReasonNotValidated = "NotValidated"
	ReasonStale        = "ConditionStale"
	ReasonStopped      = readiness.ReasonStopped
	ReasonNoLabels     = "FeatureLabelsMissing"
)

// Wanted is the goal that a node's progress is measured against.
type Wanted struct {
	States   []State           // that the policy requires, in their order
	HandOver bool              // only nodes that were handed over are served
	Selector map[string]string // the policy's node selector of all operands and of the validator
}

// NewWanted returns the goal of a policy. handOver is true while NVIDIA's operator runs.
func NewWanted(spec *v1.ClusterPolicySpec, handOver bool) Wanted {
	selector := map[string]string{}
	maps.Copy(selector, spec.Daemonsets.NodeSelector)
	maps.Copy(selector, spec.Validator.NodeSelector)
	// Placement leaves these out, and reports them.
	maps.DeleteFunc(selector, func(key, value string) bool {
		return key == corev1.LabelOSStable || key == label.HandOver || strings.HasPrefix(key, label.Deploy) ||
			len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0
	})
	return Wanted{States: States(spec), HandOver: handOver, Selector: selector}
}

// selects reports whether the policy's node selector selects a node.
func (w Wanted) selects(n *fleet.Node) bool {
	for key, value := range w.Selector {
		if have, ok := n.AllLabels[key]; !ok || have != value {
			return false
		}
	}
	return true
}

// Progress describes how far a node is.
type Progress struct {
	Steps   []State // reached, in order; shared, not to be changed
	State   State   // the first that is not reached; "" if there is none
	Status  Status
	Reason  string
	Message string // at most 512 bytes, one line
	Since   time.Time
	// Others are problems of states that nothing waits for or that are validated, but whose
	// pods do not start.
	Others []PodProblem
}

// PodProblem is a state whose pod does not start.
type PodProblem struct {
	State State
	Pod   string // namespace/name
	Problem
}

// layers are the validator's layers that confirm a state.
var layers = map[State][]readiness.Layer{
	DriverValidation:  {readiness.Driver},
	ToolkitValidation: {readiness.Toolkit},
	PluginValidation:  {readiness.CUDA, readiness.Plugin},
}

// layerOrder is the order in which the validator proves its layers, and optionalLayers are those
// that nothing waits for.
var (
	layerOrder     = readiness.Layers()
	optionalLayers = readiness.Optional()
)

// proofs map states with pods to the states that validate them.
var proofs = map[State]State{
	Driver:       DriverValidation,
	Toolkit:      ToolkitValidation,
	DevicePlugin: PluginValidation,
}

// Of returns the progress of a GPU node. pods are the operands' pods on it.
func Of(n *fleet.Node, pods []*Pod, w Wanted) Progress {
	switch {
	case n.Excluded():
		return Progress{Status: Excluded, Reason: ReasonExcluded, Message: "the label " + label.Operands + "=false keeps the operands away"}
	case w.HandOver && !n.HandedOver():
		return Progress{Status: Excluded, Reason: ReasonHandedOver, Message: "NVIDIA's operator serves this node; the label " + label.HandOver + "=" + label.Product + " hands it over"}
	case !w.selects(n):
		return Progress{Status: Excluded, Reason: ReasonNotSelected, Message: "the policy's nodeSelector, in daemonsets or validator, does not select the node"}
	case !n.Ready:
		return Progress{State: Prerequisites, Status: Unknown, Reason: ReasonNodeNotReady, Message: "the Node is not Ready: its reports cannot be trusted"}
	}
	v := nodeView{node: n, pods: pods, verdict: readVerdict(n)}
	p := v.evaluate(w.States)
	p.Others = v.beside(p, w.States)
	return p
}

// verdict is the validator's result: how many layers are proven, and the state of the next
// one.
type verdict struct {
	fleet.Condition
	distrust string // why it does not count; "" if it does
	proven   int    // of readiness.Layers
}

func (w verdict) trusted() bool { return w.distrust == "" }

// readVerdict reads the condition GPUReady, whose message begins with the layer it is about.
func readVerdict(n *fleet.Node) verdict {
	w := verdict{Condition: n.GPUReady}
	w.Renewed = n.GPUReady.LastWrite()
	switch {
	case w.Status == "":
		w.distrust = ReasonNotValidated
	case n.Stale():
		w.distrust = ReasonStale
	case w.Status == corev1.ConditionUnknown && w.Reason == ReasonStopped:
		w.distrust = ReasonStopped
	case w.Status == corev1.ConditionTrue:
		w.proven = len(layerOrder)
	default:
		at, _, _ := strings.Cut(w.Message, ": ")
		w.proven = max(0, slices.Index(layerOrder, readiness.Layer(at)))
		if slices.Contains(optionalLayers, readiness.Layer(at)) {
			w.proven = len(layerOrder) - 1 // all layers are proven, but not an optional one
		}
	}
	return w
}

// confirms reports whether the validator has proven a state.
func (w verdict) confirms(s State) bool {
	for _, l := range layers[s] {
		if slices.Index(layerOrder, l) >= w.proven {
			return false
		}
	}
	return true
}

// Pod reports whether the node waits for a pod, rather than for the validator.
func (p Progress) Pod() bool {
	return p.State == Driver || slices.Contains([]string{ReasonImagePull, ReasonCrashLoop, ReasonCannotStart, ReasonUnschedulable, ReasonNotAdmitted}, p.Reason)
}
