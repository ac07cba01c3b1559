package daemon

import (
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/step"
)

// The first and the longest delay before a failed layer is checked again without an event. The delay
// doubles each time. Some causes end without an event: a module was loaded, or another program freed
// the memory of a GPU.
const (
	firstRetry = 5 * time.Second
	lastRetry  = 5 * time.Minute
	// lastSettle replaces lastRetry while the kubelet's devices differ from the device plugin's, since
	// they may agree soon, and while a pass stands for restartGrace, since no event ends it.
	lastSettle = 15 * time.Second
)

// backoff schedules the checks that no event triggers.
type backoff struct {
	failing string        // what failed at the last check; a change resets wait
	wait    time.Duration // until the next check
	pending bool          // a proof is pending, and its end triggers a check
	rewrite bool          // the validator or another component cannot write its files
}

// timer returns a channel that receives when the next check is due; nil: never.
func (p *backoff) timer() <-chan time.Time {
	switch {
	case p.rewrite:
		return time.After(firstRetry) // no event signals that there is room again
	case p.failing == "" || p.pending:
		return nil
	}
	return time.After(p.wait)
}

// update records the outcomes of a check. unwritten reports whether one of them could not be
// written.
func (p *backoff) update(outcomes []check.Outcome, unwritten bool) {
	var failing []string
	last := lastRetry
	p.pending, p.rewrite = false, unwritten
	for _, o := range outcomes {
		p.pending = p.pending || o.Kind == check.Pending
		if o.Kind == check.Failed || o.Retry {
			failing = append(failing, failureKey(o))
		}
		if o.Kind == check.Passed && o.Away != check.Present {
			last = lastSettle
		}
		if o.Kind == check.Failed {
			switch o.NotReady.Reason {
			case nodestate.ReasonNotWritable:
				p.rewrite = true
			case step.ReasonAllocatableShort, step.ReasonAllocatableDiffers:
				last = lastSettle
			}
		}
	}
	if now := strings.Join(failing, "\n"); now != p.failing {
		p.failing, p.wait = now, firstRetry
		return
	}
	p.wait = min(2*p.wait, last)
}

// failureKey returns the key of a failure. Retries slow down while the key stays the same.
// It leaves out the message, in which a runtime names a new container each time.
func failureKey(o check.Outcome) string {
	key := string(o.Layer) + " " + string(o.Away)
	if o.NotReady != nil {
		key += " " + string(o.NotReady.Reason)
	}
	return key
}
