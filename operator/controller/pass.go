package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/operator/apply"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// runPass brings the cluster closer to the desired state, which it computes from the whole
// model. It starts requests and waits for none. Failures are kept in c.passErr and retried.
func (c *Controller) runPass(ctx context.Context, now time.Time) {
	c.model.changed, c.nextPass = false, time.Time{}
	c.unreported = earlier(c.unreported, now) // the status may be out of date since then
	c.model.selectDrivers()
	members := c.model.members()
	c.survey = surveyNodes(nodesOf(members), c.model.handOver())
	var before error
	if c.desired != nil {
		before = c.desired.err
	}
	c.desired = c.computeDesired()
	err := c.applyObjects(ctx, c.desired)
	if unknown := c.desired.err; unknown == nil || before == nil || before.Error() != unknown.Error() {
		// A desired state that stays unknown is counted once, not with each change of a node.
		c.Metrics.Reconciled("policy", now, c.Now(), err)
	}
	c.passErr = err
	if c.desired.err != nil {
		if c.plan != nil {
			// Nothing is removed from nodes while the desired state is unknown. An empty plan
			// withdraws the removals that have begun.
			c.removePods(&upgrade.Plan{Watch: c.plan.Watch}) //nolint:errcheck // of removals that are no longer wanted
		}
		c.plan = nil
		return
	}
	began := c.Now()
	c.plan = c.planUpgrade(c.desired, members)
	c.serving = c.planServe(c.desired, members)
	for _, on := range members {
		c.labelNode(on, c.desired, c.plan, now)
	}
	c.Metrics.Reconciled("nodes", began, c.Now(), nil)
	began = c.Now()
	err = c.removePods(c.plan)
	c.Metrics.Reconciled("upgrade", began, c.Now(), err)
	c.passErr = errors.Join(c.passErr, err)
}

// applyObjects starts the requests that apply and prune objects: c.request sends each in the
// background and calls the function that it returns in this goroutine, which owns the model. It
// returns the failures of earlier attempts, which are retried with back-off.
func (c *Controller) applyObjects(ctx context.Context, s *desired) error {
	if s.err != nil {
		return s.err
	}
	if s.policy != nil {
		if err := c.planner.SetOwner(s.policy); err != nil {
			return err
		}
	}
	wanted, problems := c.withoutForeign(s.objects)
	wanted, unread := c.model.withoutUnread(wanted)
	problems = append(problems, unread, c.slicesProblem(s))
	plan, err := c.planner.Plan(wanted, c.model.ownedObjects(), s.objectsInUse(c.survey.drivers))
	if err != nil {
		return err
	}
	for _, change := range plan.Apply {
		problems = append(problems, c.request(change.String(), notUrgent, func() (func(), error) {
			have, err := apply.Apply(ctx, c.Client, change)
			return func() {
				c.Log.Info("applied", "object", change.String(), "why", change.Why)
				c.model.updateObject(change.Key, have)
			}, err
		}))
	}
	for _, rest := range plan.Prune {
		problems = append(problems, c.request(rest.String(), notUrgent, func() (func(), error) {
			err := apply.Prune(ctx, c.Client, rest.Object)
			return func() {
				c.Log.Info("deleted", "object", rest.String())
				c.model.removeObject(rest.Key, rest.Object.GetUID())
			}, err
		}))
	}
	return errors.Join(problems...)
}

// withoutForeign returns the wanted objects except those whose names other owners use.
func (c *Controller) withoutForeign(wanted []apply.Object) (free []apply.Object, problems []error) {
	for _, w := range wanted {
		key := apply.Key{Kind: w.Object.GetObjectKind().GroupVersionKind(), Namespace: w.Object.GetNamespace(), Name: w.Object.GetName()}
		switch {
		case !c.model.foreign[key]:
			free = append(free, w)
		case key.Kind != runtimeClassKind: // state.Render reports a RuntimeClass that does not fit
			problems = append(problems, fmt.Errorf("%s is not this operator's: kubectl -n %s delete %s %s, or deploy the operands in another namespace (docs/manifests-to-operator.md)", key, key.Namespace, strings.ToLower(key.Kind.Kind), key.Name))
		}
	}
	return free, problems
}

// planUpgrade plans driver upgrades; without a policy, it releases the nodes.
func (c *Controller) planUpgrade(s *desired, members []*member) *upgrade.Plan {
	m := c.model
	in := upgrade.Input{
		Policy: s.upgrades, HandOver: s.handOver, Targets: s.targets, Sets: s.driverSets, Serves: driver.Serves, IsOf: driver.IsOf, Now: c.Now(),
		Nodes: make([]*fleet.Node, 0, len(members)), Drivers: make(map[string]*upgrade.Driver, len(members)),
		Pods: c.evictor.Pods(), Writing: map[string]bool{}, Refused: maps.Clone(m.refused), Classes: m.classes,
	}
	for _, on := range members {
		n := on.node
		if on.writing() {
			in.Writing[n.Name] = on.sent.Begins()
		}
		if s.policy == nil || !n.Served(s.handOver) {
			in.Leaving = append(in.Leaving, n)
			continue
		}
		in.Nodes = append(in.Nodes, n)
		if d := driverAmong(m.podsOn[n.Name]); d != nil {
			in.Drivers[n.Name] = d
			if r, stuck := c.stuck[d.UID]; stuck && !d.Deleting {
				in.Refused[n.Name] = r
			}
		}
	}
	plan := c.planByDriver(in, s)
	c.schedulePass(plan.NextPlan)
	return plan
}

// planByDriver plans for the nodes of each NVIDIADriver apart: each has its own limits. Nodes
// without one follow the ClusterPolicy.
func (c *Controller) planByDriver(in upgrade.Input, s *desired) *upgrade.Plan {
	c.planOf = nil
	if c.model.selection == nil {
		return upgrade.NewPlan(in)
	}
	nodes := map[string][]*fleet.Node{"": nil}
	names := map[string]string{} // by Pool.Drivers
	for _, n := range in.Nodes {
		name, known := names[n.Pool.Drivers]
		if !known {
			name = n.Pool.NVIDIADriver()
			names[n.Pool.Drivers] = name
		}
		if nodes[name] == nil {
			nodes[name] = make([]*fleet.Node, 0, len(in.Nodes))
		}
		nodes[name] = append(nodes[name], n)
	}
	c.planOf = map[string]*upgrade.Plan{}
	var plans []*upgrade.Plan
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		part := in
		part.Nodes = nodes[name]
		if name != "" {
			part.Leaving, part.Policy = nil, s.upgradesOf[name]
		}
		c.planOf[name] = upgrade.NewPlan(part)
		plans = append(plans, c.planOf[name])
	}
	return upgrade.Join(plans...)
}

// labelNode queues a patch of a Node if its labels differ from the desired ones.
func (c *Controller) labelNode(on *member, s *desired, plan *upgrade.Plan, now time.Time) {
	m, name := c.model, on.node.Name
	if on.writing() {
		return // the response arrives as an update, after which there is another pass
	}
	if r := m.refused[name]; r.Next.After(now) {
		c.schedulePass(r.Next)
		return
	}
	var other fleet.Patch
	if pods := m.podsOn[name]; s.policy == nil {
		other = on.node.RemovalPatch(hasValidator(pods))
	} else {
		other = on.place(fleet.Placement{HandOver: s.handOver, Operands: s.operands, Driver: plan.Driver(on.node), HostDriver: hasHostDriver(on.node, pods), Serve: c.serveLabel(name), HasValidator: hasValidator(pods)})
	}
	patch, needed := plan.Patch(on.node, other)
	switch {
	case needed:
		if patch.Event == nil {
			patch.Event = serveEvent(patch)
		}
		on.sent = &patch
		c.writer.set(name, on.sent)
	// Nothing is left to write: withdraw a queued patch, and forget an earlier failure unless
	// the upgrade plan still counts the node as one that cannot be written.
	case on.sent != nil || (m.unwritten[name] != nil && !plan.IsUnwritten(name)):
		on.sent = nil
		c.writer.set(name, nil)
		delete(m.unwritten, name)
		delete(m.refused, name)
	}
}

// place returns the change that brings the Node to a placement. It remembers one that needs no
// change: comparing the labels of thousands of nodes is most of the work of a pass.
func (on *member) place(p fleet.Placement) fleet.Patch {
	if on.placed != nil && on.placed.Equal(p) {
		return fleet.Patch{}
	}
	patch := on.node.LabelPatch(p)
	if patch.Empty() {
		placed := p
		on.placed = &placed
	}
	return patch
}

// removePods starts removing and watching pods as planned. Nodes with a pending patch are
// skipped until it is written: a Node is cordoned before its pods are evicted.
func (c *Controller) removePods(plan *upgrade.Plan) error {
	outcome := c.evictor.Remove(plan, func(node string) bool {
		on := c.model.nodes[node]
		return on == nil || on.sent != nil
	})
	if !maps.Equal(c.stuck, outcome.Stuck) {
		c.model.changed = true // plan again with it
	}
	c.blocked, c.stuck = outcome.Blocked, outcome.Stuck
	return outcome.Err
}
