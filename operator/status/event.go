package status

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/progress"
)

// maxEvents bounds the Events on nodes for one step. If all nodes of a cluster fail at once,
// the policy's own Event reports it.
const maxEvents = 25

// ReasonNodeReady is the reason of the Event when a failed node has become ready.
const ReasonNodeReady = "GPUNodeReady"

// Change is a change of a node's progress.
type Change struct {
	Node        string
	Before, Now progress.Progress
}

// Event is an Event to record for the policy or for a node.
type Event struct {
	Node    string // "": for the policy
	Type    string // Normal or Warning
	Reason  string
	Message string
}

// Events returns the Events for a change from one report to the next: changed conditions, pods
// of a node that do not start, and nodes that have recovered. The validator records its own
// results. Nothing is repeated, not even by a new operator process, which has no earlier
// progress of the nodes.
func Events(before, now []metav1.Condition, nodes []Change) []Event {
	all := policyEvents(before, now)
	recorded := 0
	for _, c := range slices.SortedFunc(slices.Values(nodes), func(a, b Change) int { return strings.Compare(a.Node, b.Node) }) {
		if e, is := nodeEvent(c.Before, c.Now); is && recorded < maxEvents {
			e.Node = c.Node
			all = append(all, e)
			recorded++
		}
	}
	return all
}

func policyEvents(before, after []metav1.Condition) (all []Event) {
	for _, c := range after {
		was := meta.FindStatusCondition(before, c.Type)
		if c.Type == v1.ConditionProgressing || c.Type == v1.ConditionStalled || was != nil && was.Status == c.Status && was.Reason == c.Reason {
			continue
		}
		good := metav1.ConditionFalse
		if c.Type == v1.ConditionReady {
			good = metav1.ConditionTrue
		}
		if was == nil && c.Status == good {
			continue // nothing was ever wrong
		}
		e := Event{Type: corev1.EventTypeWarning, Reason: c.Reason, Message: fmt.Sprintf("%s is %s: %s", c.Type, c.Status, c.Message)}
		if c.Status == good || c.Reason == ReasonNodesNotReady {
			e.Type = corev1.EventTypeNormal
		}
		all = append(all, e)
	}
	return all
}

func nodeEvent(was, is progress.Progress) (Event, bool) {
	switch {
	case is.Status == progress.Failed && is.Pod() && (was.Status != is.Status || was.Reason != is.Reason || was.State != is.State):
		return Event{Type: corev1.EventTypeWarning, Reason: is.Reason, Message: fmt.Sprintf("%s: %s", is.State, is.Message)}, true
	case is.Status == progress.Ready && was.Status == progress.Failed:
		return Event{Type: corev1.EventTypeNormal, Reason: ReasonNodeReady, Message: fmt.Sprintf("the GPUs can be used (was: %s: %s)", was.State, was.Reason)}, true
	}
	return Event{}, false
}
