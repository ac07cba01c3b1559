package upgrade

import (
	"maps"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/operator/label"
)

// planNode plans for a node whose upgrade has begun, or need not begin. A node that waits for
// its turn is kept for retry or start.
func (w *planner) planNode(n *node) {
	counts := &w.plan.Counts
	if n.target.managed() {
		counts.Total++
		if n.Cordoned || !n.Ready {
			w.unavailable++
		}
	}
	if begins := w.Writing[n.Name]; begins && !n.state.InFlight() && n.state != Failed {
		w.begun++
		if n.Ready && !n.Cordoned {
			w.unavailable++
		}
	}
	skip := n.outdated && n.Labels[label.UpgradeSkip] == "true"
	released := (skip || !w.Policy.Auto) && !n.restarting()
	switch {
	case !n.target.managed():
		if n.assigned != label.PreInstalled {
			w.assign(n, "")
		}
		w.release(n)
	case n.target.Keep && n.assigned == "" && n.driver == nil && !n.loaded():
		w.assign(n, w.existingDriver(n))
		counts.Done++
	case n.refusal != nil && n.state.InFlight() && !released:
		later := *n
		w.refused = append(w.refused, &later)
	case w.assignableAtOnce(n):
		// No driver runs there that would have to be removed.
		if n.state.InFlight() || n.state == Failed {
			w.resume(n, PodRestart)
			return
		}
		w.assign(n, n.target.ID)
		counts.Done++
	case w.leftBehind(n) && !w.podsKnown(n):
		counts.Pending++
		w.watchIdle = append(w.watchIdle, n.Name)
		w.setWaiting(n, "its pods to be known")
	case w.leftBehind(n) && !slices.ContainsFunc(w.Pods[n.Name], w.holdsDriver):
		w.assign(n, n.target.ID)
		counts.Done++
	default:
		w.planLoadedNode(n, released, skip)
	}
}

// planLoadedNode plans for a node on which a driver may be loaded.
func (w *planner) planLoadedNode(n *node, released, skip bool) {
	counts := &w.plan.Counts
	switch {
	case released && w.leftBehind(n):
		counts.Pending++
		w.watchIdle = append(w.watchIdle, n.Name) // when its pods are gone, the driver is assigned
		w.setWaiting(n, "pods that use GPUs to go; upgrades are not automatic")
	case released:
		if n.outdated {
			counts.Pending++
			if skip {
				counts.Skipped++
			}
		} else {
			counts.Done++
		}
		w.release(n)
	case n.state.InFlight() || n.state == Failed:
		w.resume(n, n.state)
	case n.outdated || n.Annotations[label.UpgradeCordoned] == "true":
		counts.Pending++
		later := *n
		w.pending = append(w.pending, &later)
	default:
		counts.Done++
		if n.state != Done && n.driver.available() && n.proven() {
			w.patch(n, edit{state: Done})
		}
	}
}

// assignableAtOnce reports whether the node gets another DaemonSet without an upgrade: it is
// new, was handed over, or its DaemonSet no longer serves it because another kernel was booted.
func (w *planner) assignableAtOnce(n *node) bool {
	if n.target.Keep || n.assigned == n.target.ID {
		return false
	}
	if (n.driver == nil || n.driverOfOldMachine()) && !n.loaded() {
		return true
	}
	// Its condition may be from the time before it was given back to NVIDIA's operator.
	if w.HandOver && n.driver == nil && n.assigned == "" && !n.state.InFlight() && n.state != Failed {
		return true
	}
	_, ok := w.Sets[n.assigned]
	return ok && !w.fits(n.assigned, n)
}

// driverOfOldMachine reports whether the driver pod is that of another machine which had the
// node's name before. It is older than the Node, and is deleted once its machine is found gone.
func (n *node) driverOfOldMachine() bool {
	return !n.driver.Created.IsZero() && n.driver.Created.Before(n.Created)
}

// leftBehind reports whether a driver was validated on the node and its pod and label are
// gone, as after a ClusterPolicy was deleted. Its modules may still be loaded: if pods use
// them, the node is upgraded like others; if none does, the driver is assigned at once.
func (w *planner) leftBehind(n *node) bool {
	gone := n.outdated && n.assigned == "" && n.driver == nil && n.refusal == nil
	return gone && (n.state == Unknown || n.state == Done) && n.Labels[label.UpgradeSkip] != "true"
}

// podsKnown reports whether the pods on a node are known.
func (w *planner) podsKnown(n *node) bool {
	_, known := w.Pods[n.Name]
	return known
}

// holdsDriver reports whether a pod prevents the driver from being unloaded.
func (w *planner) holdsDriver(p *Pod) bool { return w.uses(p) && !p.Own && !p.Finished }

// fits reports whether a DaemonSet of that ID exists and is made for such nodes.
func (w *planner) fits(id string, n *node) bool {
	set, ok := w.Sets[id]
	return ok && set.selects(n.Labels) && (w.Serves == nil || w.Serves(id, n.Pool))
}

// existingDriver returns the ID of the DaemonSet for a new node of a pool that keeps its
// driver: the target's, if it exists by now, or another that fits and installs the driver of the
// same NVIDIADriver; "" if there is none. A node whose old driver an upgrade has removed gets the one
// that the upgrade was to bring.
func (w *planner) existingDriver(n *node) string {
	if id, _, _ := strings.Cut(n.Annotations[label.UpgradeTarget], "@"); n.state.InFlight() && w.fits(id, n) {
		return id
	}
	if w.fits(n.target.ID, n) {
		return n.target.ID
	}
	for _, id := range slices.Sorted(maps.Keys(w.Sets)) {
		if w.Serves != nil && w.fits(id, n) && (w.IsOf == nil || w.IsOf(id, n.Pool)) {
			return id
		}
	}
	return ""
}

// loaded reports whether a driver was validated on the node; its pod may be gone. A condition that
// nobody renews is no evidence: it may be of an earlier installation.
func (n *node) loaded() bool {
	c := n.GPUReady
	return !n.Stale() && (c.Status == "True" || c.Status == "False" && !strings.HasPrefix(c.Message, "driver: "))
}

// restarting reports whether the node's old driver is being removed, so that going back
// takes longer than going on.
func (n *node) restarting() bool {
	switch n.state {
	case PodRestart:
		return !n.outdated || n.driver == nil || n.driver.Deleting
	case ValidationRequired, UncordonRequired:
		return !n.outdated
	}
	return false
}
