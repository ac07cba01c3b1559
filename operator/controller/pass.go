package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gpuready/gpuready/operator/apply"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/road"
	"github.com/gpuready/gpuready/operator/state"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// pass looks at what the model has become and brings the cluster nearer to what is
// wanted. It says what could not be done; that is tried again.
func (c *Controller) pass(ctx context.Context) {
	began := c.Now()
	s, err := c.look()
	if err != nil {
		c.Metrics.Reconciled("policy", began, c.Now(), err)
		c.err = err
		c.report(ctx, s, nil)
		return
	}
	plan := c.upgrade(s)
	err = c.apply(ctx, s)
	c.Metrics.Reconciled("policy", began, c.Now(), err)
	c.err = err

	began = c.Now()
	c.label(s, plan)
	c.Metrics.Reconciled("nodes", began, c.Now(), nil)
	began = c.Now()
	err = c.remove(ctx, plan)
	c.Metrics.Reconciled("upgrade", began, c.Now(), err)
	c.err = errors.Join(c.err, c.model.refusal(), err)
	c.report(ctx, s, plan)
}

// apply brings the objects to the cluster. What fails is not tried again before its time.
func (c *Controller) apply(ctx context.Context, s *scene) error {
	if s.policy != nil {
		if err := c.planner.Own(s.policy); err != nil {
			return err
		}
	}
	wanted, problems := c.free(s.wanted)
	plan, err := c.planner.Plan(wanted, c.model.live(), s.keep(sync.OnceValue(c.model.served)))
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
	in := upgrade.Input{Nodes: s.served, Targets: s.targets, Sets: map[string]upgrade.Set{}, Drivers: map[string]*upgrade.Driver{}, Pods: c.roll.Pods(), Writing: map[string]bool{}, Now: c.Now(), Serves: driver.Serves}
	for name, on := range c.model.nodes {
		if on.sent != nil && on.sent.Version == on.node.Version {
			in.Writing[name] = true
		}
		if s.policy == nil || !on.node.Served(s.handOver) {
			in.Leaving = append(in.Leaving, on.node)
		}
	}
	if s.policy != nil {
		policy, err := upgrade.Read(s.policy.Spec.Driver.UpgradePolicy)
		if err != nil {
			policy = upgrade.Policy{} // nothing is moved by a policy that cannot be read
			s.problems = append(s.problems, state.Problem{State: road.Driver, Reason: reasonUpgradePolicy, Message: err.Error()})
		}
		in.Policy = policy
	}
	for _, o := range c.model.objects {
		if o.GetLabels()[label.State] != string(road.Driver) {
			continue
		}
		if d := daemonSet(o); d != nil {
			set := upgrade.ObserveSet(d)
			in.Sets[set.ID] = set
		}
	}
	for _, n := range in.Nodes {
		if d := c.model.nodes[n.Name].driver(); d != nil {
			in.Drivers[n.Name] = d
		}
	}
	plan := upgrade.Make(in)
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

// label has Nodes patched where they are not as they should be: those that something has
// changed about, and those for which something else is wanted than before.
func (c *Controller) label(s *scene, plan *upgrade.Plan) {
	planned := map[string]bool{}
	for i := range plan.Patches {
		planned[plan.Patches[i].Node] = true
	}
	for name, on := range c.model.nodes {
		want := fleet.Placement{HandOver: s.handOver, Operands: s.operands}
		if s.policy != nil {
			want.Driver, want.HostDriver = plan.Driver(on.node), on.hostDriver()
		}
		if !c.model.dirty[name] && !planned[name] && on.placement != nil && same(on.placement, &want) {
			continue
		}
		on.placement = &fleet.Placement{HandOver: want.HandOver, Operands: want.Operands, Driver: want.Driver, HostDriver: want.HostDriver}
		if on.sent != nil && on.sent.Version == on.node.Version {
			continue // its answer is an event
		}
		var other fleet.Patch
		if s.policy == nil {
			other = on.node.RemovalPatch()
		} else {
			other = on.node.LabelPatch(want)
		}
		patch, needed := plan.Patch(on.node, other)
		switch {
		case needed:
			on.sent = &patch
			c.writer.set(name, on.sent)
		case on.sent != nil:
			on.sent = nil
			c.writer.set(name, nil)
		}
	}
	clear(c.model.dirty)
}

func same(a, b *fleet.Placement) bool {
	return a.HandOver == b.HandOver && a.HostDriver == b.HostDriver && a.Driver == b.Driver && slices.Equal(a.Operands, b.Operands)
}
