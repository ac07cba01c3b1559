// Package progress says how far a node is on its way to GPUs that can be used, and why
// it is not farther: from what its pods' states are and from what the validator has
// proven. It is pure.
//
// What is not known is not claimed. A pod that cannot start is told of before the
// validator's silence, and the validator's word counts only while it is said anew and
// the node's kubelet is heard of.
package progress

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/road"
)

// Status is how it stands with a node.
type Status string

// The statuses.
const (
	Waiting  Status = "waiting"  // it is on its way
	Failed   Status = "failed"   // somebody has to do something
	Ready    Status = "ready"    // all that was asked for is proven
	Excluded Status = "excluded" // somebody keeps the operands away
	Unknown  Status = "unknown"  // nobody says anything that could be believed
)

// Stale is how far the validator's condition, which it says again every five minutes, may
// be behind what the kubelet says as often, before it is not believed any more. Both are by
// the node's clock, whatever that shows: it is compared with no other.
const Stale = 15 * time.Minute

// Reasons of a node's progress, apart from those of its pods and of the validator.
const (
	ReasonNodeNotReady = "NodeNotReady"
	ReasonExcluded     = "OperandsKeptAway"
	ReasonHandedOver   = "NotHandedOver"
	ReasonNoPod        = "PodMissing"
	ReasonNotValidated = "NotValidated"
	ReasonStale        = "ConditionStale"
	ReasonNoLabels     = "FeatureLabelsMissing"
)

// Wanted is what a node is measured by.
type Wanted struct {
	States   []road.State // that the policy asks for
	HandOver bool         // only nodes that were handed over are served
}

// Progress is how far a node is.
type Progress struct {
	Steps   []road.State // reached, in their order
	State   road.State   // the first that is not; "" where all are, or none is wanted
	Status  Status
	Reason  string
	Message string // at most 512 bytes, one line
	Since   time.Time
	// Beside are states that nothing waits for, or that have been proven, and whose pods
	// do not start.
	Beside []Trouble
}

// Trouble is a state whose pod does not start.
type Trouble struct {
	State road.State
	Pod   string // namespace/name
	Problem
}

// layers are the states that the validator's word proves.
var layers = map[road.State][]readiness.Layer{
	road.DriverValidation:  {readiness.Driver},
	road.ToolkitValidation: {readiness.Toolkit},
	road.PluginValidation:  {readiness.CUDA, readiness.Plugin},
}

// proofs are the states that prove those that have pods.
var proofs = map[road.State]road.State{
	road.Driver:       road.DriverValidation,
	road.Toolkit:      road.ToolkitValidation,
	road.DevicePlugin: road.PluginValidation,
}

// Of says how far a node is that has a GPU. pods are the operands' on it.
func Of(n *fleet.Node, pods []*Pod, w Wanted) Progress {
	switch {
	case n.Away():
		return Progress{Status: Excluded, Reason: ReasonExcluded, Message: "the label " + label.Operands + "=false keeps the operands away"}
	case w.HandOver && !n.HandedOver():
		return Progress{Status: Excluded, Reason: ReasonHandedOver, Message: "NVIDIA's operator serves this node; the label " + label.HandOver + "=" + label.Product + " hands it over"}
	case !n.Ready:
		return Progress{State: road.Prerequisites, Status: Unknown, Reason: ReasonNodeNotReady, Message: "the Node is not Ready: nothing that is said of it can be believed"}
	}
	v := nodeView{node: n, pods: pods, verdict: readVerdict(n)}
	p := v.evaluate(w.States)
	p.Beside = v.beside(p, w.States)
	return p
}

// verdict is what the validator says: how many layers are proven, and what is said of the
// next.
type verdict struct {
	fleet.Condition
	distrust string // why it is not believed; "" where it is
	proven   int    // of readiness.Layers
}

func (w verdict) trusted() bool { return w.distrust == "" }

// readVerdict reads the condition GPUReady: its message begins with the layer that it is about.
func readVerdict(n *fleet.Node) verdict {
	w := verdict{Condition: n.GPUReady}
	if w.Said.IsZero() {
		w.Said = w.Since // nobody says it again
	}
	all := readiness.Layers()
	switch {
	case w.Status == "":
		w.distrust = ReasonNotValidated
	case n.Heartbeat.Sub(w.Said) >= Stale:
		w.distrust = ReasonStale
	case w.Status == corev1.ConditionTrue:
		w.proven = len(all)
	default:
		at, _, _ := strings.Cut(w.Message, ": ")
		w.proven = max(0, slices.Index(all, readiness.Layer(at)))
		if _, err := readiness.ParseOptional(at); err == nil {
			w.proven = len(all) - 1 // the road is proven, and what was asked for beside it is not
		}
	}
	return w
}

// confirms says whether the validator's word proves a state, and whether it is about it.
func (w verdict) confirms(s road.State) bool {
	all := readiness.Layers()
	for _, l := range layers[s] {
		if slices.Index(all, l) >= w.proven {
			return false
		}
	}
	return true
}

// Pod says that it is a pod's state, and not the validator's word, that the node has not
// reached.
func (p Progress) Pod() bool {
	return p.State == road.Driver || slices.Contains([]string{ReasonImagePull, ReasonCrashLoop, ReasonCannotStart, ReasonUnschedulable, ReasonNotAdmitted}, p.Reason)
}
