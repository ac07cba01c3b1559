package registry

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/operator/driver"
)

// fake is a registry that the test controls.
type fake struct {
	mu      sync.Mutex
	results map[string]driver.Presence
	shows   func(Access) driver.Presence // replaces results if it is set
	queries []time.Duration              // since the beginning
	begin   time.Time
	changes []string
	slow    time.Duration
	most    int
	now     int
}

func (f *fake) query(ctx context.Context, image string, a Access) driver.Presence {
	f.mu.Lock()
	f.queries = append(f.queries, time.Since(f.begin))
	f.now++
	f.most = max(f.most, f.now)
	p, slow := f.results[image], f.slow
	if f.shows != nil {
		p = f.shows(a)
	}
	f.mu.Unlock()
	if slow > 0 {
		select {
		case <-time.After(slow):
		case <-ctx.Done():
		}
	}
	f.mu.Lock()
	f.now--
	f.mu.Unlock()
	return p
}

func (f *fake) setState(image string, state driver.PresenceState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.results[image] = driver.Presence{State: state}
}

func (f *fake) changed(image string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes = append(f.changes, image)
}

// takeCalls returns the times of the queries and the reported changes.
func (f *fake) takeCalls() (asked []time.Duration, changes []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.queries), slices.Clone(f.changes)
}

func (f *fake) queryCount() int {
	asked, _ := f.takeCalls()
	return len(asked)
}

func (f *fake) setDelay(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.slow = d
}

// withCache runs a test with a Cache in a synctest bubble.
func withCache(t *testing.T, test func(t *testing.T, f *fake, c *Cache)) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{results: map[string]driver.Presence{}, begin: time.Now()}
		c := NewCache(f.query, f.changed)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		test(t, f, c)
		cancel()
		require.NoError(t, <-done)
	})
}

func TestMissingImageIsQueriedWithBackoff(t *testing.T) {
	withCache(t, func(t *testing.T, f *fake, c *Cache) {
		f.setState("a", driver.Absent)
		require.Equal(t, driver.Unasked, c.Lookup("a", Access{}).State)
		synctest.Wait()
		require.Equal(t, driver.Absent, c.Lookup("a", Access{}).State)
		advance(25*time.Minute + time.Second)
		asked, changes := f.takeCalls()
		require.Equal(t, []time.Duration{
			0, 30 * time.Second, 90 * time.Second, 210 * time.Second, 450 * time.Second, 930 * time.Second, 1530 * time.Second,
		}[:6], asked[:6])
		require.Equal(t, []string{"a"}, changes)
		f.setState("a", driver.Present)
		advance(10 * time.Minute)
		synctest.Wait()
		require.Equal(t, driver.Present, c.Lookup("a", Access{}).State)
		asked, changes = f.takeCalls()
		require.Equal(t, []string{"a", "a"}, changes)
		advance(48 * time.Hour)
		require.Equal(t, len(asked), f.queryCount(), "what is there is not asked for again")
	})
}

func TestImageWithUnknownLabelsIsQueriedAgain(t *testing.T) {
	withCache(t, func(t *testing.T, f *fake, c *Cache) {
		f.mu.Lock()
		f.results["a"] = driver.Presence{State: driver.Present, Why: "its labels cannot be read"}
		f.mu.Unlock()
		c.Lookup("a", Access{})
		advance(firstWait + time.Second)
		require.Equal(t, 2, f.queryCount())
		f.mu.Lock()
		f.results["a"] = driver.Presence{State: driver.Present, Ours: true}
		f.mu.Unlock()
		advance(2 * firstWait)
		require.True(t, c.Lookup("a", Access{}).Ours)
		_, changes := f.takeCalls()
		require.Equal(t, []string{"a", "a"}, changes)
		advance(48 * time.Hour)
		require.Equal(t, 3, f.queryCount())
	})
}

func TestChangedSecretsAreTriedAtOnce(t *testing.T) {
	withCache(t, func(t *testing.T, f *fake, c *Cache) {
		f.setState("a", driver.Unknown)
		c.Lookup("a", Access{})
		synctest.Wait()
		c.Lookup("a", Access{Secrets: []Secret{{Name: "s"}}})
		synctest.Wait()
		require.Equal(t, 2, f.queryCount())
		c.Lookup("a", Access{Secrets: []Secret{{Name: "s"}}})
		synctest.Wait()
		require.Equal(t, 2, f.queryCount())
		f.setDelay(time.Second)
		c.Lookup("a", Access{Secrets: []Secret{{Name: "t"}}})
		synctest.Wait()
		f.setState("a", driver.Present)
		c.Lookup("a", Access{Bundle: Bundle{Name: "ca", Version: "1"}})
		advance(3 * time.Second)
		require.Equal(t, 4, f.queryCount(), "asked again: the answer was to the old question")
		require.Equal(t, driver.Present, c.Lookup("a", Access{Bundle: Bundle{Name: "ca", Version: "1"}}).State)
		c.Lookup("a", Access{Bundle: Bundle{Name: "ca", Version: "2"}})
		advance(3 * time.Second)
		require.Equal(t, 4, f.queryCount(), "what is there is not asked for again")
	})
}

func TestQueryWithAFlawIsRepeated(t *testing.T) {
	withCache(t, func(t *testing.T, f *fake, c *Cache) {
		one, two := Access{Bundle: Bundle{Name: "ca", Version: "1"}}, Access{Bundle: Bundle{Name: "ca", Version: "2"}}
		f.mu.Lock()
		f.results["a"] = driver.Presence{State: driver.Present, AccessProblem: "it has no keys"}
		f.mu.Unlock()
		c.Lookup("a", one)
		advance(firstWait + time.Second)
		require.Equal(t, 2, f.queryCount())
		require.Equal(t, "it has no keys", c.Lookup("a", one).AccessProblem)
		f.setState("a", driver.Present)
		c.Lookup("a", two)
		synctest.Wait()
		require.Equal(t, driver.Presence{State: driver.Present}, c.Lookup("a", two))
		advance(time.Hour)
		require.Equal(t, 3, f.queryCount())
	})
}

func TestUnusedImagesAreForgotten(t *testing.T) {
	withCache(t, func(t *testing.T, f *fake, c *Cache) {
		for i := range maxImages + 5 {
			c.Lookup(fmt.Sprint(i), Access{})
			synctest.Wait()
		}
		require.Equal(t, maxImages, size(c))
		require.Equal(t, driver.Unasked, c.Lookup("0", Access{}).State)
		f.setDelay(time.Second)
		c.Lookup("100", Access{Secrets: []Secret{{Name: "s"}}})
		synctest.Wait()
		_, before := f.takeCalls()
		c.Prune()
		c.Lookup("200", Access{})
		c.Prune()
		advance(10 * time.Second)
		require.Equal(t, 1, size(c))
		_, after := f.takeCalls()
		require.Equal(t, before, after, "nobody is told of what was forgotten while it was asked for")
	})
}

func TestResultsAreNotSharedBetweenAccesses(t *testing.T) {
	withCache(t, func(t *testing.T, f *fake, c *Cache) {
		pull, push := Access{Secrets: []Secret{{Name: "pull"}}}, Access{Secrets: []Secret{{Name: "push"}, {Name: "pull"}}, Recheck: true}
		f.shows = func(a Access) driver.Presence {
			if a.Secrets[0].Name == "push" {
				return driver.Presence{State: driver.Present}
			}
			return driver.Presence{State: driver.Absent}
		}
		for range 100 {
			c.Lookup("a", pull)
			c.Lookup("a", push)
			synctest.Wait()
		}
		require.Equal(t, 2, f.queryCount(), "one question does not start another anew")
		require.Equal(t, driver.Absent, c.Lookup("a", pull).State)
		require.Equal(t, driver.Present, c.Lookup("a", push).State)
	})
}

func TestChangedReasonIsReported(t *testing.T) {
	withCache(t, func(t *testing.T, f *fake, c *Cache) {
		for _, why := range []string{"the operator may not get secrets", "dial tcp 127.0.0.1:1: connection refused"} {
			f.mu.Lock()
			f.results["a"] = driver.Presence{State: driver.Unknown, Why: why}
			f.mu.Unlock()
			c.Lookup("a", Access{})
			advance(firstWait - time.Second)
		}
		advance(2 * time.Second)
		_, changes := f.takeCalls()
		require.Equal(t, []string{"a", "a"}, changes)
	})
}

func TestChangedNumbersAreNotReported(t *testing.T) {
	withCache(t, func(t *testing.T, f *fake, c *Cache) {
		port := 0
		f.shows = func(Access) driver.Presence {
			port++
			return driver.Presence{State: driver.Unknown, Why: fmt.Sprintf("read tcp 10.0.0.1:%d: connection reset", port)}
		}
		c.Lookup("a", Access{})
		advance(time.Hour)
		_, changes := f.takeCalls()
		require.Equal(t, []string{"a"}, changes)
		require.Equal(t, fmt.Sprintf("read tcp 10.0.0.1:%d: connection reset", f.queryCount()), c.Lookup("a", Access{}).Why, "the newest")
	})
}

func TestRecheckedImageIsQueriedEveryTenMinutes(t *testing.T) {
	withCache(t, func(t *testing.T, f *fake, c *Cache) {
		f.setState("a", driver.Present)
		c.Lookup("a", Access{Recheck: true})
		advance(time.Hour + time.Second)
		require.Equal(t, 7, f.queryCount())
		f.setState("a", driver.Absent)
		advance(lastWait)
		require.Equal(t, driver.Absent, c.Lookup("a", Access{Recheck: true}).State)
		_, changes := f.takeCalls()
		require.Equal(t, []string{"a", "a"}, changes)
	})
}

func TestFourQueriesAtATime(t *testing.T) {
	withCache(t, func(t *testing.T, f *fake, c *Cache) {
		f.setDelay(20 * time.Second)
		for i := range 10 {
			c.Lookup(fmt.Sprint(i), Access{})
		}
		advance(time.Second)
		require.Equal(t, maxParallel, f.queryCount())
		advance(50 * time.Second)
		require.GreaterOrEqual(t, f.queryCount(), 10)
		f.mu.Lock()
		defer f.mu.Unlock()
		require.Equal(t, maxParallel, f.most)
	})
}

func advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func size(c *Cache) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.images)
}
