package upgrade

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
)

// Make plans what to do now.
func Make(in Input) *Plan {
	w := &planner{Input: in, plan: &Plan{Assign: map[string]string{}, Waiting: map[string]string{}, Settled: map[string]Share{}}}
	w.plan.Counts, w.unavailable = in.Settled.Counts, in.Settled.Unavailable
	var n node // one for all: of thousands nothing is to be done for nearly any
	for _, seen := range in.Nodes {
		w.observeNode(seen, &n)
		before := w.checkpoint()
		if !w.planNode(&n) {
			w.recordSettled(&n, before)
		}
	}
	for _, seen := range in.Leaving {
		w.observeNode(seen, &n)
		n.target, n.outdated = Target{}, false
		before := w.checkpoint()
		w.release(&n)
		w.recordSettled(&n, before)
	}
	w.retry()
	w.start()
	w.sort()
	return w.plan
}

// planner is a plan being made.
type planner struct {
	Input
	plan        *Plan
	begun       int      // nodes whose upgrade has begun and not ended, the failed ones too
	pending     []*node  // wait for their turn
	refused     []*node  // have given it back on their way
	watchIdle   []string // nodes, by name, that wait for a pod to go before they are tried again
	unavailable int      // nodes that are cordoned, not ready, or about to be

	pool      fleet.Pool // the one that was looked up last, and its target
	target    Target
	hasTarget bool
}

// checkpoint is how far a plan was made at some moment.
type checkpoint struct {
	share                    Share
	patches, assigned, begun int
}

func (w *planner) checkpoint() checkpoint {
	return checkpoint{Share{w.plan.Counts, w.unavailable}, len(w.plan.Patches), len(w.plan.Assign), w.begun}
}

// recordSettled lets a node out of the plans to come, if since the mark nothing has been planned
// of it, and no upgrade of it has begun.
func (w *planner) recordSettled(n *node, since checkpoint) {
	now := w.checkpoint()
	if now.patches == since.patches && now.assigned == since.assigned && now.begun == since.begun {
		w.plan.Settled[n.Name] = now.share.Less(since.share)
	}
}

// node is one of the cluster's with what belongs to it.
type node struct {
	*fleet.Node
	target   Target
	assigned string // label.Driver
	driver   *Driver
	state    State
	since    time.Time // when it came into the state
	outdated bool
	refusal  *Refusal // why it gave its turn back; nil: it did not
	blocked  bool     // … because of a pod
}

func assigned(n *fleet.Node) string { return n.Labels[label.Driver] }

// observeNode puts together what belongs to a node.
func (w *planner) observeNode(n *fleet.Node, o *node) {
	target := w.targetOf(n.Pool)
	*o = node{Node: n, assigned: assigned(n), driver: w.Drivers[n.Name], state: State(n.Labels[label.UpgradeState])}
	deploy := n.Labels[label.Deploy+label.DriverOperand]
	if o.assigned != label.PreInstalled && deploy != label.PreInstalled && deploy != "false" {
		o.target = target
	}
	if !o.state.known() {
		o.state = Unknown
	}
	if o.state.InFlight() || o.state == Failed || o.state == Required {
		if since, err := time.Parse(time.RFC3339, n.Annotations[label.UpgradeSince]); err == nil && !since.After(w.Now) {
			o.since = since
		}
	}
	o.outdated = o.target.managed() && !o.target.Keep && (o.assigned != target.ID || o.driver != nil && !o.driver.matches(target))
	if o.state == Failed && o.outdated && o.driver != nil && n.Annotations[label.UpgradeTarget] == target.String() {
		o.state = Required // the old driver is there yet: the new one, which never was, has not failed
	}
	if r, ok := w.Refused[n.Name]; ok {
		o.refusal = &r
	} else if o.outdated {
		o.refusal = w.blockedBy(o)
		o.blocked = o.refusal != nil
	}
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

func (s State) known() bool {
	return s.InFlight() || s == Required || s == Done || s == Failed
}

// managed says that the operator is to have a driver on the node.
func (t Target) managed() bool { return t.Keep || t.ID != "" }

func (t Target) String() string { return t.ID + "@" + t.Digest }

// matches says that the pod is one of the target's.
func (d *Driver) matches(t Target) bool { return d.DaemonSet == t.Name && d.Digest == t.Digest }

// cordonedByUpgrade says that it is the upgrade that cordoned the node. An upgrade that the
// reference began has remembered only what was not its own.
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

// retry resumes upgrades that gave their turn back on their way, where a turn is free and
// the pause is over. A driver that fails on such a node still counts as failed. One whose
// driver pod has ended at last is none of them any more: its new driver comes whoever has
// the turn, so it goes on, if need be beyond MaxParallel.
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
		// One that was uncordoned meanwhile would be cordoned again.
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

// due reports whether a node may be tried again; if not, it schedules a plan for then.
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

// driverFailure returns why the new driver has failed on a node that cannot be written; "":
// it has not.
func (w *planner) driverFailure(n *node) string {
	switch {
	case n.outdated || n.driver == nil:
	case !n.driver.Ready && n.driver.Failing != "":
		return fmt.Sprintf("driver pod %s: %s", n.driver.Name, n.driver.Failing)
	case n.driver.available() && !w.validated(n):
		// The step that begins with the pod's readiness is the one that was refused first.
		end := n.refusal.Since.Add(validationTimeout)
		if !end.After(w.Now) {
			return fmt.Sprintf("the new driver is not proven after %s: %s", validationTimeout, n.unprovenReason())
		}
		w.replanAt(end)
	}
	return ""
}

// start begins the upgrade of as many nodes as the policy allows, those first that are
// cordoned already, and those last that gave their turn back, the longest ago first.
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
		// On a node whose kubelet is silent no pod ends and no driver starts.
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

// sort puts what was planned in an order that does not depend on that of the input.
func (w *planner) sort() {
	p := w.plan
	slices.SortFunc(p.Patches, func(a, b Patch) int { return cmp.Compare(a.Node, b.Node) })
	slices.SortFunc(p.Failed, func(a, b Failure) int { return cmp.Compare(a.Node, b.Node) })
	slices.SortFunc(p.Unwritten, func(a, b Failure) int { return cmp.Compare(a.Node, b.Node) })
	slices.SortFunc(p.Blocked, func(a, b Failure) int { return cmp.Compare(a.Node, b.Node) })
	removal := func(a, b Removal) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}
	slices.SortFunc(p.Evict, removal)
	slices.SortFunc(p.Delete, removal)
	known := func(node string) int {
		if _, ok := w.Pods[node]; ok {
			return 0
		}
		return 1
	}
	byKnown := func(a, b string) int { return cmp.Or(cmp.Compare(known(a), known(b)), cmp.Compare(a, b)) }
	slices.SortFunc(p.Watch, byKnown)
	// Those on their way come first: the rest is watched as far as there is room.
	w.watchIdle = slices.DeleteFunc(w.watchIdle, func(node string) bool { return slices.Contains(p.Watch, node) })
	slices.SortFunc(w.watchIdle, byKnown)
	p.Watch = append(p.Watch, w.watchIdle...)
}
