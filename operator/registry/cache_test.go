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

// fake is a registry that is asked for by hand.
type fake struct {
	mu      sync.Mutex
	answer  map[string]driver.Presence
	shows   func(Access) driver.Presence // instead of answer, where it is set
	asked   []time.Duration              // since the beginning
	begin   time.Time
	changes []string
	slow    time.Duration
	most    int
	now     int
}

func (f *fake) ask(ctx context.Context, image string, a Access) driver.Presence {
	f.mu.Lock()
	f.asked = append(f.asked, time.Since(f.begin))
	f.now++
	f.most = max(f.most, f.now)
	p, slow := f.answer[image], f.slow
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

func (f *fake) say(image string, state driver.PresenceState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer[image] = driver.Presence{State: state}
}

func (f *fake) changed(image string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes = append(f.changes, image)
}

// saw returns when it was asked, and who was told.
func (f *fake) saw() (asked []time.Duration, changes []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.asked), slices.Clone(f.changes)
}

func (f *fake) asks() int {
	asked, _ := f.saw()
	return len(asked)
}

func (f *fake) takes(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.slow = d
}

// within runs a test with a Cache in a world of its own time.
func within(t *testing.T, test func(t *testing.T, f *fake, c *Cache)) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{answer: map[string]driver.Presence{}, begin: time.Now()}
		c := NewCache(f.ask, f.changed)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		test(t, f, c)
		cancel()
		require.NoError(t, <-done)
	})
}

func TestWhatIsNotThereIsAskedForLessAndLessOften(t *testing.T) {
	within(t, func(t *testing.T, f *fake, c *Cache) {
		f.say("a", driver.Absent)
		require.Equal(t, driver.Unasked, c.Look("a", Access{}).State)
		synctest.Wait()
		require.Equal(t, driver.Absent, c.Look("a", Access{}).State)
		pass(25*time.Minute + time.Second)
		asked, changes := f.saw()
		require.Equal(t, []time.Duration{
			0, 30 * time.Second, 90 * time.Second, 210 * time.Second, 450 * time.Second, 930 * time.Second, 1530 * time.Second,
		}[:6], asked[:6])
		require.Equal(t, []string{"a"}, changes)
		f.say("a", driver.Present)
		pass(10 * time.Minute)
		synctest.Wait()
		require.Equal(t, driver.Present, c.Look("a", Access{}).State)
		asked, changes = f.saw()
		require.Equal(t, []string{"a", "a"}, changes)
		pass(48 * time.Hour)
		require.Equal(t, len(asked), f.asks(), "what is there is not asked for again")
	})
}

func TestAnImageWhoseLabelsAreNotKnownIsAskedForAgain(t *testing.T) {
	within(t, func(t *testing.T, f *fake, c *Cache) {
		f.mu.Lock()
		f.answer["a"] = driver.Presence{State: driver.Present, Why: "its labels cannot be read"}
		f.mu.Unlock()
		c.Look("a", Access{})
		pass(firstWait + time.Second)
		require.Equal(t, 2, f.asks())
		f.mu.Lock()
		f.answer["a"] = driver.Presence{State: driver.Present, Ours: true}
		f.mu.Unlock()
		pass(2 * firstWait)
		require.True(t, c.Look("a", Access{}).Ours)
		_, changes := f.saw()
		require.Equal(t, []string{"a", "a"}, changes)
		pass(48 * time.Hour)
		require.Equal(t, 3, f.asks())
	})
}

func TestOtherSecretsAreTriedAtOnce(t *testing.T) {
	within(t, func(t *testing.T, f *fake, c *Cache) {
		f.say("a", driver.Unknown)
		c.Look("a", Access{})
		synctest.Wait()
		c.Look("a", Access{Secrets: []Secret{{Name: "s"}}})
		synctest.Wait()
		require.Equal(t, 2, f.asks())
		c.Look("a", Access{Secrets: []Secret{{Name: "s"}}})
		synctest.Wait()
		require.Equal(t, 2, f.asks())
		f.takes(time.Second)
		c.Look("a", Access{Secrets: []Secret{{Name: "t"}}})
		synctest.Wait()
		f.say("a", driver.Present)
		c.Look("a", Access{Bundle: Bundle{Name: "ca", Version: "1"}})
		pass(3 * time.Second)
		require.Equal(t, 4, f.asks(), "asked again: the answer was to the old question")
		require.Equal(t, driver.Present, c.Look("a", Access{Bundle: Bundle{Name: "ca", Version: "1"}}).State)
		c.Look("a", Access{Bundle: Bundle{Name: "ca", Version: "2"}})
		pass(3 * time.Second)
		require.Equal(t, 4, f.asks(), "what is there is not asked for again")
	})
}

func TestWhatWasAskedWithAFlawIsAskedAgain(t *testing.T) {
	within(t, func(t *testing.T, f *fake, c *Cache) {
		one, two := Access{Bundle: Bundle{Name: "ca", Version: "1"}}, Access{Bundle: Bundle{Name: "ca", Version: "2"}}
		f.mu.Lock()
		f.answer["a"] = driver.Presence{State: driver.Present, Flaw: "it has no keys"}
		f.mu.Unlock()
		c.Look("a", one)
		pass(firstWait + time.Second)
		require.Equal(t, 2, f.asks())
		require.Equal(t, "it has no keys", c.Look("a", one).Flaw)
		f.say("a", driver.Present)
		c.Look("a", two)
		synctest.Wait()
		require.Equal(t, driver.Presence{State: driver.Present}, c.Look("a", two))
		pass(time.Hour)
		require.Equal(t, 3, f.asks())
	})
}

func TestWhatNobodyWantsIsForgotten(t *testing.T) {
	within(t, func(t *testing.T, f *fake, c *Cache) {
		for i := range maxImages + 5 {
			c.Look(fmt.Sprint(i), Access{})
			synctest.Wait()
		}
		require.Equal(t, maxImages, size(c))
		require.Equal(t, driver.Unasked, c.Look("0", Access{}).State)
		f.takes(time.Second)
		c.Look("100", Access{Secrets: []Secret{{Name: "s"}}})
		synctest.Wait()
		_, before := f.saw()
		c.Prune()
		c.Look("200", Access{})
		c.Prune()
		pass(10 * time.Second)
		require.Equal(t, 1, size(c))
		_, after := f.saw()
		require.Equal(t, before, after, "nobody is told of what was forgotten while it was asked for")
	})
}

func TestAnImageIsKnownToWhomItWasShown(t *testing.T) {
	within(t, func(t *testing.T, f *fake, c *Cache) {
		pull, push := Access{Secrets: []Secret{{Name: "pull"}}}, Access{Secrets: []Secret{{Name: "push"}, {Name: "pull"}}, Recheck: true}
		f.shows = func(a Access) driver.Presence {
			if a.Secrets[0].Name == "push" {
				return driver.Presence{State: driver.Present}
			}
			return driver.Presence{State: driver.Absent}
		}
		for range 100 {
			c.Look("a", pull)
			c.Look("a", push)
			synctest.Wait()
		}
		require.Equal(t, 2, f.asks(), "one question does not start another anew")
		require.Equal(t, driver.Absent, c.Look("a", pull).State)
		require.Equal(t, driver.Present, c.Look("a", push).State)
	})
}

func TestAnotherReasonIsNews(t *testing.T) {
	within(t, func(t *testing.T, f *fake, c *Cache) {
		for _, why := range []string{"the operator may not get secrets", "dial tcp 127.0.0.1:1: connection refused"} {
			f.mu.Lock()
			f.answer["a"] = driver.Presence{State: driver.Unknown, Why: why}
			f.mu.Unlock()
			c.Look("a", Access{})
			pass(firstWait - time.Second)
		}
		pass(2 * time.Second)
		_, changes := f.saw()
		require.Equal(t, []string{"a", "a"}, changes)
	})
}

func TestOtherNumbersInAnAnswerAreNoNews(t *testing.T) {
	within(t, func(t *testing.T, f *fake, c *Cache) {
		port := 0
		f.shows = func(Access) driver.Presence {
			port++
			return driver.Presence{State: driver.Unknown, Why: fmt.Sprintf("read tcp 10.0.0.1:%d: connection reset", port)}
		}
		c.Look("a", Access{})
		pass(time.Hour)
		_, changes := f.saw()
		require.Equal(t, []string{"a"}, changes)
		require.Equal(t, fmt.Sprintf("read tcp 10.0.0.1:%d: connection reset", f.asks()), c.Look("a", Access{}).Why, "the newest")
	})
}

func TestAnImageThatMayGoIsAskedForEveryTenMinutes(t *testing.T) {
	within(t, func(t *testing.T, f *fake, c *Cache) {
		f.say("a", driver.Present)
		c.Look("a", Access{Recheck: true})
		pass(time.Hour + time.Second)
		require.Equal(t, 7, f.asks())
		f.say("a", driver.Absent)
		pass(lastWait)
		require.Equal(t, driver.Absent, c.Look("a", Access{Recheck: true}).State)
		_, changes := f.saw()
		require.Equal(t, []string{"a", "a"}, changes)
	})
}

func TestFourQuestionsAtATime(t *testing.T) {
	within(t, func(t *testing.T, f *fake, c *Cache) {
		f.takes(20 * time.Second)
		for i := range 10 {
			c.Look(fmt.Sprint(i), Access{})
		}
		pass(time.Second)
		require.Equal(t, parallel, f.asks())
		pass(50 * time.Second)
		require.GreaterOrEqual(t, f.asks(), 10)
		f.mu.Lock()
		defer f.mu.Unlock()
		require.Equal(t, parallel, f.most)
	})
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func size(c *Cache) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.images)
}
