package controller

import "time"

// request is a request to the API server that runs beside the control goroutine. At most one
// request of each name runs at a time.
type request struct {
	running    bool
	rerun      bool   // it was requested again while it was running
	onDone     func() // called with the response or failure; may be nil
	err        error
	retryAfter time.Time // it is not repeated before
}

const notUrgent = false // of request

// maxInFlight bounds how many requests about objects run at a time.
const maxInFlight = 16

// request starts a request unless one of its name is running or in back-off, and returns the
// last error of that name. The control goroutine calls done after send has succeeded. Urgent
// requests are not subject to maxInFlight.
func (c *Controller) request(name string, isUrgent bool, send func() (done func(), err error)) error {
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
	case c.inFlight >= maxInFlight && !isUrgent:
		return r.err // a pass follows when one of them ends
	}
	r.running, r.rerun, r.onDone = true, false, nil
	c.inFlight++
	c.spawn(func() {
		done, err := send()
		c.inbox.enqueue(func(m *model) {
			c.inFlight--
			m.changed = m.changed || c.inFlight == maxInFlight-1
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
		c.backoff.Forget(name)
		done()
		if r.rerun || before != nil {
			c.model.changed = true
		}
		return
	case before == nil:
		c.Log.Error("request failed; retrying", "object", name, "error", err)
		c.model.changed = true
	case before.Error() != err.Error():
		c.model.changed = true
	}
	r.err, r.retryAfter = err, c.Now().Add(c.backoff.When(name))
	c.schedulePass(r.retryAfter)
}
