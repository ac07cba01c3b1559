package registry

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/gpuready/gpuready/operator/driver"
)

const (
	// Registries have no events: a missing or unknown image is queried again.
	firstWait = 30 * time.Second
	lastWait  = 10 * time.Minute
	// maxParallel bounds concurrent queries, so that a silent registry does not delay others.
	maxParallel = 4
	// maxImages bounds the cached results. A cluster has a few kernels at a time.
	maxImages = 512
)

// Cache returns at once what is known of an image, and queries registries in the background. A
// present image whose labels were read is not queried again, or only every 10 minutes with
// Access.Recheck. An image that is missing, partly unknown or was queried with a flaw is queried
// again after 30 seconds, and then with doubling pauses of up to 10 minutes.
//
// Each Access has its own entries: a result for one says nothing about another.
type Cache struct {
	query   func(context.Context, string, Access) driver.Presence
	changed func(image string)
	ready   chan struct{}

	mu     sync.Mutex
	images map[key]*entry
	clock  int // number of lookups: the time base of entry.used
	pruned int // clock at the last Prune
}

// key is an image and the names of the secrets and bundle it is queried with, whose contents may
// change.
type key struct {
	image, secrets, bundle, insecure string
	recheck                          bool
}

func keyOf(image string, a Access) key {
	k := key{image: image, bundle: a.Bundle.Name, insecure: a.Insecure, recheck: a.Recheck}
	for _, s := range a.Secrets {
		k.secrets += s.Name + " "
	}
	return k
}

type entry struct {
	access   Access
	presence driver.Presence
	due      time.Time // of the next query; zero: at once
	wait     time.Duration
	querying bool
	stale    bool // the access has changed during the query
	used     int
}

// final reports whether another query can give no further information.
func (e *entry) final() bool {
	p := e.presence
	return p.State == driver.Present && p.Why == "" && p.AccessProblem == ""
}

// NewCache returns a Cache that queries with query (Client.Lookup). It calls changed, from a goroutine
// of Run, when the result for an image differs from the one that Lookup last returned.
func NewCache(query func(context.Context, string, Access) driver.Presence, changed func(image string)) *Cache {
	return &Cache{query: query, changed: changed, ready: make(chan struct{}, 1), images: map[key]*entry{}}
}

// Lookup returns what is known of an image: Unasked at first. If the contents of secrets or
// authorities have changed, an image without a final result is queried again at once.
func (c *Cache) Lookup(image string, a Access) driver.Presence {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := keyOf(image, a)
	e := c.images[k]
	if e == nil {
		c.evictOldest()
		e = &entry{access: a}
		c.images[k] = e
		c.notify()
	}
	c.clock++
	e.used = c.clock
	if !e.access.equal(a) {
		e.access = a
		if !e.final() {
			c.retryNow(e)
		}
	}
	return e.presence
}

// Prune forgets the images that were not looked up since the last Prune.
func (c *Cache) Prune() {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.images, func(_ key, e *entry) bool { return e.used <= c.pruned })
	c.pruned = c.clock
}

func (c *Cache) retryNow(e *entry) {
	e.due, e.wait, e.stale = time.Time{}, 0, e.querying
	c.notify()
}

func (c *Cache) notify() {
	select {
	case c.ready <- struct{}{}:
	default:
	}
}

// evictOldest removes the least recently used image if the cache is full.
func (c *Cache) evictOldest() {
	if len(c.images) < maxImages {
		return
	}
	var oldest key
	for k, e := range c.images {
		if oldest.image == "" || e.used < c.images[oldest].used {
			oldest = k
		}
	}
	delete(c.images, oldest)
}

// Run queries registries until ctx ends, and returns when the last query has ended.
func (c *Cache) Run(ctx context.Context) error {
	var asking sync.WaitGroup
	defer asking.Wait()
	slots := make(chan struct{}, maxParallel)
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		k, e, wait := c.nextDue()
		if e != nil {
			asking.Go(func() {
				defer func() { <-slots }()
				c.queryImage(ctx, k, e)
			})
			continue
		}
		<-slots
		if !c.pause(ctx, wait) {
			return nil
		}
	}
}

// pause waits for a time or for something to query. It returns false if ctx has ended.
func (c *Cache) pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-c.ready:
	case <-timer.C:
	}
	return true
}

// nextDue returns an image that is due, or the time until the next one is.
func (c *Cache) nextDue() (key, *entry, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wait := lastWait
	for k, e := range c.images {
		if e.querying || e.final() && !k.recheck {
			continue
		}
		until := time.Until(e.due)
		if until <= 0 {
			e.querying, e.stale = true, false
			return k, e, 0
		}
		wait = min(wait, until)
	}
	return key{}, nil, wait
}

func (c *Cache) queryImage(ctx context.Context, k key, e *entry) {
	c.mu.Lock()
	access := e.access
	c.mu.Unlock()
	presence := c.query(ctx, k.image, access)
	if ctx.Err() == nil && c.store(k, e, presence) {
		c.changed(k.image)
	}
	c.notify()
}

// store stores a result, and reports whether it has changed.
func (c *Cache) store(k key, e *entry, presence driver.Presence) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.querying = false
	if e.stale {
		return false // it is queried again with the new access
	}
	if presence.State != e.presence.State {
		e.wait = 0
	}
	changed := differs(presence, e.presence)
	e.presence = presence
	e.wait = min(max(2*e.wait, firstWait), lastWait)
	if e.final() {
		e.wait = lastWait
	}
	e.due = time.Now().Add(e.wait)
	return changed && c.images[k] == e
}

// differs reports whether two results differ in more than the digits of Why, which may contain
// the port of a connection.
func differs(a, b driver.Presence) bool {
	a.Why, b.Why = withoutNumbers(a.Why), withoutNumbers(b.Why)
	return a != b
}

func withoutNumbers(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}, text)
}

func (a Access) equal(b Access) bool {
	return a.Insecure == b.Insecure && a.Bundle.equal(b.Bundle) && slices.EqualFunc(a.Secrets, b.Secrets, func(x, y Secret) bool {
		return x.Name == y.Name && maps.EqualFunc(x.Data, y.Data, bytes.Equal)
	})
}
