package upgrade

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
)

// NewPlan returns the plan for an input.
func NewPlan(in Input) *Plan {
	w := &planner{Input: in, plan: &Plan{Assign: map[string]string{}, Waiting: map[string]string{}}}
	var n node // reused: nearly all of thousands of nodes need nothing
	for _, observed := range in.Nodes {
		w.observeNode(observed, &n)
		w.planNode(&n)
	}
	for _, observed := range in.Leaving {
		w.observeNode(observed, &n)
		n.target, n.outdated = Target{}, false
		w.release(&n)
	}
	w.retry()
	w.start()
	w.sort()
	return w.plan
}

// planner holds a plan while it is being made.
type planner struct {
	Input
	plan        *Plan
	begun       int      // nodes whose upgrade has begun and not ended, including failed ones
	pending     []*node  // wait for their turn
	refused     []*node  // have yielded their turn while in flight
	watchIdle   []string // names of nodes that wait for a pod to end before the next attempt
	unavailable int      // nodes that are cordoned, not ready, or about to be

	pool      fleet.Pool // of the last lookup of a target
	target    Target
	hasTarget bool
}

// node is a node of the cluster with its target, driver pod and upgrade state.
type node struct {
	*fleet.Node
	target   Target
	assigned string // label.Driver
	driver   *Driver
	state    State
	since    time.Time // when it entered the state
	outdated bool
	refusal  *Refusal // why it yielded its turn; nil if it did not
	blocked  bool     // the refusal is because of a pod
}

func assigned(n *fleet.Node) string { return n.Labels[label.Driver] }

// observeNode fills in o for a node.
func (w *planner) observeNode(n *fleet.Node, o *node) {
	target := w.targetOf(n.Pool)
	*o = node{Node: n, assigned: assigned(n), driver: w.Drivers[n.Name], state: State(n.Labels[label.UpgradeState])}
	deploy := n.Labels[label.Deploy+label.DriverOperand]
	if o.assigned != label.PreInstalled && deploy != label.PreInstalled && deploy != "false" {
		o.target = target
	}
	if !o.state.isKnown() {
		o.state = Unknown
	}
	if o.state.InFlight() || o.state == Failed || o.state == Required {
		if since, err := time.Parse(time.RFC3339, n.Annotations[label.UpgradeSince]); err == nil && !since.After(w.Now) {
			o.since = since
		}
	}
	if w.hasSameDriver(o) {
		o.target.ID, o.target.Name = o.assigned, w.Sets[o.assigned].Name
	}
	o.outdated = o.target.managed() && !o.target.Keep && (o.assigned != o.target.ID || o.driver != nil && !o.driver.matches(o.target))
	if o.state == Failed && o.outdated && o.driver != nil && n.Annotations[label.UpgradeTarget] == o.target.String() {
		o.state = Required // the old driver is still there: the new one has never run and so has not failed
	}
	if r, ok := w.Refused[n.Name]; ok {
		o.refusal = &r
	} else if o.outdated {
		o.refusal = w.blockedBy(o)
		o.blocked = o.refusal != nil
	}
}

// hasSameDriver reports whether the node has its target's driver from another DaemonSet: before an
// NVIDIADriver took the driver over from the ClusterPolicy or from another NVIDIADriver. Moving the
// node to the target's DaemonSet would only restart the driver.
func (w *planner) hasSameDriver(o *node) bool {
	if o.assigned == "" || o.assigned == o.target.ID || o.target.ID == "" || o.target.Keep || o.target.Digest == "" {
		return false
	}
	if w.IsOf == nil || w.IsOf(o.assigned, o.Pool) {
		return false
	}
	// A driver that runs stays, even if its DaemonSet would install another one by now.
	digest := w.Sets[o.assigned].Digest
	if o.driver != nil {
		digest = o.driver.Digest
	}
	return digest == o.target.Digest && w.fits(o.assigned, o)
}

func (w *planner) targetOf(p fleet.Pool) Target {
	if !w.hasTarget || w.pool != p {
		target, ok := w.Targets[p]
		if !ok && w.Targets != nil {
			target.Keep = true
		}
		w.pool, w.target, w.hasTarget = p, target, true
	}
	return w.target
}

func (s State) isKnown() bool {
	return s.InFlight() || s == Required || s == Done || s == Failed
}

// managed reports whether the node should have a driver from the operator.
func (t Target) managed() bool { return t.Keep || t.ID != "" }

func (t Target) String() string { return t.ID + "@" + t.Digest }

// matches reports whether the pod belongs to the target.
func (d *Driver) matches(t Target) bool { return d.DaemonSet == t.Name && d.Digest == t.Digest }

// cordonedByUpgrade reports whether the upgrade cordoned the node. An upgrade that the
// reference began has recorded only the nodes that were cordoned before.
func (n *node) cordonedByUpgrade() bool {
	if n.Annotations[label.UpgradeCordoned] == "true" {
		return true
	}
	begun := n.state.InFlight() && n.state != CordonRequired || n.state == Failed
	return begun && n.Annotations[label.UpgradeTarget] == "" && n.Annotations[label.InitiallyCordoned] != "true"
}

func (w *planner) assign(n *node, id string) {
	if n.assigned != id {
		w.plan.Assign[n.Name] = id
	}
}

// retry resumes upgrades that yielded their turn while in flight, if a turn is free and
// their pause is over. A driver that fails on such a node still counts as failed. A node
// whose driver pod has ended at last is not among them: its new driver starts regardless of
// turns, so its upgrade continues, beyond MaxParallel if need be.
func (w *planner) retry() {
	limit := w.Policy.unavailable(w.plan.Counts.Total)
	slices.SortFunc(w.refused, func(a, b *node) int { return cmp.Compare(a.Name, b.Name) })
	for _, n := range w.refused {
		if why := w.driverFailure(n); why != "" {
			w.plan.Counts.Failed++
			w.plan.Failed = append(w.plan.Failed, Failure{n.Name, why, n.since})
			continue
		}
		w.addRefused(n)
		// A node that was uncordoned meanwhile would be cordoned again.
		room := n.Cordoned || !n.Ready || w.unavailable < limit
		if w.due(n) && w.slotFree() && room {
			w.withoutCounting(func() { w.resume(n, n.state) })
		}
	}
}

// withoutCounting plans for a node that is already counted in Plan.Counts.
func (w *planner) withoutCounting(plan func()) {
	counts := w.plan.Counts
	plan()
	w.plan.Counts = counts
}

// slotFree reports whether another upgrade may begin.
func (w *planner) slotFree() bool { return w.Policy.MaxParallel == 0 || w.begun < w.Policy.MaxParallel }

// due reports whether a node may be retried now. If not, it schedules a plan for then.
func (w *planner) due(n *node) bool {
	next := n.refusal.Next
	w.replanAt(next)
	return !next.IsZero() && !next.After(w.Now)
}

// addRefused adds a node that waits for another turn to Plan.Unwritten or Plan.Blocked.
func (w *planner) addRefused(n *node) {
	if n.blocked {
		w.addBlocked(n, n.refusal.Why, n.refusal.Since)
		return
	}
	w.plan.Counts.Failed++
	w.plan.Unwritten = append(w.plan.Unwritten, Failure{n.Name, n.refusal.Why, n.refusal.Since})
	w.setWaiting(n, n.refusal.Why)
}

// driverFailure returns why the new driver has failed on a node that cannot be written, or
// "" if it has not.
func (w *planner) driverFailure(n *node) string {
	switch {
	case n.outdated || n.driver == nil:
	case !n.driver.Ready && n.driver.Failing != "":
		return fmt.Sprintf("driver pod %s: %s", n.driver.Name, n.driver.Failing)
	case n.driver.available() && !w.validated(n):
		// The refused write is the one that follows the pod's readiness.
		end := n.refusal.Since.Add(validationTimeout)
		if !end.After(w.Now) {
			return fmt.Sprintf("the new driver is not proven after %s: %s", validationTimeout, n.unprovenReason())
		}
		w.replanAt(end)
	}
	return ""
}

// start begins the upgrade of as many nodes as the policy allows: cordoned nodes first, and
// last those that yielded their turn, in the order in which they may be retried.
func (w *planner) start() {
	rank := func(n *node) int {
		switch {
		case n.refusal != nil:
			return 2
		case n.Cordoned:
			return 0
		}
		return 1
	}
	slices.SortFunc(w.pending, func(a, b *node) int {
		if a.refusal != nil && b.refusal != nil {
			return cmp.Or(a.refusal.Next.Compare(b.refusal.Next), cmp.Compare(a.Name, b.Name))
		}
		return cmp.Or(rank(a)-rank(b), cmp.Compare(a.Name, b.Name))
	})
	limit := w.Policy.unavailable(w.plan.Counts.Total)
	for _, n := range w.pending {
		refused := n.refusal != nil
		if refused {
			w.plan.Counts.Pending--
			w.addRefused(n)
		}
		if _, writing := w.Writing[n.Name]; writing {
			continue
		}
		due := !refused || w.due(n)
		room := n.Cordoned || w.unavailable < limit
		// On a node whose kubelet does not report, no pod ends and no driver starts.
		if !due || len(w.plan.Failed) > 0 || !w.slotFree() || !room || !n.Ready {
			switch {
			case n.blocked:
				w.patch(n, edit{state: Required, since: n.since, why: n.refusal.Why})
			case !refused && n.state != Required:
				w.patch(n, edit{state: Required})
			}
			continue
		}
		w.begun++
		if refused {
			w.withoutCounting(func() { w.begin(n) })
			continue
		}
		w.plan.Counts.Pending--
		w.begin(n)
	}
}

// sort sorts the plan so that it does not depend on the order of the input.
func (w *planner) sort() {
	w.plan.sort()
	p := w.plan
	known := func(node string) int {
		if _, ok := w.Pods[node]; ok {
			return 0
		}
		return 1
	}
	byKnown := func(a, b string) int { return cmp.Or(cmp.Compare(known(a), known(b)), cmp.Compare(a, b)) }
	slices.SortFunc(p.Watch, byKnown)
	// Nodes in flight come first: the others are watched as far as the limit allows.
	w.watchIdle = slices.DeleteFunc(w.watchIdle, func(node string) bool { return slices.Contains(p.Watch, node) })
	slices.SortFunc(w.watchIdle, byKnown)
	p.Watch, p.idle = append(p.Watch, w.watchIdle...), len(w.watchIdle)
}

// sort sorts what is by node.
func (p *Plan) sort() {
	slices.SortFunc(p.Patches, func(a, b Patch) int { return cmp.Compare(a.Node, b.Node) })
	slices.SortFunc(p.Failed, func(a, b Failure) int { return cmp.Compare(a.Node, b.Node) })
	slices.SortFunc(p.Unwritten, func(a, b Failure) int { return cmp.Compare(a.Node, b.Node) })
	slices.SortFunc(p.Blocked, func(a, b Failure) int { return cmp.Compare(a.Node, b.Node) })
	removal := func(a, b Removal) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}
	slices.SortFunc(p.Evict, removal)
	slices.SortFunc(p.Delete, removal)
}
