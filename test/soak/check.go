package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpuready/gpuready/internal/kubelettest"
)

// checkInterval is the interval at which the served devices are compared with the expected ones.
const checkInterval = 50 * time.Millisecond

// check compares the served devices with the expected ones, and records since when a GPU differs.
type check struct {
	truth  *truth
	served func() []kubelettest.Resource
	settle time.Duration

	mu      sync.Mutex
	shaken  time.Time // when the kubelet was last disturbed
	since   []time.Time
	why     []string
	longest time.Duration // time that anything took to settle
}

func newCheck(t *truth, served func() []kubelettest.Resource, settle time.Duration) *check {
	return &check{truth: t, served: served, settle: settle, since: make([]time.Time, len(t.gpus)), why: make([]string, len(t.gpus))}
}

// disturbed records that the kubelet has just lost its lists.
func (c *check) disturbed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shaken = time.Now()
}

// run checks until ctx ends or something is wrong for too long.
func (c *check) run(ctx context.Context) error {
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := c.once(time.Now()); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

func (c *check) once(now time.Time) error {
	served := c.served()
	c.truth.mu.Lock()
	defer c.truth.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range served {
		if r.Registered > 1 {
			return fmt.Errorf("%s was registered %d times with one kubelet", r.Name, r.Registered)
		}
	}
	if ids := c.truth.strangers(served); ids != nil {
		return fmt.Errorf("served, and no GPU ever was: %v", ids)
	}
	for i, gpu := range c.truth.gpus {
		c.why[i] = c.truth.wrong(gpu, served)
		switch {
		case c.why[i] != "" && c.since[i].IsZero():
			c.since[i] = now
		case c.why[i] == "" && !c.since[i].IsZero():
			c.longest = max(c.longest, now.Sub(c.begin(i, gpu)))
			c.since[i] = time.Time{}
		}
		if c.why[i] != "" && now.Sub(c.begin(i, gpu)) > c.settle {
			return fmt.Errorf("for %v already: %s\n%v", c.settle, c.why[i], gpu)
		}
	}
	return nil
}

// begin returns the time from which the plugin's deadline to report a GPU counts.
func (c *check) begin(i int, gpu *gpuState) time.Time {
	begin := c.since[i]
	for _, t := range []time.Time{gpu.changed, c.shaken} {
		if t.After(begin) {
			begin = t
		}
	}
	return begin
}

// still waits until everything matches, and stays so for a moment. After it, no GPU has the health
// unsure.
func (c *check) still(ctx context.Context) error {
	c.truth.mu.Lock()
	c.truth.calm = true
	c.truth.mu.Unlock()
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	for good := 0; good < 20; {
		select {
		case <-tick.C:
			if good++; c.wrong() {
				good = 0
			}
		case <-ctx.Done():
			return errors.New("stopped before everything was as it should be")
		}
	}
	c.truth.mu.Lock()
	defer c.truth.mu.Unlock()
	c.truth.calm = false
	for _, gpu := range c.truth.gpus {
		if gpu.health == unsure {
			gpu.health = sound
		}
	}
	return nil
}

func (c *check) wrong() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, since := range c.since {
		if !since.IsZero() {
			return true
		}
	}
	return false
}

// most returns the longest settling time since its last call.
func (c *check) most() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.longest
	c.longest = 0
	return d
}
