package controller

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuready/gpuready/operator/leader"
)

// inbox queues updates for the goroutine that owns the model.
type inbox struct {
	mu      sync.Mutex
	updates []func(*model)
	ready   chan struct{} // holds an item while updates are queued
}

func newInbox() *inbox { return &inbox{ready: make(chan struct{}, 1)} }

func (b *inbox) enqueue(update func(*model)) {
	b.mu.Lock()
	b.updates = append(b.updates, update)
	b.mu.Unlock()
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

func (b *inbox) drain() []func(*model) {
	b.mu.Lock()
	defer b.mu.Unlock()
	updates := b.updates
	b.updates = nil
	return updates
}

// A pass is followed by a rest of restPerNode for each Node, within these bounds. So in a cluster
// of up to 500 nodes a change hardly ever waits, and in one of 5,000 there is one pass a second
// while changes keep arriving (docs/decisions/0033-each-reconcile-plans-all-nodes-at-a-limited-rate.md).
const (
	restPerNode = 200 * time.Microsecond
	minRest     = 100 * time.Millisecond
	maxRest     = time.Second
)

// run calls runDue whenever a pass or a report is due.
func (c *Controller) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.inbox.ready:
		case <-timer.C:
		}
		c.drainInbox()
		next := c.nextDue()
		if !next.IsZero() && !next.After(c.Now()) {
			c.runDue(ctx)
			if err := c.yield(); err != nil {
				return err
			}
			next = c.nextDue()
		}
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(max(0, next.Sub(c.Now())))
		}
	}
}

// yield returns a leader.YieldTo if another operator is ready and its operands serve the
// policy: that operator can manage them, and this one cannot.
func (c *Controller) yield() error {
	to := c.desired.elsewhere
	if c.Elected && to != "" && to != c.Operator.Namespace && c.model.siblings[types.NamespacedName{Namespace: to, Name: c.Operator.Name}] {
		return &leader.YieldTo{Namespace: to}
	}
	return nil
}

// drainInbox applies all queued updates to the model.
func (c *Controller) drainInbox() {
	for _, update := range c.inbox.drain() {
		update(c.model)
	}
	if nodes, pods := len(c.model.nodes), len(c.model.pods); c.Sized != nil && (nodes != c.nodes || pods != c.pods) {
		c.nodes, c.pods = nodes, pods
		c.Sized(nodes, pods)
	}
}

// nextDue returns when the next pass or report is due; zero means after the next update.
func (c *Controller) nextDue() time.Time { return earlier(c.passDue(), c.reportDue()) }

// passDue returns when a pass is due; zero means never. While the NVIDIADrivers are being read,
// which takes a moment, upgrades that have begun wait: a pass would take their nodes for ones without
// a driver.
func (c *Controller) passDue() time.Time {
	if c.model.readingDrivers() {
		return time.Time{}
	}
	if c.model.changed || !c.nextPass.IsZero() && c.nextPass.Before(c.restUntil) {
		return c.restUntil
	}
	return c.nextPass
}

// earlier returns the earlier of two times; the zero time means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// runDue runs the pass and the report that are due.
func (c *Controller) runDue(ctx context.Context) {
	now := c.Now()
	due := func(at time.Time) bool { return !at.IsZero() && !at.After(now) }
	if due(c.passDue()) {
		c.runPass(ctx, now)
		c.restUntil = c.Now().Add(restAfterPass(len(c.model.nodes)))
	}
	if due(c.reportDue()) {
		c.report(ctx, now)
	}
}

// restAfterPass returns how long the next pass over that many Nodes waits after one.
func restAfterPass(nodes int) time.Duration {
	return min(max(time.Duration(nodes)*restPerNode, minRest), maxRest)
}

// schedulePass schedules a pass at a time unless one is due earlier. The zero time schedules
// nothing.
func (c *Controller) schedulePass(at time.Time) { c.nextPass = earlier(c.nextPass, at) }
