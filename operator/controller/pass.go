package controller

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/gpuready/gpuready/operator/apply"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// pass brings the cluster nearer to what is wanted. What concerns all nodes is looked at
// where that has changed; of the nodes, those about which something has changed or is
// under way. It says what could not be done; that is tried again.
func (c *Controller) pass(ctx context.Context) {
	c.since = earlier(c.since, c.last)
	if c.model.common {
		began := c.Now()
		c.scene = c.look()
		c.broken = c.apply(ctx, c.scene)
		c.Metrics.Reconciled("policy", began, c.Now(), c.broken)
		if c.scene.err == nil && !reflect.DeepEqual(c.terms, c.scene.terms) {
			c.terms = c.scene.terms
			for name := range c.model.nodes {
				c.model.dirty[name] = true
			}
		}
	}
	if c.err = c.broken; c.scene.err != nil {
		c.plan = nil
		return
	}
	began := c.Now()
	c.plan = c.upgrade(c.scene)
	c.label(c.scene, c.plan)
	c.Metrics.Reconciled("nodes", began, c.Now(), nil)
	began = c.Now()
	err := c.remove(ctx, c.plan)
	c.Metrics.Reconciled("upgrade", began, c.Now(), err)
	c.err = errors.Join(c.broken, err)
}

// apply brings the objects to the cluster. What fails is not tried again before its time.
func (c *Controller) apply(ctx context.Context, s *scene) error {
	if s.err != nil {
		return s.err
	}
	if s.policy != nil {
		if err := c.planner.Own(s.policy); err != nil {
			return err
		}
	}
	wanted, problems := c.free(s.wanted)
	plan, err := c.planner.Plan(wanted, c.model.live(), s.keep(c.model.census.drivers))
	if err != nil {
		return err
	}
	for _, change := range plan.Apply {
		problems = append(problems, c.attempt(change.String(), func() error {
			have, err := apply.Apply(ctx, c.Client, change)
			if err == nil {
				c.Log.Info("applied", "object", change.String(), "why", change.Why)
				c.model.seeObject(change.Key, have)
			}
			return err
		}))
	}
	for _, rest := range plan.Prune {
		problems = append(problems, c.attempt(rest.String(), func() error {
			err := apply.Prune(ctx, c.Client, rest.Object)
			if err == nil {
				c.Log.Info("deleted", "object", rest.String())
				c.model.loseObject(rest.Key, rest.Object.GetUID())
			}
			return err
		}))
	}
	return errors.Join(problems...)
}

// free are the wanted objects but for those whose names somebody else's have.
func (c *Controller) free(wanted []apply.Object) (free []apply.Object, problems []error) {
	for _, w := range wanted {
		key := apply.Key{Kind: w.Object.GetObjectKind().GroupVersionKind(), Namespace: w.Object.GetNamespace(), Name: w.Object.GetName()}
		switch {
		case !c.model.foreign[key]:
			free = append(free, w)
		case key.Kind != runtimeClassKind: // a handler's name is the same whoever wrote it
			problems = append(problems, fmt.Errorf("%s is not this operator's: delete it, or have the operands in another namespace", key))
		}
	}
	return free, problems
}

// attempt does something that may fail, unless it has failed lately.
func (c *Controller) attempt(name string, do func() error) error {
	now := c.Now()
	if failed := c.failed[name]; failed != nil && now.Before(failed.until) {
		c.wake(failed.until)
		return failed.err
	}
	err := do()
	if err == nil {
		delete(c.failed, name)
		return nil
	}
	pause := firstRetry
	if before := c.failed[name]; before != nil {
		pause = min(2*before.pause, lastRetry)
	}
	if c.failed[name] == nil {
		c.Log.Error("failed; it is tried again", "object", name, "error", err)
	}
	c.failed[name] = &failure{err: err, pause: pause, until: now.Add(pause)}
	c.wake(now.Add(pause))
	return err
}

// failure is what could not be done, and when it is tried again.
type failure struct {
	err   error
	pause time.Duration
	until time.Time
}

// upgrade plans the change of drivers; without a policy, that nodes are let go of.
func (c *Controller) upgrade(s *scene) *upgrade.Plan {
	m := c.model
	in := upgrade.Input{
		Policy: s.rolls, Targets: s.targets, Sets: s.sets, Serves: driver.Serves, Now: c.Now(),
		Drivers: map[string]*upgrade.Driver{}, Pods: c.roll.Pods(), Writing: map[string]bool{},
	}
	for name := range c.roster.open(m) {
		on := m.nodes[name]
		if on.sent != nil && on.sent.Version == on.node.Version {
			in.Writing[name] = true
		}
		if s.released || !on.node.Served(s.handOver) {
			in.Leaving = append(in.Leaving, on.node)
			continue
		}
		in.Nodes = append(in.Nodes, on.node)
		if d := on.driver(); d != nil {
			in.Drivers[name] = d
		}
	}
	in.Settled = c.roster.settled
	plan := upgrade.Make(in)
	c.roster.close(plan)
	c.wake(plan.Wake)
	return plan
}

// remove has pods removed and watched as planned; those of a Node with a patch on its way
// come when the patch is there: a Node is cordoned before its pods go.
func (c *Controller) remove(ctx context.Context, plan *upgrade.Plan) error {
	now := *plan
	written := func(all []upgrade.Removal) (some []upgrade.Removal) {
		for _, r := range all {
			if on := c.model.nodes[r.Node]; on != nil && on.sent == nil {
				some = append(some, r)
			}
		}
		return some
	}
	now.Evict, now.Delete = written(plan.Evict), written(plan.Delete)
	return c.attempt("driver upgrade", func() error {
		outcome, err := c.roll.Remove(ctx, &now)
		c.wake(outcome.Next)
		c.blocked = outcome.Blocked
		return err
	})
}

// label has Nodes patched where they are not as they should be: those about which
// something has changed or is planned.
func (c *Controller) label(s *scene, plan *upgrade.Plan) {
	for i := range plan.Patches {
		c.model.dirty[plan.Patches[i].Node] = true
	}
	for name := range plan.Assign {
		c.model.dirty[name] = true
	}
	for name := range c.model.dirty {
		if on := c.model.nodes[name]; on != nil {
			c.place(on, s, plan)
		}
	}
	c.model.dirty = map[string]bool{}
}

// place has one Node patched, if it is not as it should be.
func (c *Controller) place(on *member, s *scene, plan *upgrade.Plan) {
	if on.sent != nil && on.sent.Version == on.node.Version {
		return // its answer is an event
	}
	var other fleet.Patch
	if s.released {
		other = on.node.RemovalPatch(on.speaks())
	} else {
		other = on.node.LabelPatch(fleet.Placement{HandOver: s.handOver, Operands: s.operands, Driver: plan.Driver(on.node), HostDriver: on.hostDriver(), Speaks: on.speaks()})
	}
	patch, needed := plan.Patch(on.node, other)
	switch {
	case needed:
		on.sent = &patch
		c.writer.set(on.node.Name, on.sent)
	case on.sent != nil:
		on.sent = nil
		c.writer.set(on.node.Name, nil)
	}
}
