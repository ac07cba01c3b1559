package nvml

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// calls is how this package calls NVML, any call of which may hang for ever
// when a GPU or its firmware does. Each runs in a goroutine of its own and is
// waited for until a limit. For each subject (the driver, GPU 3, …) one call is
// under way at a time, and while one hangs the next are refused at once; so
// what can leak is one goroutine, and its thread, for each subject.
type calls struct {
	limit  time.Duration
	failed func(code string) // told of each error; it must not wait
	// life is held, by one, by who is inside NVML, and whole by who
	// initialises it or shuts it down.
	life *semaphore.Weighted

	mu      sync.Mutex
	running map[string]*running
}

const wholeLife = 1 << 20

type running struct {
	since time.Time
	done  chan struct{}
}

func newCalls(limit time.Duration, failed func(string)) *calls {
	if failed == nil {
		failed = func(string) {}
	}
	return &calls{limit: limit, failed: failed, life: semaphore.NewWeighted(wholeLife), running: map[string]*running{}}
}

// call runs fn, which is about subject, and returns what it returns; or a
// hungError after the limit, or ctx.Err() when ctx ends.
func call[T any](ctx context.Context, c *calls, subject string, fn func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var zero T
	timer := time.NewTimer(c.limit)
	defer timer.Stop()
	turn, err := c.turn(ctx, subject, timer)
	if err != nil {
		c.count(err)
		return zero, err
	}
	results := make(chan result, 1)
	go func() {
		defer c.finish(subject, turn)
		var r result
		leave := c.enter()
		r.value, r.err = fn()
		leave()
		results <- r
	}()
	select {
	case r := <-results:
		c.count(r.err)
		return r.value, r.err
	case <-timer.C:
		err := &hungError{subject, c.limit}
		c.count(err)
		return zero, err
	case <-ctx.Done():
		return zero, ctx.Err()
	}
}

// codeHung stands for a call that did not come back.
const codeHung = "HUNG"

// count tells of an error that is NVML's.
func (c *calls) count(err error) {
	if _, hung := errors.AsType[*hungError](err); hung {
		c.failed(codeHung)
	} else if failed, is := errors.AsType[*callError](err); is {
		c.failed(name(failed.ret))
	}
}

// turn waits until nothing else is under way about the subject.
func (c *calls) turn(ctx context.Context, subject string, timer *time.Timer) (*running, error) {
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

// hanging names something that NVML was asked about and has not answered in time.
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

// alone runs fn while nobody is inside NVML, or returns a hungError when
// somebody is and does not come out in time. Nobody gets in meanwhile.
func (c *calls) alone(ctx context.Context, patience time.Duration, fn func() error) error {
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := c.life.Acquire(waiting, wholeLife); err != nil {
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			return &hungError{"what it was asked before", patience}
		}
		return err
	}
	defer c.life.Release(wholeLife)
	return fn()
}

// enter marks the caller as being inside NVML until it calls leave. It is for
// calls that are waited for elsewhere.
func (c *calls) enter() (leave func()) {
	// It cannot fail: the context has no end, and who holds life whole lets go.
	_ = c.life.Acquire(context.Background(), 1)
	return func() { c.life.Release(1) }
}
