package progress

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/internal/readiness"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
)

// nodeView holds a node, its pods and the validator's verdict.
type nodeView struct {
	node    *fleet.Node
	pods    []*Pod
	verdict verdict
}

// placements are the labels that place states' operands.
var placements = map[State]string{
	Driver: label.Deploy + "driver", Toolkit: label.Deploy + "container-toolkit", DriverValidation: label.Deploy + "operator-validator",
	DevicePlugin: label.Deploy + "device-plugin", FeatureLabels: label.Deploy + "gpu-feature-discovery",
	DRADriver: label.Deploy + label.DRAOperand, DCGM: label.Deploy + "dcgm", DCGMExporter: label.Deploy + "dcgm-exporter", MIGManager: label.Deploy + "mig-manager",
}

// excluded reports whether a state's pods are not placed on the node: a person excludes them,
// or the host has a driver.
func (l nodeView) excluded(s State) bool {
	return l.node.Labels[placements[s]] == "false" || s == Driver && l.node.HostDriver()
}

// evaluate goes through the states until one is not reached. On a node that serves ResourceClaims
// pods get no GPU without the DRA driver, so it is waited for there.
func (l nodeView) evaluate(wanted []State) Progress {
	var p Progress
	stop := func(s State, why obstacle) Progress {
		p.State, p.Status, p.Reason, p.Since = s, why.status, record.Clean(why.Reason, maxReason), why.Since
		p.Message = readiness.Shorten(why.Message, maxText)
		return p
	}
	if l.verdict.trusted() && l.node.ReportsPlatformNotServed() && l.pod(Driver) == nil { // a simulated driver works on any platform
		return stop(DriverValidation, obstacle{Failed, Problem{Reason: l.verdict.Reason, Message: l.verdict.Message, Since: l.verdict.Since}})
	}
	for i, s := range wanted {
		if s.optional() {
			break
		}
		if why, done := l.reached(s); !done {
			return stop(s, why)
		}
		p.Steps = wanted[:i+1]
	}
	if slices.Contains(wanted, DRADriver) && l.node.Labels[label.Serve] == string(v1.ServeDRA) && !l.excluded(DRADriver) {
		if why, done := l.podReady(DRADriver); !done {
			return stop(DRADriver, why)
		}
	}
	p.Status, p.Reason, p.Message, p.Since = Ready, record.Clean(l.node.GPUReady.Reason, maxReason), record.Clean(l.node.GPUReady.Message, maxText), l.node.GPUReady.Since
	return p
}

// obstacle describes why a state is not reached.
type obstacle struct {
	status Status
	Problem
}

func (l nodeView) reached(s State) (obstacle, bool) {
	switch s {
	case Prerequisites:
		return obstacle{}, true
	case Driver, Toolkit, DevicePlugin:
		if l.verdict.trusted() && l.verdict.confirms(proofs[s]) || l.excluded(s) {
			return obstacle{}, true
		}
		w, done := l.podReady(s)
		if s == Driver && !done {
			w = l.withDriverReason(w)
		}
		return w, done
	case FeatureLabels:
		if l.node.Labels[label.GPUProduct] != "" || l.excluded(s) {
			return obstacle{}, true
		}
		if pod := l.pod(s); pod != nil && !pod.Ready {
			return l.podReady(s)
		}
		return obstacle{Waiting, Problem{Reason: ReasonNoLabels, Message: "the Node has no label " + label.GPUProduct + " yet", Since: l.node.GPUReady.Since}}, false
	default:
		return l.validated(s)
	}
}

// pod returns a state's pod on the node, preferring one that is not being deleted.
func (l nodeView) pod(s State) *Pod {
	var found *Pod
	for _, p := range l.pods {
		if p.State == s && (found == nil || found.Deleting && !p.Deleting) {
			found = p
		}
	}
	return found
}

func (l nodeView) podReady(s State) (obstacle, bool) {
	p := l.pod(s)
	switch {
	case p == nil:
		return obstacle{Waiting, Problem{Reason: ReasonNoPod, Message: "there is no pod of " + string(s) + " on the node yet", Since: l.node.Created}}, false
	case p.Ready:
		return obstacle{}, true
	}
	w := obstacle{Waiting, p.Problem}
	if p.Problem.Stuck {
		w.status = Failed
	}
	w.Message = fmt.Sprintf("pod %s/%s: %s", p.Namespace, p.Name, p.Problem.Message)
	return w, false
}

// withDriverReason replaces the reason why the driver's pod is not ready by the more specific
// one of its container, which the validator reports. It does so only for this product's
// containers: with another's, the validator's text is about an earlier container.
func (l nodeView) withDriverReason(pod obstacle) obstacle {
	message, is := strings.CutPrefix(l.verdict.Message, string(readiness.Driver)+": "+readiness.NoDriver)
	p := l.pod(Driver)
	if !is || !l.verdict.trusted() || pod.Reason != ReasonNotReady || !p.Ours {
		return pod
	}
	pod.Reason, pod.Message = l.verdict.Reason, message
	return pod
}

// validated returns what the validator reports about a state.
func (l nodeView) validated(s State) (obstacle, bool) {
	w := l.verdict
	switch {
	case w.trusted() && w.confirms(s):
		return obstacle{}, true
	case w.trusted() && w.Status == corev1.ConditionFalse:
		status := Failed
		if l.validatorRestarting() {
			status = Waiting
		}
		return obstacle{status, Problem{Reason: w.Reason, Message: w.Message, Since: w.Since}}, false
	case w.trusted():
		return obstacle{Waiting, Problem{Reason: w.Reason, Message: w.Message, Since: w.Since}}, false
	case l.excluded(DriverValidation):
		return obstacle{Unknown, Problem{Reason: ReasonNotValidated, Message: "the label " + placements[DriverValidation] + "=false keeps the validator away: nothing is proven"}}, false
	}
	// There is no verdict, perhaps because the validator's pod does not start.
	if not, ready := l.podReady(DriverValidation); !ready {
		return not, false
	}
	switch w.distrust {
	case ReasonStopped: // the validator that runs now has not reported yet
		return obstacle{Waiting, Problem{Reason: ReasonStopped, Message: w.Message, Since: w.Since}}, false
	case ReasonStale:
		return obstacle{Unknown, Problem{Reason: ReasonStale, Message: fmt.Sprintf("the validator has not reported for more than %s: see the log of its pod", fleet.StaleAfter.Round(time.Minute)), Since: w.Renewed.Add(fleet.StaleAfter)}}, false
	}
	return obstacle{Unknown, Problem{Reason: ReasonNotValidated, Message: "the Node has no condition GPUReady yet: see the log of the validator's pod", Since: l.pod(DriverValidation).Created}}, false
}

// injectionMissing is the validator's reason when it ends in a container that was created
// without the GPUs' devices (validator/check).
const injectionMissing = "InjectionMissing"

// validatorRestarting reports whether the validator has ended so that the kubelet creates its
// container again with the GPUs that exist now. A container that ends so repeatedly has failed.
func (l nodeView) validatorRestarting() bool {
	if l.verdict.Reason != injectionMissing || !strings.HasPrefix(l.verdict.Message, string(readiness.Driver)+": ") || l.excluded(DriverValidation) {
		return false
	}
	p := l.pod(DriverValidation)
	return p == nil || !p.Problem.Stuck
}

// beside returns the pods that do not start, apart from the one that the node waits for.
func (l nodeView) beside(p Progress, wanted []State) (all []PodProblem) {
	for _, pod := range l.pods {
		if !pod.Problem.Stuck || pod.State == p.State || pod.State == DriverValidation && !l.verdict.trusted() || !slices.Contains(wanted, pod.State) {
			continue
		}
		all = append(all, PodProblem{pod.State, pod.Namespace + "/" + pod.Name, pod.Problem})
	}
	slices.SortFunc(all, func(a, b PodProblem) int { return strings.Compare(a.Pod, b.Pod) })
	return all
}
