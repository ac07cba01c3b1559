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

// runPass brings the cluster closer to the desired state. It evaluates cluster-wide inputs only
// if they have changed, and only those nodes that have changed or have work in progress.
// Failures are kept in c.err and retried.
func (c *Controller) runPass(ctx context.Context) {
	c.unreportedSince = earlier(c.unreportedSince, c.runStarted)
	if c.model.clusterDirty {
		began := c.Now()
		c.desired = c.evaluate()
		c.applyErr = c.applyObjects(ctx, c.desired)
		c.Metrics.Reconciled("policy", began, c.Now(), c.applyErr)
		if c.desired.err == nil && !reflect.DeepEqual(c.lastInputs, c.desired.sharedInputs) {
			c.lastInputs = c.desired.sharedInputs
			for name := range c.model.nodes {
				c.model.dirty[name] = true
			}
		}
	}
	if c.passErr = c.applyErr; c.desired.err != nil {
		if c.plan != nil {
			// Nothing is removed from nodes while the desired state is unknown.
			c.removePods(&upgrade.Plan{Watch: c.plan.Watch}) //nolint:errcheck // of removals that are no longer wanted
		}
		c.plan = nil
		return
	}
	began := c.Now()
	c.plan = c.planUpgrade(c.desired)
	c.labelNodes(c.desired, c.plan)
	c.Metrics.Reconciled("nodes", began, c.Now(), nil)
	began = c.Now()
	err := c.removePods(c.plan)
	c.Metrics.Reconciled("upgrade", began, c.Now(), err)
	c.passErr = errors.Join(c.applyErr, err)
}

// applyObjects starts the requests that apply and prune objects. It returns the failures so
// far, which are retried with back-off.
func (c *Controller) applyObjects(ctx context.Context, s *desired) error {
	if s.err != nil {
		return s.err
	}
	if s.policy != nil {
		if err := c.planner.SetOwner(s.policy); err != nil {
			return err
		}
	}
	wanted, problems := c.withoutForeign(s.wanted)
	plan, err := c.planner.Plan(wanted, c.model.ownedObjects(), s.driversInUse(c.model.census.drivers))
	if err != nil {
		return err
	}
	for _, change := range plan.Apply {
		problems = append(problems, c.request(change.String(), false, func() (func(), error) {
			have, err := apply.Apply(ctx, c.Client, change)
			return func() {
				c.Log.Info("applied", "object", change.String(), "why", change.Why)
				c.model.updateObject(change.Key, have)
			}, err
		}))
	}
	for _, rest := range plan.Prune {
		problems = append(problems, c.request(rest.String(), false, func() (func(), error) {
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
		case key.Kind != runtimeClassKind: // a RuntimeClass means the same whoever wrote it
			problems = append(problems, fmt.Errorf("%s is not this operator's: delete it, or deploy the operands in another namespace", key))
		}
	}
	return free, problems
}

// request is a request to the API server that runs beside the control goroutine. At most one
// request of each name runs at a time.
type request struct {
	running    bool
	rerun      bool   // it was requested again while it was running
	onDone     func() // called with the response or failure; may be nil
	err        error
	backoff    time.Duration
	retryAfter time.Time // it is not repeated before
}

// maxInFlight bounds how many requests about objects run at a time.
const maxInFlight = 16

// request starts a request unless one of its name is running or in back-off, and returns the
// last error of that name. The control goroutine calls done after send has succeeded. Urgent
// requests are not subject to maxInFlight.
func (c *Controller) request(name string, urgent bool, send func() (done func(), err error)) error {
	r := c.requests[name]
	if r == nil {
		r = &request{}
		c.requests[name] = r
	}
	switch now := c.Now(); {
	case r.running:
		r.rerun = true
		return r.err
	case now.Before(r.retryAfter):
		c.schedulePass(r.retryAfter)
		return r.err
	case c.inFlight >= maxInFlight && !urgent:
		return r.err // a pass follows when one of them ends
	}
	r.running, r.rerun, r.onDone = true, false, nil
	c.inFlight++
	c.spawn(func() {
		done, err := send()
		c.inbox.enqueue(func(m *model) {
			c.inFlight--
			m.clusterDirty = m.clusterDirty || c.inFlight == maxInFlight-1
			c.finishRequest(name, r, done, err)
		})
	})
	return r.err
}

// finishRequest records the result of a request.
func (c *Controller) finishRequest(name string, r *request, done func(), err error) {
	r.running = false
	if r.onDone != nil {
		r.onDone()
	}
	switch before := r.err; {
	case err == nil:
		delete(c.requests, name)
		done()
		if r.rerun || before != nil {
			c.model.clusterDirty = true
		}
		return
	case before == nil:
		c.Log.Error("request failed; retrying", "object", name, "error", err)
		c.model.clusterDirty = true
	case before.Error() != err.Error():
		c.model.clusterDirty = true
	}
	r.err, r.backoff = err, max(firstRetry, min(2*r.backoff, lastRetry))
	r.retryAfter = c.Now().Add(r.backoff)
	c.schedulePass(r.retryAfter)
}

// planUpgrade plans driver upgrades; without a policy, it releases the nodes.
func (c *Controller) planUpgrade(s *desired) *upgrade.Plan {
	m := c.model
	in := upgrade.Input{
		Policy: s.rolls, Targets: s.targets, Sets: s.sets, Serves: driver.Serves, Now: c.Now(),
		Drivers: map[string]*upgrade.Driver{}, Pods: c.roll.Pods(), Writing: map[string]bool{},
		Refused: map[string]upgrade.Refusal{}, Classes: s.classes,
	}
	for name := range c.roster.startPlan(m) {
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
	plan := upgrade.NewPlan(in)
	c.roster.finishPlan(plan)
	c.schedulePass(plan.NextPlan)
	return plan
}

// removePods starts removing and watching pods as planned. Nodes with a pending patch are
// skipped until it is written: a Node is cordoned before its pods are evicted.
func (c *Controller) removePods(plan *upgrade.Plan) error {
	outcome := c.roll.Remove(plan, func(node string) bool {
		on := c.model.nodes[node]
		return on == nil || on.sent != nil
	})
	if !maps.Equal(c.stuck, outcome.Stuck) {
		c.model.clusterDirty = true // plan again with it
	}
	c.blocked, c.stuck = outcome.Blocked, outcome.Stuck
	return outcome.Err
}

// labelNodes patches the Nodes that have changed or have planned changes, where their
// labels differ from the desired ones.
func (c *Controller) labelNodes(s *desired, plan *upgrade.Plan) {
	for i := range plan.Patches {
		c.model.dirty[plan.Patches[i].Node] = true
	}
	for name := range plan.Assign {
		c.model.dirty[name] = true
	}
	for name := range c.model.deferred {
		if !c.model.refused[name].Next.After(c.runStarted) {
			delete(c.model.deferred, name)
			c.model.dirty[name] = true
		}
	}
	for name := range c.model.dirty {
		if on := c.model.nodes[name]; on != nil {
			c.labelNode(on, s, plan)
		}
	}
	c.model.dirty = map[string]bool{}
}

// labelNode queues a patch of one Node if its labels differ from the desired ones.
func (c *Controller) labelNode(on *member, s *desired, plan *upgrade.Plan) {
	if on.sent != nil && on.sent.Version == on.node.Version {
		return // its response is an event
	}
	if r := c.model.refused[on.node.Name]; r.Next.After(c.runStarted) {
		c.model.deferred[on.node.Name] = true
		c.schedulePass(r.Next)
		return
	}
	var other fleet.Patch
	if s.released {
		other = on.node.RemovalPatch(on.hasValidator())
	} else {
		other = on.node.LabelPatch(fleet.Placement{HandOver: s.handOver, Operands: s.operands, Driver: plan.Driver(on.node), HostDriver: on.hostDriver(), HasValidator: on.hasValidator()})
	}
	patch, needed := plan.Patch(on.node, other)
	switch {
	case needed:
		on.sent = &patch
		c.writer.set(on.node.Name, on.sent)
	case on.sent != nil || c.model.unwritten[on.node.Name] != nil && !plan.IsUnwritten(on.node.Name):
		on.sent = nil
		c.writer.set(on.node.Name, nil)
		delete(c.model.unwritten, on.node.Name)
		delete(c.model.refused, on.node.Name)
	}
}
