// Package status sums up what is known into the status of a ClusterPolicy. It is pure,
// bounded in size, and says the same of the same: a status that is equal to the one
// before need not be written.
//
// It claims nothing that is not known: a cluster whose nodes nobody has looked at is not
// ready, and a node of which nothing is heard is neither ready nor failed.
package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/progress"
	"github.com/gpuready/gpuready/operator/right"
)

// Reasons of the conditions, apart from those of a pool's driver.
const (
	ReasonAllReady      = "AllNodesReady"
	ReasonNoNodes       = "NoGPUNodes"
	ReasonNoLabels      = "NoNodeFeatureLabels"
	ReasonNodesNotReady = "NodesNotReady"
	ReasonNodesUnknown  = "NodesUnknown"

	ReasonProgressing = "NodesProgressing"
	ReasonUpgrading   = "DriverUpgrade"
	ReasonRolling     = "OperandsRolling"
	ReasonSettled     = "Settled"

	ReasonNodesFailed    = "NodesFailed"
	ReasonUpgradeFailed  = "DriverUpgradeFailed"
	ReasonOperandsFailed = "OperandsFailed"
	ReasonReconcile      = "ReconcileFailed"
	ReasonRights         = "RightsMissing"
	ReasonHealthy        = "NothingFailed"

	ReasonUnserved = "FieldsNotServed"
	ReasonServed   = "AllFieldsServed"

	ReasonIgnored       = "Ignored"
	ReasonOtherOperator = "OtherOperatorRuns"

	ReasonAnotherOperator = "AnotherOperator"
)

// Bounds in bytes: with them a status stays below 150 KiB.
const (
	maxMessage = 1024 // of a condition
	maxLine    = 300  // of a node or a pool
	maxField   = 200
	maxNamed   = 3 // examples in a message
)

// Verdict is why a policy is not in force.
type Verdict struct {
	State   v1.State // Ignored, Disabled or, where it is refused, NotReady
	Reason  string
	Message string
}

// Ignored is the Verdict on a policy that an older one keeps out.
func Ignored(inForce string) *Verdict {
	return &Verdict{v1.Ignored, ReasonIgnored, "ClusterPolicy " + inForce + " is older and in force; delete one of them"}
}

// OtherOperator is the Verdict while NVIDIA's operator runs and no node was handed over.
// running names its Deployment.
func OtherOperator(running, handOver string) *Verdict {
	return &Verdict{v1.Disabled, ReasonOtherOperator, fmt.Sprintf("%s runs and serves this cluster's nodes; uninstall it, or hand nodes over one by one with the label %s", running, handOver)}
}

// OperandsElsewhere is the Verdict while operands that another operator made for the policy
// run in another namespace: beside them, a second stack would serve the same nodes.
func OperandsElsewhere(namespace string) *Verdict {
	return &Verdict{v1.NotReady, ReasonAnotherOperator, fmt.Sprintf("another operator's operands for this policy still run in namespace %s, and nothing is made beside them; "+
		"delete them: kubectl -n %s delete daemonsets,services -l app.kubernetes.io/part-of=gpuready", namespace, namespace)}
}

// Node is a GPU node and how far it is. It is not changed once it is counted.
type Node struct {
	*fleet.Node
	progress.Progress
}

// Problem is what of the policy cannot be done as it says.
type Problem struct {
	Reason  string
	Message string // names the field and the next action
}

// Input is what is known.
type Input struct {
	Policy    *v1.ClusterPolicy // with the status before
	Now       time.Time
	Namespace string   // the operands'
	Verdict   *Verdict // nil: the policy is in force

	Described bool // NFD has been on a node of the cluster
	Tally     *Tally
	Choices   []driver.Choice
	Problems  []Problem // with the policy, whatever the pools
	Unserved  []string  // fields that are kept and not served

	Upgrade      *v1.UpgradeStatus // nil: there is none
	UpgradeError string            // where it stopped, and why; "" it goes on
	Rolling      []string          // DaemonSets whose pods are being replaced
	Err          error             // what the last pass could not do
	Prebuilt     []v1.PrebuiltStatus
	Provisioning []v1.ProvisioningStatus

	Operator string   // Deployment of this operator, as namespace/name
	Others   []string // Deployments of this product in other namespaces, which stand down
}

// Sum sums it up.
func Sum(in Input) v1.ClusterPolicyStatus {
	s := v1.ClusterPolicyStatus{Namespace: in.Namespace, ObservedGeneration: in.Policy.Generation, UnservedFields: unserved(in.Unserved), Upgrade: in.Upgrade, Provisioning: in.Provisioning}
	var all []metav1.Condition
	if in.Verdict != nil {
		s.State, s.Upgrade, s.Provisioning = in.Verdict.State, nil, in.Policy.Status.Provisioning
		all = verdictConditions(*in.Verdict)
	} else {
		c := in.Tally.counts()
		s.Nodes, s.NotReady, s.Pools, s.Prebuilt = &c.NodesStatus, c.list, poolStatuses(in, c), in.Prebuilt
		ready := in.readyCondition(c)
		s.State = v1.NotReady
		if ready.Status == metav1.ConditionTrue {
			s.State = v1.Ready
		}
		all = []metav1.Condition{ready, in.progressingCondition(c), in.degradedCondition(c)}
	}
	all = append(all, in.unservedCondition())
	if len(in.Others) > 0 {
		all = append(all, in.contestedCondition())
	}
	s.Conditions = keepTransitionTimes(in.Policy.Status.Conditions, all, in.Policy.Generation, in.Now)
	return s
}

// verdictConditions are the conditions of a policy that is not in force. By Stalled those who wait for
// it, as Helm does, know that waiting does not help (kstatus).
func verdictConditions(v Verdict) []metav1.Condition {
	return []metav1.Condition{
		condition(v1.ConditionReady, metav1.ConditionFalse, v.Reason, v.Message),
		condition(v1.ConditionProgressing, metav1.ConditionFalse, v.Reason, v.Message),
		condition(v1.ConditionDegraded, metav1.ConditionFalse, v.Reason, v.Message),
		condition(v1.ConditionStalled, metav1.ConditionTrue, v.Reason, v.Message),
	}
}

func condition(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: record.Clean(message, maxMessage)}
}

// keepTransitionTimes gives conditions the time of their status: the one before where it is the same.
func keepTransitionTimes(before, now []metav1.Condition, generation int64, at time.Time) []metav1.Condition {
	for i := range now {
		c := &now[i]
		c.ObservedGeneration, c.LastTransitionTime = generation, metav1.NewTime(at.UTC().Truncate(time.Second))
		if j := slices.IndexFunc(before, func(b metav1.Condition) bool { return b.Type == c.Type && b.Status == c.Status }); j >= 0 {
			c.LastTransitionTime = before[j].LastTransitionTime
		}
	}
	return now
}

func (in Input) readyCondition(c counts) metav1.Condition {
	no := func(reason, message string) metav1.Condition {
		return condition(v1.ConditionReady, metav1.ConditionFalse, reason, message)
	}
	switch {
	case in.Err != nil:
		return no(in.errorReason())
	case c.Total+c.Excluded == 0 && !in.Described:
		return no(ReasonNoLabels, "no node has labels of NFD (feature.node.kubernetes.io/…), so it is not known which have GPUs; install Node Feature Discovery, or label the nodes nvidia.com/gpu.present=true")
	case c.Total+c.Excluded == 0:
		return condition(v1.ConditionReady, metav1.ConditionTrue, ReasonNoNodes, "no node has an NVIDIA GPU; one that comes is served, and where NFD cannot see it the label nvidia.com/gpu.present=true says that it has one")
	case c.Ready == c.Total:
		return condition(v1.ConditionReady, metav1.ConditionTrue, ReasonAllReady, c.String())
	case c.Progressing+c.Failed == 0:
		return condition(v1.ConditionReady, metav1.ConditionUnknown, ReasonNodesUnknown, c.String()+c.examples(progress.Unknown))
	}
	return no(ReasonNodesNotReady, c.String()+c.examples(progress.Failed, progress.Unknown, progress.Waiting))
}

func (in Input) progressingCondition(c counts) metav1.Condition {
	yes := func(reason, message string) metav1.Condition {
		return condition(v1.ConditionProgressing, metav1.ConditionTrue, reason, message)
	}
	u := in.Upgrade
	switch {
	case u != nil && u.InProgress+u.Pending > 0 && in.UpgradeError == "":
		return yes(ReasonUpgrading, fmt.Sprintf("%d of %d nodes have the new driver, %d are on their way", u.Done, u.Total, u.InProgress)+waitingExamples(u.Waiting))
	case c.Progressing > 0:
		return yes(ReasonProgressing, fmt.Sprintf("%d of %d GPU nodes are on their way", c.Progressing, c.Total)+c.examples(progress.Waiting))
	case slices.ContainsFunc(in.Choices, pending):
		return yes(string(driver.RegistryPending), "registries are being asked whether they have the drivers' images")
	case len(in.Rolling) > 0:
		return yes(ReasonRolling, "pods are being replaced: "+nameFirst(in.Rolling))
	}
	return condition(v1.ConditionProgressing, metav1.ConditionFalse, ReasonSettled, "nothing is on its way")
}

// errorReason is why the last pass failed: of what was refused, the rights that are missing.
func (in Input) errorReason() (reason, message string) {
	if missing := right.Missing(in.Err.Error()); len(missing) > 0 {
		return ReasonRights, right.Message(missing)
	}
	return ReasonReconcile, in.Err.Error()
}

// degradedCondition tells of all that failed, and is called by the first of it.
func (in Input) degradedCondition(c counts) metav1.Condition {
	var reason string
	var messages []string
	add := func(why, message string) {
		reason = cmp.Or(reason, why)
		messages = append(messages, record.Clean(message, maxLine))
	}
	if in.Err != nil {
		add(in.errorReason())
	}
	for _, p := range poolProblems(in.Choices) {
		add(string(p.Reason), p.Message)
	}
	for _, p := range in.Problems {
		add(p.Reason, p.Message)
	}
	if in.UpgradeError != "" {
		add(ReasonUpgradeFailed, in.UpgradeError)
	}
	if c.Failed > 0 {
		add(ReasonNodesFailed, fmt.Sprintf("%d of %d GPU nodes failed", c.Failed, c.Total)+c.examples(progress.Failed))
	}
	if len(c.beside) > 0 {
		add(ReasonOperandsFailed, "pods do not start: "+nameFirst(c.beside))
	}
	if reason == "" {
		return condition(v1.ConditionDegraded, metav1.ConditionFalse, ReasonHealthy, "nothing failed")
	}
	return condition(v1.ConditionDegraded, metav1.ConditionTrue, reason, strings.Join(messages, "; "))
}

// poolProblems are those of the pools' drivers, each once.
func poolProblems(choices []driver.Choice) []driver.Problem {
	all := map[driver.Problem]bool{}
	for _, c := range choices {
		if c.Problem != nil && !pending(c) {
			all[*c.Problem] = true
		}
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b driver.Problem) int {
		return cmp.Or(cmp.Compare(a.Reason, b.Reason), strings.Compare(a.Message, b.Message))
	})
}

// pending says that a pool's driver is not known yet, and will be by itself.
func pending(c driver.Choice) bool {
	return c.Problem != nil && c.Problem.Reason == driver.RegistryPending
}

// unserved bounds the list of fields.
func unserved(fields []string) (some []string) {
	for _, f := range slices.Sorted(slices.Values(fields))[:min(len(fields), v1.MaxUnserved)] {
		some = append(some, record.Clean(f, maxField))
	}
	return some
}

func (in Input) unservedCondition() metav1.Condition {
	if len(in.Unserved) == 0 {
		return condition(v1.ConditionUnserved, metav1.ConditionFalse, ReasonServed, "all fields that are set are served")
	}
	return condition(v1.ConditionUnserved, metav1.ConditionTrue, ReasonUnserved,
		"these fields are kept as they are and have no effect: "+strings.Join(slices.Sorted(slices.Values(in.Unserved)), ", "))
}

// contestedCondition tells that another operator is installed, which does nothing.
func (in Input) contestedCondition() metav1.Condition {
	return condition(v1.ConditionContested, metav1.ConditionTrue, ReasonAnotherOperator, fmt.Sprintf(
		"Deployment %s serves this cluster, and Deployment %s stands down; uninstall one of them", in.Operator, nameFirst(in.Others)))
}

// nameFirst are the first few of many.
func nameFirst(all []string) string {
	all = slices.Sorted(slices.Values(all))
	if len(all) <= maxNamed {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:maxNamed], ", "), len(all)-maxNamed)
}
