package nvml

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// Process bounds the calls of NVML of all Sources of a process, any of which may hang for ever when a GPU
// or its firmware does. For each subject (the driver, GPU 3 of 8, …) one call runs at a time, and while one hangs
// later ones fail at once. So at most one goroutine, with its thread, leaks for each subject, however often the
// driver is opened again.
type Process struct {
	// inside is a read-write lock whose waiters can give up: a call inside NVML acquires 1;
	// initialising NVML or shutting it down acquires all of wholeInside.
	inside *semaphore.Weighted

	mu      sync.Mutex
	running map[string]*running
}

// NewProcess returns a Process without a call.
func NewProcess() *Process {
	return &Process{inside: semaphore.NewWeighted(wholeInside), running: map[string]*running{}}
}

// calls runs the calls of a Source. Each runs in its own goroutine, with a timeout.
type calls struct {
	*Process
	limit  time.Duration
	failed func(code string) // called for each error of NVML and each timeout; it must not block
}

const wholeInside = 1 << 20

type running struct {
	since time.Time
	done  chan struct{}
}

func newCalls(process *Process, limit time.Duration, failed func(string)) *calls {
	if failed == nil {
		failed = func(string) {}
	}
	if process == nil {
		process = NewProcess()
	}
	return &calls{Process: process, limit: limit, failed: failed}
}

// call runs fn, which concerns subject, and returns its result; or a hungError after
// the limit, which includes the time that it waits for an earlier call; or ctx.Err() when ctx ends.
func call[T any](ctx context.Context, c *calls, subject string, fn func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var zero T
	timer := time.NewTimer(c.limit)
	defer timer.Stop()
	own, err := c.acquireSubject(ctx, subject, timer)
	if err != nil {
		c.reportFailure(err)
		return zero, err
	}
	results := make(chan result, 1)
	go func() {
		defer c.finish(subject, own)
		var r result
		leave := c.enter()
		r.value, r.err = fn()
		leave()
		results <- r
	}()
	select {
	case r := <-results:
		c.reportFailure(r.err)
		return r.value, r.err
	case <-timer.C:
		err := &hungError{subject, c.limit}
		c.reportFailure(err)
		return zero, err
	case <-ctx.Done():
		return zero, ctx.Err()
	}
}

// codeHung is the code of a call that did not return.
const codeHung = "HUNG"

// reportFailure calls failed if err is from NVML or a timeout.
func (c *calls) reportFailure(err error) {
	if _, hung := errors.AsType[*hungError](err); hung {
		c.failed(codeHung)
	} else if nvmlErr, ok := errors.AsType[*callError](err); ok {
		c.failed(name(nvmlErr.ret))
	}
}

// acquireSubject waits until no other call about the subject is running, and marks the subject as busy
// until finish.
func (c *calls) acquireSubject(ctx context.Context, subject string, timer *time.Timer) (*running, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		c.mu.Lock()
		before, busy := c.running[subject]
		if !busy {
			mine := &running{since: time.Now(), done: make(chan struct{})}
			c.running[subject] = mine
			c.mu.Unlock()
			return mine, nil
		}
		c.mu.Unlock()
		if time.Since(before.since) > c.limit {
			return nil, &hungError{subject, c.limit}
		}
		select {
		case <-before.done:
		case <-timer.C:
			return nil, &hungError{subject, c.limit}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (c *calls) finish(subject string, r *running) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, subject)
	close(r.done)
}

// hanging returns the subject of a call that has not returned in time, if any.
func (c *calls) hanging() (subject string, hangs bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for subject, r := range c.running {
		if time.Since(r.since) > c.limit {
			return subject, true
		}
	}
	return "", false
}

// startAlone starts fn once no other call is inside NVML, and keeps others out until it returns, which may be
// never. Its result comes from the channel. The error is a hungError if a call inside does not return in time.
func (c *calls) startAlone(ctx context.Context, patience time.Duration, fn func() error) (<-chan error, error) {
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := c.inside.Acquire(waiting, wholeInside); err != nil {
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			return nil, &hungError{"what it was asked before", patience}
		}
		return nil, err
	}
	results := make(chan error, 1)
	go func() {
		defer c.inside.Release(wholeInside)
		results <- fn()
	}()
	return results, nil
}

// enter marks the caller as inside NVML until it calls leave. It has no timeout: its callers have one.
func (c *calls) enter() (leave func()) {
	// It cannot fail, since the context never ends. It may wait for ever, if NVML is initialised for ever.
	_ = c.inside.Acquire(context.Background(), 1)
	return func() { c.inside.Release(1) }
}
