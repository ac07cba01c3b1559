// Package status computes the status of a ClusterPolicy. It is pure and bounded in size. Equal
// inputs give equal statuses, so that an unchanged status need not be written.
//
// It claims nothing that is unknown: a cluster whose nodes were not evaluated is not ready,
// and a node without reports is neither ready nor failed. Where the API server refused the operator a
// request, it names the missing right.
package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
)

// Reasons of the conditions, besides those of a pool's driver.
const (
	ReasonAllReady      = "AllNodesReady"
	ReasonNoNodes       = "NoGPUNodes"
	ReasonNoLabels      = "NoNodeFeatureLabels"
	ReasonNodesNotReady = "NodesNotReady"
	ReasonNodesUnknown  = "NodesUnknown"

	ReasonProgressing = "NodesProgressing"
	ReasonUpgrading   = "DriverUpgrade"
	ReasonServing     = "ServeSwitch" // nodes change between device plugin and DRA driver
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

	ReasonAnotherOperator     = "AnotherOperator"
	ReasonAnotherInstallation = "AnotherInstallation" // its device plugin serves the same nodes
)

// Bounds in bytes, which keep a status below 150 KiB.
const (
	maxMessage = 1024 // of a condition
	maxLine    = 300  // of a node or a pool
	maxNamed   = 3    // examples in a message
)

// Verdict describes why a policy is not in force.
type Verdict struct {
	State   v1.State // Ignored, Disabled or, if it is refused, NotReady
	Reason  string
	Message string
}

// Ignored returns the Verdict on a policy while an older one is in force.
func Ignored(inForce string) *Verdict {
	return &Verdict{v1.Ignored, ReasonIgnored, "ClusterPolicy " + inForce + " is older and in force; delete one of them"}
}

// OtherOperator returns the Verdict while NVIDIA's operator runs and no node was handed over.
// running names its Deployment. The status is not written: NVIDIA's operator writes it.
func OtherOperator(running, handOver string) *Verdict {
	return &Verdict{v1.Disabled, ReasonOtherOperator, fmt.Sprintf("%s runs and serves this cluster's nodes; uninstall it, or hand nodes over one by one with the label %s", running, handOver)}
}

// OperandsElsewhere returns the Verdict while another operator's operands for the policy run in
// another namespace. A second stack beside them would serve the same nodes.
func OperandsElsewhere(namespace string) *Verdict {
	return &Verdict{v1.NotReady, ReasonAnotherOperator, fmt.Sprintf("another operator's operands for this policy still run in namespace %s, and nothing is made beside them; "+
		"delete them: kubectl -n %s delete daemonsets,services -l app.kubernetes.io/part-of=gpuready", namespace, namespace)}
}

// Node is a GPU node and its progress. It must not be changed once it is counted.
type Node struct {
	*fleet.Node
	progress.Progress
}

// Problem is a part of the policy that cannot be carried out.
type Problem struct {
	Reason  string
	Message string // names the field and the next action
}

// Input holds everything that a status depends on.
type Input struct {
	Policy    *v1.ClusterPolicy // with its previous status
	Now       time.Time
	Namespace string   // of the operands
	Verdict   *Verdict // nil: the policy is in force

	Described bool // NFD has labelled a node of the cluster
	Tally     Tally
	Choices   []driver.Choice
	Problems  []Problem // of the policy, for all pools
	Unserved  []string  // fields that are stored but have no effect: "gds: REASON"

	Serve        *v1.ServeStatus   // nil if no node changes
	Upgrade      *v1.UpgradeStatus // nil if there is none
	UpgradeError string            // where and why it stopped; "" if it has not
	Rolling      []string          // DaemonSets whose pods are being replaced
	Err          error             // of the last pass
	Prebuilt     []v1.PrebuiltStatus
	Provisioning []v1.ProvisioningStatus

	Operator string   // Deployment of this operator, as namespace/name
	Others   []string // Deployments of this product in other namespaces, which are on standby
	// Plugins are the DaemonSets of device plugins of this product in other namespaces that run on
	// GPU nodes, each with one of them.
	Plugins map[types.NamespacedName]string
}

// Compute returns the status for an input.
func Compute(in Input) v1.ClusterPolicyStatus {
	s := v1.ClusterPolicyStatus{Namespace: in.Namespace, ObservedGeneration: in.Policy.Generation, Unserved: unserved(in.Unserved), Upgrade: in.Upgrade, Serve: in.Serve, Provisioning: in.Provisioning}
	var all []metav1.Condition
	if in.Verdict != nil {
		s.State, s.Upgrade, s.Serve, s.Provisioning = in.Verdict.State, nil, nil, in.Policy.Status.Provisioning
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
	} else if len(in.Plugins) > 0 && in.Verdict == nil {
		all = append(all, in.otherPluginsCondition())
	}
	s.Conditions = keepTransitionTimes(in.Policy.Status.Conditions, all, in.Policy.Generation, in.Now)
	return s
}

// verdictConditions returns the conditions of a policy that is not in force. Stalled tells
// clients that wait for the policy, such as Helm, that waiting does not help (kstatus).
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

// keepTransitionTimes sets the times of conditions: the previous time if the status is the same.
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
		return no(ReasonNoLabels, "no node has labels of NFD (feature.node.kubernetes.io/…), so it is unknown which have GPUs; install Node Feature Discovery, or label the nodes nvidia.com/gpu.present=true")
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
	case in.Serve != nil && in.Serve.InProgress+in.Serve.Pending > 0:
		return yes(ReasonServing, fmt.Sprintf("pods shall get GPUs by %s: %d of %d nodes are on their way, and %d wait for their turn",
			servedBy[in.Serve.Want], in.Serve.InProgress, in.Serve.Total, in.Serve.Pending)+waitingExamples(in.Serve.Waiting))
	case c.Progressing > 0:
		return yes(ReasonProgressing, fmt.Sprintf("%d of %d GPU nodes are on their way", c.Progressing, c.Total)+c.examples(progress.Waiting))
	case slices.ContainsFunc(in.Choices, pending):
		return yes(string(driver.RegistryPending), "looking up the drivers' images in their registries")
	case len(in.Rolling) > 0:
		return yes(ReasonRolling, "pods are being replaced: "+nameFirst(in.Rolling))
	}
	return condition(v1.ConditionProgressing, metav1.ConditionFalse, ReasonSettled, "nothing is in progress")
}

// servedBy names the ways in which pods get GPUs.
var servedBy = map[v1.Serve]string{v1.ServePlugin: "the device plugin", v1.ServeDRA: "ResourceClaims"}

// errorReason returns why the last pass failed: the missing rights, if any were missing.
func (in Input) errorReason() (reason, message string) {
	if missing := MissingRights(in.Err.Error()); len(missing) > 0 {
		return ReasonRights, RightsMessage(missing)
	}
	return ReasonReconcile, in.Err.Error()
}

// degradedCondition reports all failures, with the reason of the first.
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

// poolProblems returns the distinct problems of the pools' drivers.
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

// pending reports whether a pool's driver is not known yet but soon will be.
func pending(c driver.Choice) bool {
	return c.Problem != nil && c.Problem.Reason == driver.RegistryPending
}

// unserved sorts and bounds the lines about fields without effect.
func unserved(lines []string) (some []string) {
	for _, line := range slices.Sorted(slices.Values(lines))[:min(len(lines), v1.MaxUnserved)] {
		some = append(some, record.Clean(line, maxLine))
	}
	return some
}

func (in Input) unservedCondition() metav1.Condition {
	if len(in.Unserved) == 0 {
		return condition(v1.ConditionUnserved, metav1.ConditionFalse, ReasonServed, "all fields that are set are served")
	}
	var fields []string
	for _, line := range slices.Sorted(slices.Values(in.Unserved)) {
		field, _, _ := strings.Cut(line, ": ")
		fields = append(fields, field)
	}
	return condition(v1.ConditionUnserved, metav1.ConditionTrue, ReasonUnserved,
		"these settings have no effect, and status.unserved tells why: "+strings.Join(fields, ", "))
}

// contestedCondition reports that another operator is installed and on standby.
func (in Input) contestedCondition() metav1.Condition {
	return condition(v1.ConditionContested, metav1.ConditionTrue, ReasonAnotherOperator, fmt.Sprintf(
		"Deployment %s serves this cluster, and Deployment %s stands down; uninstall one of them", in.Operator, nameFirst(in.Others)))
}

// otherPluginsCondition reports device plugins that another installation, such as the static manifests,
// runs on the same nodes.
func (in Input) otherPluginsCondition() metav1.Condition {
	var sets []string
	for set, node := range in.Plugins {
		sets = append(sets, fmt.Sprintf("DaemonSet %s on node %s (kubectl -n %s delete daemonsets -l %s=%s)", set, node, set.Namespace, label.PartOf, label.Product))
	}
	return condition(v1.ConditionContested, metav1.ConditionTrue, ReasonAnotherInstallation, fmt.Sprintf(
		"another installation's device plugin runs on nodes of this policy, and the kubelet uses whichever registered last; delete it (docs/manifests-to-operator.md): %s", nameFirst(sets)))
}

// nameFirst names the first few of many.
func nameFirst(all []string) string {
	all = slices.Sorted(slices.Values(all))
	if len(all) <= maxNamed {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:maxNamed], ", "), len(all)-maxNamed)
}
