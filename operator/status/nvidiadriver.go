package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1alpha1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
)

// ReasonNotUsed means that no ClusterPolicy in force leaves drivers to NVIDIADrivers.
const ReasonNotUsed = "NotUsed"

// DriverInput holds everything that the status of an NVIDIADriver depends on.
type DriverInput struct {
	Driver    *v1alpha1.NVIDIADriver // with its previous status
	Now       time.Time
	Namespace string // of the operands
	Unused    string // why NVIDIADrivers are not used; "": they are

	Tally    Tally
	Choices  []driver.Choice
	Problems []Problem // of its fields
	Unserved []string  // fields that are stored but have no effect

	Upgrade      *v1.UpgradeStatus // nil if there is none
	UpgradeError string            // where and why it stopped; "" if it has not
}

// ComputeDriver returns the status of an NVIDIADriver. Its nodes are those that it alone selects.
func ComputeDriver(in DriverInput) v1alpha1.NVIDIADriverStatus {
	s := v1alpha1.NVIDIADriverStatus{Namespace: in.Namespace, ObservedGeneration: in.Driver.Generation, Unserved: unserved(in.Unserved), State: v1.Disabled}
	var all []metav1.Condition
	if in.Unused != "" {
		all = []metav1.Condition{
			condition(v1.ConditionReady, metav1.ConditionFalse, ReasonNotUsed, in.Unused),
			condition(v1.ConditionDegraded, metav1.ConditionFalse, ReasonNotUsed, in.Unused),
		}
	} else {
		c := in.counts()
		s.Nodes, s.Upgrade = &c.NodesStatus, in.Upgrade
		s.Pools = poolStatuses(Input{Choices: in.Choices}, c)
		degraded := in.degradedCondition()
		ready := condition(v1.ConditionReady, metav1.ConditionTrue, ReasonAllReady, c.String())
		switch {
		case degraded.Reason == string(driver.Conflict):
			ready = condition(v1.ConditionReady, metav1.ConditionFalse, degraded.Reason, degraded.Message)
		case c.Total == 0:
			ready = condition(v1.ConditionReady, metav1.ConditionTrue, ReasonNoNodes, "no GPU node gets this driver")
		case c.Ready < c.Total:
			ready = condition(v1.ConditionReady, metav1.ConditionFalse, ReasonNodesNotReady, c.String()+"; the ClusterPolicy's status names them")
		}
		s.State = v1.NotReady
		if ready.Status == metav1.ConditionTrue {
			s.State = v1.Ready
		}
		all = []metav1.Condition{ready, degraded}
	}
	all = append(all, Input{Unserved: in.Unserved}.unservedCondition())
	s.Conditions = keepTransitionTimes(in.Driver.Status.Conditions, all, in.Driver.Generation, in.Now)
	return s
}

// counts counts the nodes of this driver.
func (in DriverInput) counts() counts {
	own := Tally{}
	for _, g := range in.Tally.Groups {
		if g.Pool.NVIDIADriver() == in.Driver.Name {
			own.Groups = append(own.Groups, g)
		}
	}
	return own.counts()
}

// degradedCondition reports conflicts with other NVIDIADrivers first, then the problems of this one.
func (in DriverInput) degradedCondition() metav1.Condition {
	var reason string
	var messages []string
	add := func(why, message string) {
		reason = cmp.Or(reason, why)
		messages = append(messages, record.Clean(message, maxLine))
	}
	var own, conflicts []driver.Choice
	for _, c := range in.Choices {
		switch {
		case c.Pool.NVIDIADriver() == in.Driver.Name:
			own = append(own, c)
		case in.isIn(c.Pool):
			conflicts = append(conflicts, c)
		}
	}
	for _, p := range append(poolProblems(conflicts), poolProblems(own)...) {
		add(string(p.Reason), p.Message)
	}
	for _, p := range in.Problems {
		add(p.Reason, p.Message)
	}
	if in.UpgradeError != "" {
		add(ReasonUpgradeFailed, in.UpgradeError)
	}
	if reason == "" {
		return condition(v1.ConditionDegraded, metav1.ConditionFalse, ReasonHealthy, "nothing failed")
	}
	return condition(v1.ConditionDegraded, metav1.ConditionTrue, reason, strings.Join(messages, "; "))
}

// isIn reports whether this NVIDIADriver is one of several that select a pool's nodes.
func (in DriverInput) isIn(p fleet.Pool) bool {
	return slices.Contains(strings.Split(p.Drivers, ", "), in.Driver.Name)
}

// Unused returns why NVIDIADrivers are not used while a policy is in force, or "" if they are.
func Unused(policy *v1.ClusterPolicy) string {
	switch {
	case policy == nil:
		return "no ClusterPolicy uses NVIDIADrivers"
	case policy.Spec.Driver.UsesNVIDIADrivers():
		return ""
	case !policy.Spec.Driver.IsEnabled():
		return fmt.Sprintf("ClusterPolicy %s sets driver.enabled to false: the hosts have their drivers", policy.Name)
	}
	return fmt.Sprintf("ClusterPolicy %s has the driver of all nodes; to use NVIDIADrivers, set driver.useNvidiaDriverCRD in it", policy.Name)
}
