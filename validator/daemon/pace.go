package daemon

import (
	"strings"
	"time"

	"github.com/gpuready/gpuready/validator/check"
)

// The delays before a failed layer is checked again without an event, doubled each
// time. Some causes end without an event: a module was loaded, or another program freed
// the memory of a GPU.
const (
	firstRetry = 5 * time.Second
	lastRetry  = 5 * time.Minute
)

// backoff schedules the checks that no event triggers.
type backoff struct {
	failing string        // what failed at the last check; a change resets wait
	wait    time.Duration // until the next check
	pending bool          // a proof is pending, and its end triggers a check
}

// timer returns a channel that receives when the next check is due; nil: never.
func (p *backoff) timer() <-chan time.Time {
	if p.failing == "" || p.pending {
		return nil
	}
	return time.After(p.wait)
}

// update records what failed at a check and reports whether it differs from the check before.
func (p *backoff) update(failing []string, pending bool) (news bool) {
	now := strings.Join(failing, "\n")
	p.pending = pending
	if now == p.failing {
		p.wait = min(2*p.wait, lastRetry)
		return false
	}
	p.failing, p.wait = now, firstRetry
	return true
}

// failureKey returns the key of a failure. Retries slow down while the key stays the same.
// It leaves out the message, in which a runtime names a new container each time.
func failureKey(o check.Outcome) string {
	if o.NotReady == nil {
		return string(o.Layer)
	}
	return string(o.Layer) + " " + string(o.NotReady.Reason)
}
