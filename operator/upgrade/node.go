package upgrade

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/operator/label"
)

// How long is waited for the proof of a new driver: as long as the reference does; and
// how long a proof that is older than the driver pod has to hold beside it: a driver may
// outlive its container, and then there is nothing that could be proven anew.
const (
	validationTimeout = 10 * time.Minute
	proofSettleTime   = 10 * time.Second
	operandsTimeout   = 2 * time.Minute // for operands to let go of the driver
	endTimeout        = 5 * time.Minute // for a deleted driver pod to end, after its grace period
)

// begin begins the upgrade of a node.
func (w *planner) begin(n *node) {
	n.since = w.Now
	w.advance(n, WaitForJobs, edit{
		state: WaitForJobs,
		event: &Event{Reason: Reason, Message: "the driver's upgrade begins: DaemonSet " + n.target.Name},
	})
}

// resume goes on with the upgrade of a node, from a state.
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

// advance goes from state to state as far as nothing has to be waited for, and plans what
// the last one asks for.
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
			break // whether that can be mended is for the next plan
		}
	}
	switch s {
	case Failed:
		w.plan.Counts.Failed++
		why := e.why
		if why == "" {
			why = n.Annotations[label.UpgradeWhy]
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

// step plans what a node needs in a state, and returns the state that follows. It is the
// same one while the node waits. why is set where it is Failed or Required.
func (w *planner) step(n *node, s State) (next State, why string) {
	if s.evicts() && !n.outdated {
		return ValidationRequired, "" // somebody was faster, or the policy has come back
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

// expired says that the node has been in its state for as long as is allowed (0: for
// ever), and else has somebody look again when it has.
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

// replanAt has somebody look again at some time that is still to come.
func (w *planner) replanAt(at time.Time) {
	if at.After(w.Now) && (w.plan.Wake.IsZero() || at.Before(w.plan.Wake)) {
		w.plan.Wake = at
	}
}

// restartDriver has the old driver pod go and the new one come.
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
		w.setWaiting(n, "the driver pod to be made")
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

// hasOldDriver says that the old driver's pod is there, and nobody has told it to go.
func (n *node) hasOldDriver() bool { return n.outdated && n.driver != nil && !n.driver.Deleting }

// driverReleased reports whether the driver may be unloaded, as far as is known: no pod uses it.
// Operands have two minutes to go; after that the driver's container says what still holds
// the driver. Other pods that use GPUs and cannot be evicted, as their DaemonSets would
// bring them straight back, have as long as the policy gives evictions; why then names them.
func (w *planner) driverReleased(n *node) (released bool, why string) {
	if n.HandedOver() {
		return true, "" // by NVIDIA's labels, which are not ours to change
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
			return false, names(append(others, may...)) + " holds the driver and cannot be evicted: a DaemonSet's pod comes straight back. Keep it off the node (label it is selected by), " +
				"label the pod " + label.DrainSkip + "=true, or set podDeletion.force in spec.driver.upgradePolicy"
		}
	case w.expired(n, operandsTimeout):
		return true, ""
	}
	if left := slices.Concat(others, ours, may); len(left) > 0 {
		w.setWaiting(n, names(left)+" to let go of the driver")
	} else {
		w.setWaiting(n, "the operands to leave")
	}
	return false, ""
}

// holders returns the pods on the node that use GPUs and are not the operator's: those that
// have to let go of the driver, and those of DaemonSets that ask by label to stay.
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
		return ", while " + names(all) + " uses the GPUs"
	}
	return ""
}

// hasOperands says that operands are still placed on the node.
func (n *node) hasOperands() bool {
	for key, value := range n.Labels {
		if pausable(key) && value == "true" {
			return true
		}
	}
	return false
}

// pausable says that a label places an operand that uses the driver.
func pausable(key string) bool {
	return strings.HasPrefix(key, label.Deploy) && key != label.Deploy+label.DriverOperand && key != label.Operands
}

// reassign moves the node from one DaemonSet to another: it is the new one's once the
// old one's pod has gone, since of two drivers the second does not start.
func (w *planner) reassign(n *node) {
	d := n.driver
	if d == nil {
		w.assign(n, n.target.ID)
		w.setWaiting(n, "the driver pod to be made")
		return
	}
	w.setWaiting(n, w.endDescription(n))
	if d.DaemonSet == "" && !d.Deleting {
		w.deleteDriverPod(n) // nobody else does
	}
	w.assign(n, "")
}

// replace has the DaemonSet that serves the node make its pod anew.
func (w *planner) replace(n *node) {
	d := n.driver
	if w.Sets[n.target.ID].Digest != n.target.Digest {
		w.setWaiting(n, "DaemonSet "+n.target.Name+" to be updated")
		return
	}
	w.setWaiting(n, w.endDescription(n))
	if !d.Deleting && (d.DaemonSet == n.target.Name || d.DaemonSet == "") {
		w.deleteDriverPod(n) // another DaemonSet takes its own away, as the node is not its own any more
	}
}

func (w *planner) deleteDriverPod(n *node) {
	w.plan.Delete = append(w.plan.Delete, Removal{n.Name, n.UID, n.driver.Namespace, n.driver.Name, n.driver.UID})
}

// validate waits for the proof of the new driver.
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

// validated reports whether the wanted driver is there and has been proven. The times of
// the proof and of the pod's start are compared as the node's own clock gave them, so that
// a clock that is wrong does no harm.
func (w *planner) validated(n *node) bool {
	if !n.driver.available() || !n.proven() {
		return false
	}
	switch c, started := n.GPUReady, n.driver.Started; {
	case n.validatorDisabled():
		return true
	case started.IsZero():
		return false // the kubelet says so with the pod's readiness, or before
	case !c.Since.Before(started):
		return true
	case c.Said.Before(started):
		return false // that it is said again is an event
	}
	return w.expired(n, proofSettleTime)
}

// available says that the pod is ready, and stays.
func (d *Driver) available() bool { return d != nil && d.Ready && !d.Deleting }

// proven says that the validator vouches for the node, or is kept away from it.
func (n *node) proven() bool { return n.validatorDisabled() || n.GPUReady.Status == "True" }

func (n *node) validatorDisabled() bool {
	return n.Labels[label.Deploy+"operator-validator"] == "false"
}

// unprovenReason is why the node is not proven.
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

// recover takes a failed node up again when it has become well, or another driver than
// the one that failed is asked for.
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
