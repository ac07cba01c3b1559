package daemon

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// restartGrace is the time in which a component that ended is back if it is only replaced: a DaemonSet's
// pod ends, its image is pulled, and its successor starts.
const restartGrace = 30 * time.Second

// bridgeRestart wraps the check of a layer whose component runs in a pod of its own. While the
// component is replaced, the earlier pass stands for restartGrace: pods go on using their GPUs, and an
// upgrade is no reason to drain a node. A pass of this boot that an earlier validator wrote counts, since
// an upgrade replaces both.
func (d *Daemon) bridgeRestart(layer readiness.Layer, run check.LayerCheck) check.LayerCheck {
	var passed *check.Outcome // the earlier pass
	var subject string        // of passed
	var since time.Time       // when the component was found away; zero: it is not
	var handedOver, begun bool
	return func(ctx context.Context, node check.Node, driver check.Driver) check.Outcome {
		o := run(ctx, node, driver)
		if !begun {
			passed, subject, begun = d.readPass(layer, driver), driver.Subject(), true
			handedOver = passed != nil
		}
		switch {
		case ctx.Err() != nil || o.Kind == check.Pending:
			return o
		case o.Kind == check.Passed:
			passed, subject, since, handedOver = &o, driver.Subject(), time.Time{}, false
			return o
		case passed == nil, o.Away == check.Present, subject != driver.Subject(), since.IsZero() && o.Away != check.Stopped && !handedOver:
			passed = nil
			return o
		}
		if since.IsZero() {
			since = time.Now()
		}
		if time.Since(since) >= restartGrace {
			passed = nil
			return o
		}
		stands := *passed
		stands.Notes = append(slices.Clone(passed.Notes), fmt.Sprintf("%s; it has %v to come back", o.NotReady.Message, restartGrace))
		stands.Away, stands.Retry = o.Away, true
		return stands
	}
}

// readPass returns the pass of a layer that an earlier process of this boot wrote, if it was on this driver.
func (d *Daemon) readPass(layer readiness.Layer, driver check.Driver) *check.Outcome {
	s, err := readiness.Read(d.proofs.dir, layer, d.proofs.bootID)
	if err != nil || s.Proof == nil || s.Proof.Driver == nil || *s.Proof.Driver != driver.Info {
		return nil
	}
	o := check.NewPass(*s.Proof)
	return &o
}
