package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
		if c.plan != nil {
			// Nothing is taken from nodes while it is not known what is wanted.
			c.remove(&upgrade.Plan{Watch: c.plan.Watch}) //nolint:errcheck // of what is not asked for any more
		}
		c.plan = nil
		return
	}
	began := c.Now()
	c.plan = c.upgrade(c.scene)
	c.label(c.scene, c.plan)
	c.Metrics.Reconciled("nodes", began, c.Now(), nil)
	began = c.Now()
	err := c.remove(c.plan)
	c.Metrics.Reconciled("upgrade", began, c.Now(), err)
	c.err = errors.Join(c.broken, err)
}

// apply has the objects brought to the cluster, and returns what has failed so far. That
// is not tried again before its time.
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
		problems = append(problems, c.request(change.String(), false, func() (func(), error) {
			have, err := apply.Apply(ctx, c.Client, change)
			return func() {
				c.Log.Info("applied", "object", change.String(), "why", change.Why)
				c.model.seeObject(change.Key, have)
			}, err
		}))
	}
	for _, rest := range plan.Prune {
		problems = append(problems, c.request(rest.String(), false, func() (func(), error) {
			err := apply.Prune(ctx, c.Client, rest.Object)
			return func() {
				c.Log.Info("deleted", "object", rest.String())
				c.model.loseObject(rest.Key, rest.Object.GetUID())
			}, err
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

// request is one to the API server that is made beside the control goroutine. Of each name
// there is one at a time.
type request struct {
	running bool
	again   bool   // it was asked for while it was running
	ended   func() // is called with its answer, whatever that is; nil: nothing is
	err     error
	pause   time.Duration
	until   time.Time // it is not made again before
}

// maxFlying bounds how many requests about objects are on their way.
const maxFlying = 16

// request makes a request, unless one of its name is on its way or has failed lately, and
// returns what came of the last one. done is called by the control goroutine when send has
// succeeded. What is urgent does not wait for others.
func (c *Controller) request(name string, urgent bool, send func() (done func(), err error)) error {
	r := c.requests[name]
	if r == nil {
		r = &request{}
		c.requests[name] = r
	}
	switch now := c.Now(); {
	case r.running:
		r.again = true
		return r.err
	case now.Before(r.until):
		c.wake(r.until)
		return r.err
	case c.flying >= maxFlying && !urgent:
		return r.err // there is a pass when one of them ends
	}
	r.running, r.again, r.ended = true, false, nil
	c.flying++
	c.spawn(func() {
		done, err := send()
		c.inbox.put(func(m *model) {
			c.flying--
			m.common = m.common || c.flying == maxFlying-1
			c.answer(name, r, done, err)
		})
	})
	return r.err
}

// answer takes note of what came of a request.
func (c *Controller) answer(name string, r *request, done func(), err error) {
	r.running = false
	if r.ended != nil {
		r.ended()
	}
	switch before := r.err; {
	case err == nil:
		delete(c.requests, name)
		done()
		if r.again || before != nil {
			c.model.common = true
		}
		return
	case before == nil:
		c.Log.Error("failed; it is tried again", "object", name, "error", err)
		c.model.common = true
	case before.Error() != err.Error():
		c.model.common = true
	}
	r.err, r.pause = err, max(firstRetry, min(2*r.pause, lastRetry))
	r.until = c.Now().Add(r.pause)
	c.wake(r.until)
}

// upgrade plans the change of drivers; without a policy, that nodes are let go of.
func (c *Controller) upgrade(s *scene) *upgrade.Plan {
	m := c.model
	in := upgrade.Input{
		Policy: s.rolls, Targets: s.targets, Sets: s.sets, Serves: driver.Serves, Now: c.Now(),
		Drivers: map[string]*upgrade.Driver{}, Pods: c.roll.Pods(), Writing: map[string]bool{},
		Refused: map[string]upgrade.Refusal{}, Classes: s.classes,
	}
	for name := range c.roster.open(m) {
		on := m.nodes[name]
		if on.sent != nil && on.sent.Version == on.node.Version {
			in.Writing[name] = on.sent.Begins()
		}
		if r, refused := m.refused[name]; refused {
			in.Refused[name] = r
		}
		if s.released || !on.node.Served(s.handOver) {
			in.Leaving = append(in.Leaving, on.node)
			continue
		}
		in.Nodes = append(in.Nodes, on.node)
		if d := on.driver(); d != nil {
			in.Drivers[name] = d
			if r, stuck := c.stuck[d.UID]; stuck && !d.Deleting {
				in.Refused[name] = r
			}
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
func (c *Controller) remove(plan *upgrade.Plan) error {
	outcome := c.roll.Remove(plan, func(node string) bool {
		on := c.model.nodes[node]
		return on == nil || on.sent != nil
	})
	if !maps.Equal(c.stuck, outcome.Stuck) {
		c.model.common = true // it is to be planned with
	}
	c.blocked, c.stuck = outcome.Blocked, outcome.Stuck
	return outcome.Err
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
	for name := range c.model.later {
		if !c.model.refused[name].Next.After(c.last) {
			delete(c.model.later, name)
			c.model.dirty[name] = true
		}
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
	if r := c.model.refused[on.node.Name]; r.Next.After(c.last) {
		c.model.later[on.node.Name] = true
		c.wake(r.Next)
		return
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
	case on.sent != nil || c.model.unwritten[on.node.Name] != nil && !plan.Waits(on.node.Name):
		on.sent = nil
		c.writer.set(on.node.Name, nil)
		delete(c.model.unwritten, on.node.Name)
		delete(c.model.refused, on.node.Name)
	}
}
