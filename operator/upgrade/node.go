package upgrade

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/operator/label"
)

// Timeouts. A new driver must be validated within validationTimeout, as in the reference. A
// driver may outlive its container, and then nothing can be validated again: a validation
// that is older than the driver pod counts after proofSettleTime.
const (
	validationTimeout = 10 * time.Minute
	proofSettleTime   = 10 * time.Second
	operandsTimeout   = 2 * time.Minute // for operands to release the driver
	endTimeout        = 5 * time.Minute // for a deleted driver pod to end after its grace period
)

// begin begins the upgrade of a node.
func (w *planner) begin(n *node) {
	n.since = w.Now
	w.advance(n, WaitForJobs, edit{
		state: WaitForJobs,
		event: &Event{Reason: Reason, Message: "the driver's upgrade begins: DaemonSet " + n.target.Name},
	})
}

// resume continues the upgrade of a node from a state.
func (w *planner) resume(n *node, from State) {
	w.begun++
	e := edit{state: n.state, since: n.since}
	if from != n.state {
		n.since = w.Now
		e = edit{state: from}
	}
	if n.since.IsZero() {
		n.since = w.Now
		e.since = time.Time{}
	}
	w.advance(n, from, e)
}

// advance moves the node from state s through the next ones until one has to wait, and plans what
// that state requires.
func (w *planner) advance(n *node, s State, e edit) {
	for {
		next, why := w.step(n, s)
		if next == s {
			break
		}
		s, n.since = next, w.Now
		e.state, e.since, e.why, e.moved = s, time.Time{}, why, true
		if s == Failed || s == Required {
			e.event = nil
			break // the next plan decides whether to recover
		}
	}
	switch s {
	case Failed:
		w.plan.Counts.Failed++
		why := e.why
		if why == "" {
			why = n.Annotations[label.UpgradeReason]
		}
		e.why = why
		w.plan.Failed = append(w.plan.Failed, Failure{n.Name, why, n.since})
	case Required:
		w.addBlocked(n, e.why, n.since)
	case Done:
		w.plan.Counts.Done++
	default:
		w.plan.Counts.InProgress++
		if !n.Cordoned && n.Ready {
			w.unavailable++ // about to be
		}
	}
	if s.evicts() || s == PodRestart {
		w.plan.Watch = append(w.plan.Watch, n.Name)
	}
	w.patch(n, e)
}

// step plans what a node needs in a state and returns the next state, which is the same
// while the node waits. why is set if the next state is Failed or Required.
func (w *planner) step(n *node, s State) (next State, why string) {
	if s.evicts() && !n.outdated {
		return ValidationRequired, "" // somebody else replaced the driver, or the policy was reverted
	}
	switch s {
	case CordonRequired:
		return WaitForJobs, ""
	case WaitForJobs:
		return w.waitForJobs(n), ""
	case PodDeletion:
		return w.deletePods(n)
	case DrainRequired:
		return w.drain(n)
	case PodRestart:
		return w.restartDriver(n)
	case ValidationRequired:
		return w.validate(n)
	case UncordonRequired:
		if n.outdated {
			return PodRestart, ""
		}
		return Done, ""
	case Failed:
		return w.recover(n), ""
	}
	return s, ""
}

// expired reports whether the node has been in its state for the timeout; 0 means no
// timeout. Until then it schedules a plan for the moment when it expires.
func (w *planner) expired(n *node, timeout time.Duration) bool {
	if timeout == 0 {
		return false
	}
	end := n.since.Add(timeout)
	if !end.After(w.Now) {
		return true
	}
	w.replanAt(end)
	return false
}

// replanAt schedules a plan at a future time unless one is due earlier.
func (w *planner) replanAt(at time.Time) {
	if at.After(w.Now) && (w.plan.NextPlan.IsZero() || at.Before(w.plan.NextPlan)) {
		w.plan.NextPlan = at
	}
}

// restartDriver replaces the old driver pod by the new one.
func (w *planner) restartDriver(n *node) (State, string) {
	d := n.driver
	released, why := true, ""
	if n.hasOldDriver() {
		released, why = w.driverReleased(n)
	}
	switch {
	case why != "":
		return Required, why
	case !released:
	case n.outdated && n.assigned != n.target.ID:
		w.reassign(n)
	case n.outdated:
		w.replace(n)
	case d == nil:
		w.setWaiting(n, "the driver pod to be created")
	case d.Deleting:
		w.setWaiting(n, "driver pod "+d.Name+" to end")
	case d.Ready:
		return ValidationRequired, ""
	case d.Failing != "":
		return Failed, fmt.Sprintf("driver pod %s: %s", d.Name, d.Failing) + w.gpuUsers(n)
	default:
		w.setWaiting(n, "driver pod "+d.Name+" to be ready")
	}
	return PodRestart, ""
}

// hasOldDriver reports whether the old driver's pod is there and not being deleted.
func (n *node) hasOldDriver() bool { return n.outdated && n.driver != nil && !n.driver.Deleting }

// driverReleased reports whether the driver may be unloaded because no known pod uses it.
// Operands have two minutes to leave; after that the driver's container reports what still
// holds the driver. Other pods that use GPUs and cannot be evicted, as their DaemonSets would
// recreate them at once, have the policy's eviction timeout; why then names them.
func (w *planner) driverReleased(n *node) (released bool, why string) {
	if n.HandedOver() {
		return true, "" // by NVIDIA's labels, which this operator must not change
	}
	pods, known := w.Pods[n.Name]
	var ours []*Pod
	for _, p := range pods {
		if p.Own && p.Agent && !p.Finished && p.UID != n.driver.UID {
			ours = append(ours, p)
		}
	}
	others, may := w.holders(n)
	policy := w.Policy.Deletion
	switch {
	case known && len(ours)+len(others) == 0 && !n.hasOperands():
		return true, ""
	case len(others) > 0 && !policy.Force:
		if w.expired(n, policy.Timeout) {
			return false, podNames(append(others, may...)) + " holds the driver and cannot be evicted: a DaemonSet's pod comes straight back. Keep it off the node (label it is selected by), " +
				"label the pod " + label.DrainSkip + "=true, or set podDeletion.force in spec.driver.upgradePolicy"
		}
	case w.expired(n, operandsTimeout):
		return true, ""
	}
	if left := slices.Concat(others, ours, may); len(left) > 0 {
		w.setWaiting(n, podNames(left)+" to let go of the driver")
	} else {
		w.setWaiting(n, "the operands to leave")
	}
	return false, ""
}

// holders returns the pods on the node that use GPUs and are not the operator's: those that
// must release the driver, and those of DaemonSets that a label excludes from draining.
func (w *planner) holders(n *node) (must, may []*Pod) {
	for _, p := range w.Pods[n.Name] {
		switch {
		case !w.uses(p) || p.Own || p.Finished:
		case p.Agent && p.Labels[label.DrainSkip] == "true":
			may = append(may, p)
		default:
			must = append(must, p)
		}
	}
	return must, may
}

// endDescription describes the wait for a driver pod that is being deleted.
func (w *planner) endDescription(n *node) string {
	return "driver pod " + n.driver.Name + " to end" + w.gpuUsers(n)
}

// gpuUsers names the pods that use the node's GPUs, as the end of a sentence.
func (w *planner) gpuUsers(n *node) string {
	must, may := w.holders(n)
	if all := append(must, may...); len(all) > 0 {
		return ", while " + podNames(all) + " uses the GPUs"
	}
	return ""
}

// hasOperands reports whether operands are still placed on the node.
func (n *node) hasOperands() bool {
	for key, value := range n.Labels {
		if pausable(key) && value == "true" {
			return true
		}
	}
	return false
}

// pausable reports whether a label places an operand that uses the driver. The DRA driver does not: it
// opens no GPU, and without it pods with claims could not end.
func pausable(key string) bool {
	return strings.HasPrefix(key, label.Deploy) && key != label.Deploy+label.DriverOperand && key != label.Deploy+label.DRAOperand && key != label.Operands
}

// reassign moves the node from one DaemonSet to another. It assigns the new DaemonSet only
// when the old one's pod is gone, since a second driver does not start beside the first.
func (w *planner) reassign(n *node) {
	d := n.driver
	if d == nil {
		w.assign(n, n.target.ID)
		w.setWaiting(n, "the driver pod to be created")
		return
	}
	w.setWaiting(n, w.endDescription(n))
	if d.DaemonSet == "" && !d.Deleting {
		w.deleteDriverPod(n) // no DaemonSet deletes it
	}
	w.assign(n, "")
}

// replace deletes the driver pod so that the DaemonSet that serves the node recreates it.
func (w *planner) replace(n *node) {
	d := n.driver
	if w.Sets[n.target.ID].Digest != n.target.Digest {
		w.setWaiting(n, "DaemonSet "+n.target.Name+" to be updated")
		return
	}
	w.setWaiting(n, w.endDescription(n))
	if !d.Deleting && (d.DaemonSet == n.target.Name || d.DaemonSet == "") {
		w.deleteDriverPod(n) // another DaemonSet deletes its pod itself, as it no longer selects the node
	}
}

func (w *planner) deleteDriverPod(n *node) {
	w.plan.Delete = append(w.plan.Delete, Removal{n.Name, n.UID, n.driver.Namespace, n.driver.Name, n.driver.UID})
}

// validate waits for the validation of the new driver.
func (w *planner) validate(n *node) (State, string) {
	switch {
	case n.outdated:
		return PodRestart, ""
	case n.driver != nil && !n.driver.Ready && n.driver.Failing != "":
		return Failed, fmt.Sprintf("driver pod %s: %s", n.driver.Name, n.driver.Failing)
	case w.validated(n):
		return Done, ""
	}
	if w.expired(n, validationTimeout) {
		return Failed, fmt.Sprintf("the new driver is not proven after %s: %s", validationTimeout, n.unprovenReason())
	}
	w.setWaiting(n, "the proof of the driver: "+n.unprovenReason())
	return ValidationRequired, ""
}

// validated reports whether the wanted driver is there and has been validated. The times of
// the validation and of the pod's start both come from the node's clock, so that a wrong
// clock does no harm.
func (w *planner) validated(n *node) bool {
	if !n.driver.available() || !n.proven() {
		return false
	}
	switch c, started := n.GPUReady, n.driver.Started; {
	case n.validatorDisabled():
		return true
	case started.IsZero():
		return false // the kubelet reports it with the pod's readiness, or before
	case !c.Since.Before(started):
		return true
	case c.Renewed.Before(started):
		return false // the next report of the validator is an event
	}
	return w.expired(n, proofSettleTime)
}

// available reports whether the pod is ready and not being deleted.
func (d *Driver) available() bool { return d != nil && d.Ready && !d.Deleting }

// proven reports whether the validator has validated the node or is disabled there.
func (n *node) proven() bool {
	return n.validatorDisabled() || n.GPUReady.Status == "True" && !n.Stale()
}

func (n *node) validatorDisabled() bool {
	return n.Labels[label.Deploy+"operator-validator"] == "false"
}

// unprovenReason returns why the node is not validated.
func (n *node) unprovenReason() string {
	switch c := n.GPUReady; {
	case !n.Ready:
		return "the node is not ready"
	case !n.driver.available():
		return "the driver pod is not ready"
	case c.Status == "":
		return "the Node has no condition GPUReady; is the validator there?"
	case c.Status == "True":
		return "it is older than the driver pod"
	default:
		return summarize(c.Message, c.Reason)
	}
}

// recover resumes a failed node that has become healthy, or whose target is another driver
// than the one that failed.
func (w *planner) recover(n *node) State {
	switch {
	case !n.outdated && w.validated(n):
		return Done
	case n.target.Keep || n.upgradeTarget(edit{state: Failed}) == n.target.String():
		return Failed
	case n.outdated:
		return WaitForJobs
	}
	return PodRestart
}
