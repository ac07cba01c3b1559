package upgrade

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpuready/gpuready/operator/label"
)

// blockedBy returns the refusal by the pod that blocks an outdated node, or nil. It is treated
// like a refused write: it says nothing about the new driver, and anybody who may create pods
// can cause it. Either a pod could not be evicted and the node yielded its turn, or the old
// driver's pod was deleted and does not end.
func (w *planner) blockedBy(n *node) *Refusal {
	switch why := n.Annotations[label.UpgradeReason]; {
	case n.state == Required && why != "":
		return &Refusal{Why: why, Since: n.since, Next: w.nextAttempt(n)}
	case n.state == PodRestart && n.driver != nil && n.driver.Deleting && !n.driver.End.IsZero():
		end := n.driver.End.Add(endTimeout)
		if end.After(w.Now) {
			w.replanAt(end)
			return nil
		}
		return &Refusal{Since: end, Why: fmt.Sprintf("driver pod %s/%s was deleted and is still there %s after its grace period: see its finalizers",
			n.driver.Namespace, n.driver.Name, endTimeout) + w.gpuUsers(n)}
	}
	return nil
}

// nextAttempt returns when a node that yielded its turn because of a pod may have another
// one; zero: not while the pods are the same.
func (w *planner) nextAttempt(n *node) time.Time {
	pods, known := w.Pods[n.Name]
	next := n.since.Add(PodsRetry)
	if known {
		next = n.since.Add(WriteRetry)
	}
	for _, p := range pods {
		switch {
		case p.Finished || !w.blocksUpgrade(p):
		case w.evictionForbidden(p):
			return time.Time{} // it would not even be evicted
		case !p.Created.After(n.since):
			next = n.since.Add(PodsRetry) // it existed when the turn was yielded
		}
	}
	return next
}

// blocksUpgrade reports whether an upgrade waits for a pod, which it evicts or which must
// release the driver.
func (w *planner) blocksUpgrade(p *Pod) bool {
	if p.Agent {
		return w.uses(p) && !p.Own && p.Labels[label.DrainSkip] != "true" && !w.Policy.Deletion.Force
	}
	return w.deletes(p) || w.drains(p)
}

// evictionForbidden reports whether the policy forbids the eviction of a pod.
func (w *planner) evictionForbidden(p *Pod) bool {
	deletes := w.deletes(p) && w.Policy.Deletion.whyForbidden(p) == ""
	drains := w.drains(p) && w.Policy.Drain.whyForbidden(p) == ""
	return !p.Agent && !p.Deleting && !deletes && !drains
}

// addBlocked adds a node to Plan.Blocked and watches its pods: the end of a pod is an event.
func (w *planner) addBlocked(n *node, why string, since time.Time) {
	w.plan.Counts.Failed++
	w.watchIdle = append(w.watchIdle, n.Name)
	w.setWaiting(n, why)
	// A node that has just been retried is in the list already.
	if !slices.ContainsFunc(w.plan.Blocked, func(f Failure) bool { return f.Node == n.Name }) {
		w.plan.Blocked = append(w.plan.Blocked, Failure{n.Name, why, since})
	}
}
