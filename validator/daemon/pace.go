package daemon

import (
	"strings"
	"time"

	"github.com/gpuready/gpuready/validator/check"
)

// A layer that failed is checked again after this time even though nothing was
// seen to change: there are causes that no event tells of (a module that was
// loaded, a GPU that another program had filled). Each time it is doubled.
const (
	firstRetry = 5 * time.Second
	lastRetry  = 5 * time.Minute
)

// pace is when layers are checked again with no news.
type pace struct {
	failing string        // what failed at the last check, to know when to begin anew
	wait    time.Duration // until the next
	pending bool          // whoever brings the proof will tell
}

// timer fires when it is time to look again, or never.
func (p *pace) timer() <-chan time.Time {
	if p.failing == "" || p.pending {
		return nil
	}
	return time.After(p.wait)
}

// found takes what failed at a check, and says whether it is something else than before.
func (p *pace) found(failing []string, pending bool) (news bool) {
	now := strings.Join(failing, "\n")
	p.pending = pending
	if now == p.failing {
		p.wait = min(2*p.wait, lastRetry)
		return false
	}
	p.failing, p.wait = now, firstRetry
	return true
}

// complaint is what a failure has to have in common with the last for retries to
// slow down: not the message, in which a runtime names a new container each time.
func complaint(o check.Outcome) string {
	if o.Refusal == nil {
		return string(o.Layer)
	}
	return string(o.Layer) + " " + string(o.Refusal.Reason)
}
