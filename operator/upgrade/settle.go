package upgrade

import (
	"maps"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/operator/label"
)

// settle plans for a node whose upgrade has begun, or need not begin; it reports whether
// the node waits for its turn instead.
func (w *work) settle(n *node) (waits bool) {
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
		w.assign(n, w.kept(n))
		counts.Done++
	case n.refusal != nil && n.state.InFlight() && !released:
		later := *n
		w.refused = append(w.refused, &later)
		return true
	case w.atOnce(n):
		// Nothing runs there that a driver could be taken from.
		if n.state.InFlight() || n.state == Failed {
			w.resume(n, PodRestart)
			return false
		}
		w.assign(n, n.target.ID)
		counts.Done++
	case w.left(n) && !w.knowsPods(n):
		counts.Pending++
		w.idle = append(w.idle, n.Name)
		w.wait(n, "its pods to be known")
		return true
	case w.left(n) && !slices.ContainsFunc(w.Pods[n.Name], w.holds):
		w.assign(n, n.target.ID)
		counts.Done++
	default:
		return w.settleOutdated(n, released, skip)
	}
	return false
}

// settleOutdated settles a node on which a driver may be loaded.
func (w *work) settleOutdated(n *node, released, skip bool) (waits bool) {
	counts := &w.plan.Counts
	switch {
	case released && w.left(n):
		counts.Pending++
		w.idle = append(w.idle, n.Name) // when its pods have gone, the driver comes
		w.wait(n, "pods that use GPUs to go; upgrades are not automatic")
		return true
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
		return true
	default:
		counts.Done++
		if n.state != Done && n.driver.up() && n.proven() {
			w.patch(n, edit{state: Done})
		}
	}
	return false
}

// atOnce says that the node gets another DaemonSet without more ado: it is new, or what
// served it serves it no more (another kernel was booted).
func (w *work) atOnce(n *node) bool {
	if n.target.Keep || n.assigned == n.target.ID {
		return false
	}
	if (n.driver == nil || n.replaced()) && !n.loaded() {
		return true
	}
	_, ok := w.Sets[n.assigned]
	return ok && !w.fits(n.assigned, n)
}

// replaced reports whether the driver pod is that of another machine, which had the node's
// name before: it is older than the Node, and goes when it is noticed that its machine has.
func (n *node) replaced() bool {
	return !n.driver.Created.IsZero() && n.driver.Created.Before(n.Created)
}

// left reports whether a driver was proven on the node and nothing of it is there any more,
// as after a ClusterPolicy was deleted. What it loaded may be: where pods still use it, the
// node is upgraded as others are; where none does, the driver comes at once.
func (w *work) left(n *node) bool {
	gone := n.outdated && n.assigned == "" && n.driver == nil && n.refusal == nil
	return gone && (n.state == Unknown || n.state == Done) && n.Labels[label.UpgradeSkip] != "true"
}

// knowsPods reports whether the pods on a node are known.
func (w *work) knowsPods(n *node) bool {
	_, known := w.Pods[n.Name]
	return known
}

// holds reports whether a pod keeps a driver from being unloaded.
func (w *work) holds(p *Pod) bool { return w.uses(p) && !p.Own && !p.Finished }

// fits says that there is a DaemonSet of that ID, made for nodes like this.
func (w *work) fits(id string, n *node) bool {
	set, ok := w.Sets[id]
	return ok && set.serves(n.Labels) && (w.Serves == nil || w.Serves(id, n.Pool))
}

// kept is the ID of the DaemonSet that serves the pool of a node that is new in it, while
// the pool keeps what it has: that of the target, if there is one by now, or another. "":
// there is none.
func (w *work) kept(n *node) string {
	if w.fits(n.target.ID, n) {
		return n.target.ID
	}
	for _, id := range slices.Sorted(maps.Keys(w.Sets)) {
		if w.Serves != nil && w.fits(id, n) {
			return id
		}
	}
	return ""
}

// loaded says that a driver was proven on the node, whose pod may be gone.
func (n *node) loaded() bool {
	c := n.GPUReady
	return c.Status == "True" || c.Status == "False" && !strings.HasPrefix(c.Message, "driver: ")
}

// restarting says that the node's old driver is on its way out, and the way back longer
// than that forward.
func (n *node) restarting() bool {
	switch n.state {
	case PodRestart:
		return !n.outdated || n.driver == nil || n.driver.Deleting
	case ValidationRequired, UncordonRequired:
		return !n.outdated
	}
	return false
}
