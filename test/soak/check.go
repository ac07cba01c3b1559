package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpuready/gpuready/internal/kubelettest"
)

// look is how often what is served is held against what is true.
const look = 50 * time.Millisecond

// check holds what is served against what is true, and knows since when a card is
// not as it should be.
type check struct {
	truth  *truth
	served func() []kubelettest.Resource
	settle time.Duration

	mu      sync.Mutex
	shaken  time.Time // when the kubelet was last disturbed
	since   []time.Time
	why     []string
	longest time.Duration // that anything took to settle
}

func newCheck(t *truth, served func() []kubelettest.Resource, settle time.Duration) *check {
	return &check{truth: t, served: served, settle: settle, since: make([]time.Time, len(t.cards)), why: make([]string, len(t.cards))}
}

// disturbed says that the kubelet has just lost its lists.
func (c *check) disturbed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shaken = time.Now()
}

// run looks until ctx ends or something is wrong for too long.
func (c *check) run(ctx context.Context) error {
	tick := time.NewTicker(look)
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
	for i, card := range c.truth.cards {
		c.why[i] = c.truth.wrong(card, served)
		switch {
		case c.why[i] != "" && c.since[i].IsZero():
			c.since[i] = now
		case c.why[i] == "" && !c.since[i].IsZero():
			c.longest = max(c.longest, now.Sub(c.begin(i, card)))
			c.since[i] = time.Time{}
		}
		if c.why[i] != "" && now.Sub(c.begin(i, card)) > c.settle {
			return fmt.Errorf("for %v already: %s\n%v", c.settle, c.why[i], card)
		}
	}
	return nil
}

// begin is from when the plugin's time to say what is true of a card counts.
func (c *check) begin(i int, card *card) time.Time {
	begin := c.since[i]
	for _, t := range []time.Time{card.changed, c.shaken} {
		if t.After(begin) {
			begin = t
		}
	}
	return begin
}

// still waits until everything is as it should be, and stays so for a moment. No
// card is unsure after it.
func (c *check) still(ctx context.Context) error {
	c.truth.mu.Lock()
	c.truth.calm = true
	c.truth.mu.Unlock()
	tick := time.NewTicker(look)
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
	for _, card := range c.truth.cards {
		if card.health == unsure {
			card.health = sound
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

// most is the longest that anything took to settle since it was last asked.
func (c *check) most() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.longest
	c.longest = 0
	return d
}
